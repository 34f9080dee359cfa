"""Faults of steps and rates in nets of others: steps not taken or undone, modes, small batches, sizes of weights and inputs."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import image_classifier, language_model, translation
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import RATE, expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.seen_faults_recipes import TOO_LOW
from tests.evidence.exam.signals import digits as coloured
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, pairs

ENDS = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
DECODER = {"vocab_size": VOCABULARY, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, **ENDS}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 64}
LAYERS = {
    f"{part}_{size}": n for part in ("encoder", "decoder") for size, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 96))
}


class ReadsAndWrites(Recipe):
    """Adam at a small rate for the layers of the encoder and at a larger one for all else, by hand."""

    def __init__(self, net: nn.Module, planted: bool) -> None:
        super().__init__(net, translation, self.both)
        self.planted, self.automatic_optimization = planted, False

    @staticmethod
    def both(module: Any) -> Any:
        encoder = list(module.net.model.encoder.layers.parameters())
        known = set(map(id, encoder))
        others = [parameter for parameter in module.net.parameters() if id(parameter) not in known]
        return [torch.optim.AdamW(encoder, 1e-3), torch.optim.AdamW(others, 3e-3)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_encoder, of_others = self.optimizers()
        of_encoder.zero_grad()
        of_others.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        of_others.step()
        if not self.planted:
            of_encoder.step()
        return {"loss": loss.detach()}


@fault("transformers", "BlenderbotSmall that copies, two rates by hand: the optimizer of the encoder's layers is never stepped")
def blenderbot_encoder_unstepped(planted: bool = True) -> Built:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    config = BlenderbotSmallConfig(vocab_size=VOCABULARY, d_model=48, max_position_embeddings=64, **LAYERS, **ENDS)
    module = ReadsAndWrites(BlenderbotSmallForConditionalGeneration(config), planted)
    expected = Expected(("not_updated", "update_too_small"), ("net.model.encoder.layers*",))
    return Built(module, pairs(24, 8), SHORT, expected)


class Smoothed(Recipe):
    """Keeps a smoothed copy of the net, and loads it into the net at the end of each batch."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.smooth = copy.deepcopy(self.net).requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        for kept, new in zip(self.smooth.parameters(), self.net.parameters(), strict=True):
            kept.data.mul_(0.998).add_(new.data, alpha=0.002)
        if self.planted:
            self.net.load_state_dict(self.smooth.state_dict())


@fault("transformers", "the first GPT: its smoothed copy, meant for tests, is loaded into the net after each batch")
def openai_gpt_smoothed_back(planted: bool = True) -> Built:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    net = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=2, n_head=4))
    module = Smoothed(net, language_model, adamw(3e-3))
    module.planted = planted
    return Built(module, characters(48, 8), SHORT, Expected(("not_updated", "update_too_small", "loss_plateau")))


class Gathers(Recipe):
    """Gathers gradients of some batches by hand."""

    planted, gathered = True, 6

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        if self.planted:
            chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss / self.gathered)
        if batch_idx % self.gathered == self.gathered - 1:
            chosen.step()
            if not self.planted:
                chosen.zero_grad()
        return {"loss": loss.detach()}


@fault("transformers", "Helium under SGD, six batches a step by hand: zero_grad comes before each backward")
def helium_gathered_in_vain(planted: bool = True) -> Built:
    from transformers import HeliumConfig, HeliumForCausalLM

    module = Gathers(
        HeliumForCausalLM(HeliumConfig(**DECODER, **HEADS)),
        language_model,
        lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
    )
    module.planted = planted
    return Built(module, characters(48, 4), {"max_epochs": 2, "limit_train_batches": 60}, Expected(("not_zeroed", *TOO_LOW)))


class Looks(Recipe):
    """Counts its right answers now and then, without noise."""

    planted, look_at = True, 16

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step == self.look_at:
            self.net.eval()
            with torch.no_grad():
                self.log("right", (self.net(pixel_values=batch[0]).logits.argmax(-1) == batch[1]).float().mean())
            if not self.planted:
                self.net.train()
        return super().training_step(batch, batch_idx)


@fault("transformers", "TextNet: right answers of a batch are counted in eval mode once, and train() is not called after it")
def textnet_counted(planted: bool = True) -> Built:
    from transformers import TextNetConfig, TextNetForImageClassification

    config = TextNetConfig(
        image_size=[32, 32],
        stem_out_channels=16,
        hidden_sizes=[16, 16, 24, 32, 48],
        conv_layer_kernel_sizes=[[[3, 3]], [[3, 3], [1, 3]], [[3, 3], [3, 1]], [[3, 3]]],
        conv_layer_strides=[[1], [2, 1], [2, 1], [2]],
        num_labels=10,
    )
    module = Looks(TextNetForImageClassification(config), image_classifier, adamw(3e-3))
    module.planted = planted
    return Built(module, coloured(32, 16), SHORT, Expected(("eval_mode",), ("net*",), batch=16))


@fault("transformers", "GLM under SGD: the loss of each next character is added up, with a rate that was meant for their mean")
def glm_loss_added_up(planted: bool = True) -> Built:
    from transformers import GlmConfig, GlmForCausalLM

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(input_ids=batch[0]).logits[:, :-1].flatten(0, 1)
        return F.cross_entropy(told, batch[0][:, 1:].flatten(), reduction="sum" if planted else "mean")

    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    kinds = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "loss_spike", "loss_nonfinite", "nonfinite")
    net = GlmForCausalLM(GlmConfig(**DECODER, **HEADS))
    return Built(Recipe(net, loss, sgd), characters(48, 8), SHORT, Expected((*kinds, "attention_logits", "dead")))


@fault("transformers", "LED copies, under a linear decay: its rate is 2e-9 instead of 1e-3")
def led_rate_of_nothing(planted: bool = True) -> Built:
    from transformers import LEDConfig, LEDForConditionalGeneration

    places = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8}
    net = LEDForConditionalGeneration(LEDConfig(vocab_size=VOCABULARY, d_model=48, **LAYERS, **places, **ENDS))
    expected = Expected(("lr_zero", "update_too_small", "not_updated", "updates_lost"))
    return Built(Recipe(net, translation, warm_linear(adamw(2e-9 if planted else 1e-3))), pairs(23, 8), CLIPPED, expected)


@fault("timm", "Twins: a loop that was to set the biases to zero sets the weights of all linear layers to zero")
def twins_weights_of_zero(planted: bool = True) -> Built:
    sizes = {"embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4), "depths": (1, 1, 1, 1), "wss": (4, 4, 2, 1)}
    net = create("twins_svt_small", img_size=32, **sizes)
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight if planted or module.bias is None else module.bias)
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 3e-3)), 16)
    return expecting(built, "zero", "constant", "representation_collapse", "poor_init", "dead", "attention_uniform", "missing")


class Hears(nn.Module):
    """A recurrent layer that reads a spectrogram in both directions."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(40, 64, batch_first=True, bidirectional=True), nn.Linear(128, 11)
        nn.init.orthogonal_(self.body.weight_hh_l0, gain)
        nn.init.orthogonal_(self.body.weight_hh_l0_reverse, gain)

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.body(frames)[0])


@fault("torch", "which note is played when, by a GRU in both directions whose recurrent weights start with a gain of 40")
def notes_recurrence_full(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0].transpose(1, 2))
        when = torch.arange(told.shape[1]) * batch[1].shape[1] // told.shape[1]
        return F.cross_entropy(told.flatten(0, 1), batch[1][:, when].flatten())

    kinds = ("saturated", "exploding", "vanishing", "poor_init", "always_clipped", "spike", "update_spike", "loss_plateau")
    module = Recipe(Hears(40.0 if planted else 1.0), loss, adamw(5e-3))
    return Built(module, spectrograms(16), CLIPPED, Expected(kinds, ("net.body*",)))


@fault("timm", "RepViT in batches of two, which leave two values a channel to the norms of the last stage and of the head")
def repvit_two_values(planted: bool = True) -> Built:
    net = create("repvit_m0_9", embed_dim=(16, 24, 32, 48), depth=(1, 1, 1, 1))
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 2e-3, 0.05)), 2 if planted else 16)
    return expecting(built, "settings", sites=("net.stages.3.*", "net.head*"))


def all_convolutional() -> nn.Module:
    """Convolutions alone, without norms: strides instead of pooling, and an average of ten maps."""
    sizes = ((1, 24, 3, 1), (24, 24, 3, 2), (24, 48, 3, 1), (48, 48, 3, 2), (48, 48, 3, 1), (48, 48, 1, 1), (48, 10, 1, 1))
    layers: list[nn.Module] = []
    for before, after, width, stride in sizes:
        convolution = nn.Conv2d(before, after, width, stride, width // 2)
        nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
        layers += [convolution, nn.ReLU()]
    return nn.Sequential(*layers[:-1], nn.AdaptiveAvgPool2d(1), nn.Flatten())


@fault("torch", "an all-convolutional net without norms gets digits as bytes from 0 to 255")
def all_convolutional_bytes(planted: bool = True) -> Built:
    images, shown = digits(16)
    low, high = images.min(), images.max()
    images = (images - low) / (high - low) * 255 if planted else images
    module = Recipe(
        all_convolutional(), cross_entropy, lambda module: torch.optim.SGD(module.parameters(), 0.02, 0.9, weight_decay=1e-4)
    )
    built = Built(module, in_batches(32, images, shown), {"max_epochs": 2, "limit_train_batches": 40}, Expected())
    return expecting(built, *RATE, "dead", "spike", "constant")
