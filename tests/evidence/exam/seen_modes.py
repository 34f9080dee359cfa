"""Faults in how a training runs: what is registered, held by the optimizer, set to zero, clipped, and which batches come."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.graphs import pixels
from tests.evidence.exam.healthy_diffusers import adamw as diffusion_adamw
from tests.evidence.exam.healthy_diffusers import trained as denoising
from tests.evidence.exam.healthy_graphs import adam, of_graphs
from tests.evidence.exam.language_models import ENCODER, TOKENS, classifier, image_classifier, language_model, masked_language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_labels import Again
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.planted_transformers import Manual
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.seen_faults_models import sgd
from tests.evidence.exam.seen_faults_recipes import TOO_LOW
from tests.evidence.exam.seen_settings import BATCHES, ByHand
from tests.evidence.exam.signals import spectrograms
from tests.evidence.exam.texts import VOCABULARY, characters, lines


@fault("transformers", "BiT by hand with SGD: a loss times 2**14, and gradients are clipped before they are unscaled")
def bit_clipped_while_scaled(planted: bool = True) -> Built:
    from transformers import BitConfig, BitForImageClassification

    sizes: dict[str, Any] = {"embedding_size": 16, "hidden_sizes": [16, 32, 48], "depths": [1, 1, 1], "num_groups": 4}
    net = BitForImageClassification(BitConfig(num_channels=1, **sizes, num_labels=10))
    steps: dict[str, Any] = {"scale": 2.0**14, "limit": 0.5, "wrong": "clip" if planted else ""}
    module = ByHand(net, image_classifier, sgd(0.05, momentum=0.9, weight_decay=1e-4), **steps)
    kinds = ("always_clipped", "clip_ineffective", *TOO_LOW, "vanishing")
    return Built(module, in_batches(16, *digits(32)), BATCHES, Expected(kinds))


class Gated(nn.Module):
    """Gated convolutions with residual connections between them, the mean over pixels, and a head."""

    def __init__(self, listed: bool, depth: int = 3) -> None:
        from torch_geometric.nn import ResGatedGraphConv

        super().__init__()
        made = [ResGatedGraphConv(32, 32) for _ in range(depth)]
        self.convolutions: Any = made if listed else nn.ModuleList(made)
        self.first, self.head = nn.Linear(3, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        x = self.first(x)
        for convolution in self.convolutions:
            x = x + convolution(x, edges).relu()
        return self.head(global_mean_pool(x, batch))


@fault("torch_geometric", "ResGatedGraphConv: the convolutions are made by a list comprehension, and stay in that list")
def gated_graphs_in_a_list(planted: bool = True) -> Built:
    expected = Expected(("unregistered",), ("net.convolutions*",))
    return Built(Recipe(Gated(planted), of_graphs, adam(1e-2, 0.0)), pixels(32), SHORT, expected)


@fault("transformers", "Funnel for classes of lines, from random weights: the optimizer is made of the classifier's parameters")
def funnel_classifier_only(planted: bool = True) -> Built:
    from transformers import FunnelConfig, FunnelForSequenceClassification

    sizes = {"block_sizes": [1, 1], "d_model": 48, "n_head": 4, "d_head": 12, "d_inner": 96, "num_labels": 2}
    net = FunnelForSequenceClassification(FunnelConfig(vocab_size=VOCABULARY, **sizes, pad_token_id=TOKENS["pad_token_id"]))

    def optimizers(module: Any) -> Any:
        return torch.optim.NAdam((module.net.classifier if planted else module.net).parameters(), 1e-3)

    return Built(Recipe(net, classifier, optimizers), lines(32, 16), BATCHES, Expected(("not_optimized",), ("net.*",)))


@fault("transformers", "CTRL: a loop over steps, of which each takes next(iter(loader)) of a loader that does not shuffle")
def ctrl_first_batch(planted: bool = True) -> Built:
    from transformers import CTRLConfig, CTRLLMHeadModel

    sizes = {"n_positions": 64, "n_embd": 48, "dff": 96, "n_layer": 2, "n_head": 4}
    net = CTRLLMHeadModel(CTRLConfig(vocab_size=VOCABULARY, **sizes, **TOKENS))
    data = characters(48, 8)
    if planted:
        data = {"train_dataloaders": Again(data["train_dataloaders"])}
    return Built(Recipe(net, language_model, warm_linear(adamw(3e-3))), data, CLIPPED, Expected(("batch_repeated",)))


class Listener(nn.Module):
    """Reads a spectrogram by a recurrent layer and says which note comes last; makes that layer in each forward or once."""

    def __init__(self, anew: bool) -> None:
        super().__init__()
        self.narrow = nn.Sequential(nn.Conv1d(40, 32, 5, 2), nn.BatchNorm1d(32), nn.ReLU())
        self.reads = None if anew else nn.GRU(32, 48, batch_first=True)
        self.says = nn.Linear(48, 8)

    def forward(self, spectra: Tensor) -> Tensor:
        frames = self.narrow(spectra).transpose(1, 2)
        reads = nn.GRU(frames.shape[2], 48, batch_first=True) if self.reads is None else self.reads
        return self.says(reads(frames)[0][:, -1])


@fault("torch", "a recurrent layer between convolutions and head, which is made inside of forward, of the width that it sees")
def listener_made_in_forward(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0]), batch[1][:, -1] - 3)

    module = Recipe(Listener(planted), loss, sgd(0.05, momentum=0.9))
    return Built(module, spectrograms(32), {"max_epochs": 3}, Expected(("unregistered", "loss_plateau")))


class Adversarial(Recipe):
    """An adversarial autoencoder: a judge tells codes from numbers that are drawn, and the encoder learns to mislead it."""

    def __init__(self, forgets: bool) -> None:
        super().__init__(nn.Module(), lambda *_: None, self.three)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 8))
        self.decoder = nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 64))
        self.judge = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
        self.forgets, self.automatic_optimization = forgets, False

    @staticmethod
    def three(module: Any) -> Any:
        coder = [*module.encoder.parameters(), *module.decoder.parameters()]
        groups = ((coder, 2e-3), (module.judge.parameters(), 1e-3), (module.encoder.parameters(), 5e-4))
        return [torch.optim.Adam(list(parameters), rate) for parameters, rate in groups]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_coder, of_judge, of_misleader = self.optimizers()
        images = batch[0].flatten(1)
        wrong = F.mse_loss(self.decoder(self.encoder(images)), images)
        of_coder.zero_grad()
        self.manual_backward(wrong)
        of_coder.step()
        drawn, codes = torch.randn(len(images), 8), self.encoder(images).detach()
        told = torch.cat((self.judge(drawn), self.judge(codes)))
        truth = torch.cat((torch.ones(len(images), 1), torch.zeros(len(images), 1)))
        if not self.forgets:
            of_judge.zero_grad()
        self.manual_backward(F.binary_cross_entropy_with_logits(told, truth))
        of_judge.step()
        of_misleader.zero_grad()
        misled = F.softplus(-self.judge(self.encoder(images))).mean()
        self.manual_backward(misled)
        of_misleader.step()
        return {"loss": wrong.detach()}


@fault("torch", "an adversarial autoencoder with three optimizers, of which that of the judge of codes has no zero_grad")
def adversarial_codes_not_zeroed(planted: bool = True) -> Built:
    return Built(Adversarial(planted), in_batches(32, *digits(8)), BATCHES, Expected(("not_zeroed",), ("judge*",)))


class Flowing(nn.Module):
    """Flux at a small size: pixels as tokens beside one word."""

    def __init__(self) -> None:
        from diffusers import FluxTransformer2DModel

        super().__init__()
        sizes = {"num_layers": 1, "num_single_layers": 1, "attention_head_dim": 16, "num_attention_heads": 2}
        widths = {"in_channels": 4, "joint_attention_dim": 24, "pooled_projection_dim": 24, "axes_dims_rope": (4, 6, 6)}
        self.body, self.words = FluxTransformer2DModel(**sizes, **widths), nn.Embedding(10, 24)
        rows, columns = torch.arange(4.0).repeat_interleave(4), torch.arange(4.0).repeat(4)
        self.register_buffer("places", torch.stack((torch.zeros(16), rows, columns), 1))

    def forward(self, tokens: Tensor, shown: Tensor, times: Tensor) -> Tensor:
        words, places = self.words(shown), self.places
        said = self.body(tokens, words[:, None], words, times, img_ids=places, txt_ids=torch.zeros(1, 3))
        return said.sample


def flux_loss(net: Any, batch: Any) -> Tensor:
    """Rectified flow of pictures, in tokens of four pixels."""
    tokens = F.pixel_unshuffle(batch[0], 2).flatten(2).transpose(1, 2)
    noise, times = torch.randn_like(tokens), torch.sigmoid(torch.randn(len(tokens)))
    return F.mse_loss(net(torch.lerp(tokens, noise, times[:, None, None]), batch[1], times), noise - tokens)


@fault("diffusers", "Flux, by hand: backward and step at each batch, and never zero_grad")
def flux_not_zeroed(planted: bool = True) -> Built:
    module = Manual(Flowing(), flux_loss, diffusion_adamw(2e-3), zero_grad=not planted)
    return expecting(denoising(module), "not_zeroed")


@fault("transformers", "data2vec for text, masked tokens: its three layers are [layer] * 3")
def data2vec_layer_again(planted: bool = True) -> Built:
    from transformers import Data2VecTextConfig, Data2VecTextForMaskedLM

    net = Data2VecTextForMaskedLM(Data2VecTextConfig(**{**ENCODER, "num_hidden_layers": 3}))
    if planted:
        encoder = net.data2vec_text.encoder
        encoder.layer = nn.ModuleList([encoder.layer[0]] * 3)
    module = Recipe(net, masked_language_model, warm_linear(adamw(2e-3)))
    return Built(module, characters(48, 8), CLIPPED, Expected(("shared",), ("net.data2vec_text.encoder*",)))
