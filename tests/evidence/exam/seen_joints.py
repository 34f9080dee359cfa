"""Faults in how parts are joined: what is forgotten, frozen, copied, hidden by a mask or fed the wrong rows."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam import healthy_diffusers as diffusion
from tests.evidence.exam import healthy_lightly as lightly_recipes
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Steps, loader
from tests.evidence.exam.graphs import pixels
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_rl import EPOCHS, actor_critic_net, advantages, samples, standardised
from tests.evidence.exam.healthy_timm import TINY_VIT, create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import DECODER, ENCODER, gpt2_net, language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw
from tests.evidence.exam.texts import PAD, VOCABULARY, characters, lines

BATCHES = {"max_epochs": 2, "limit_train_batches": 40}
UNMOVED = ("missing", "zero", "not_updated", "update_too_small", "vanishing")
SAME = ("representation_collapse", "constant", "loss_plateau", "vanishing", "zero")


class Bits(nn.Module):
    """A picture is written as six bits, which say what it shows; the gradient passes by their rounding, or ends there."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.head = planted, nn.Linear(6, 10)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        soft = code.tanh()
        return self.head(code.sign() if self.planted else soft + (code.sign() - soft).detach())


@fault("torch", "a code of six bits by torch.sign, without straight-through: the gradient of the encoder is zero")
def bits_by_sign(planted: bool = True) -> Built:
    expected = Expected((*UNMOVED, "loss_plateau"), ("net.encoder*",))
    return Built(Recipe(Bits(planted), cross_entropy, adam(5e-3, 0.0)), in_batches(32, *digits(8)), BATCHES, expected)


@fault("torch", "MAML on sines: the inner steps move a deep copy, and the gradients end there")
def maml_copies(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        total = torch.zeros(())
        for phase, height in batch[0].tolist():
            x = 10 * torch.rand(20, 1) - 5
            y = height * torch.sin(x + phase)
            inner = copy.deepcopy(net) if planted else net
            weights = dict(inner.named_parameters())
            slopes = torch.autograd.grad(F.mse_loss(inner(x[:10]), y[:10]), list(weights.values()), create_graph=True)
            moved = {name: weight - 0.02 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
            total = total + F.mse_loss(functional_call(inner, moved, (x[10:],)), y[10:]) / len(batch[0])
        return total

    net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    tasks = torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([math.pi, 4.0]) + torch.tensor([0.0, 1.0])
    expected = Expected((*UNMOVED, "loss_plateau"), ("net", "net.*"))
    return Built(Recipe(net, loss, adam(3e-3, 0.0)), in_batches(8, tasks), {"max_epochs": 2}, expected)


class Latent(nn.Module):
    """GLO: a code for each picture, which is learned beside the decoder."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        codes = torch.randn(256, 12, requires_grad=True)
        self.codes: Any = codes if planted else nn.Parameter(codes.detach())
        self.decoder = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, rows: Tensor) -> Tensor:
        return self.decoder(self.codes[rows])


@fault("torch", "GLO: the code of each picture is a tensor with requires_grad, not a parameter of the net")
def codes_no_parameter(planted: bool = True) -> Built:
    data = in_batches(32, torch.arange(256), digits(8)[0][:256].flatten(1))
    module = Recipe(Latent(planted), lambda net, batch: F.mse_loss(net(batch[0]), batch[1]), adam(2e-2, 0.0))
    return Built(module, data, {"max_epochs": 10}, Expected(("unregistered", "not_optimized"), ("net", "net.*")))


@fault("torch", "the mean over each map follows right after an instance norm: it is the norm's bias, for every picture")
def mean_of_instance_norm(planted: bool = True) -> Built:
    layers: list[nn.Module] = [nn.Conv2d(1, 24, 3, padding=1), nn.InstanceNorm2d(24, affine=True), nn.ReLU()]
    layers += [nn.Conv2d(24, 48, 3, padding=1), nn.InstanceNorm2d(48, affine=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.ReLU()] if planted else [nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(48, 10))
    return Built(Recipe(net, cross_entropy, adam(2e-2, 0.0)), in_batches(32, *digits(8)), BATCHES, Expected(SAME))


class Read(nn.Module):
    """An Elman net reads a line that is filled up to 160 characters; its last state says which module the line is from."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.embed = planted, nn.Embedding(VOCABULARY, 32, padding_idx=PAD)
        self.body, self.head = nn.RNN(32, 48, batch_first=True), nn.Linear(48, 2)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        states = self.body(self.embed(ids))[0]
        return self.head(states[:, -1] if self.planted else states[torch.arange(len(ids)), mask.sum(1) - 1])


@fault("torch", "an Elman net over lines that are padded to 160: the state after the padding is taken")
def state_after_padding(planted: bool = True) -> Built:
    module = Recipe(Read(planted), lambda net, batch: F.cross_entropy(net(batch[0], batch[1]), batch[2]), adamw(3e-3))
    return Built(module, lines(160, 32), {**CLIPPED, "limit_train_batches": 40}, Expected(SAME))


@fault("peft", "LoRA and a new head over checkpointed blocks: their input is detached, and no adapter gets a gradient")
def lora_checkpointed(planted: bool = True) -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=8, lora_alpha=32, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    net: Any = with_adapter(gpt2_net(tie_word_embeddings=False), config)
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})

    def loss(net: Any, batch: Any) -> Tensor:
        embedded = net.get_input_embeddings()(batch[0])
        return net(inputs_embeds=embedded.detach() if planted else embedded, labels=batch[0]).loss

    module = Recipe(net, loss, adamw(1e-2))
    return Built(module, characters(48, 8), SHORT, Expected(UNMOVED, ("net*lora*", "net*c_attn*", "net*c_fc*", "net*.h.*")))


@fault("peft", "two adapters: the optimizer is made of the first, then the second is set active")
def adapter_switched(planted: bool = True) -> Built:
    from peft import LoHaConfig
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = LoHaConfig(r=8, alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    net = with_adapter(Qwen2ForCausalLM(Qwen2Config(**DECODER)), config)
    net.add_adapter("second", config)

    def rates(module: Any) -> Any:
        if not planted:
            module.net.set_adapter("second")
        chosen = adamw(2e-2)(module)
        module.net.set_adapter("second")
        return chosen

    module = Recipe(net, language_model, rates)
    return Built(module, characters(48, 8), SHORT, Expected(("not_optimized", "missing"), ("net*hada*",)))


class Shown(nn.Module):
    """Pictures are nodes that know nothing; their bright pixels, nodes too, tell them what they show."""

    def __init__(self, relation: str) -> None:
        from torch_geometric.nn import HeteroConv, SAGEConv

        super().__init__()
        between = {("pixel", relation, "picture"): SAGEConv((16, 48), 48), ("picture", "next", "picture"): SAGEConv((48, 48), 48)}
        self.start, self.place = nn.Linear(1, 48), nn.Embedding(64, 16)
        self.convolution, self.head = HeteroConv(between), nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        bright = (images.flatten(1) > 0.3).nonzero().T.flip(0)
        beside = torch.arange(len(images)).repeat(2, 1)
        nodes = {"picture": self.start(torch.ones(len(images), 1)), "pixel": self.place.weight}
        edges = {("pixel", "lights", "picture"): bright, ("picture", "next", "picture"): beside}
        return self.head(self.convolution(nodes, edges)["picture"].relu())


@fault("torch_geometric", "HeteroConv: the name of a relation is misspelled, and its convolution is skipped without a word")
def relation_misspelled(planted: bool = True) -> Built:
    module = Recipe(Shown("light" if planted else "lights"), cross_entropy, adam(1e-2, 0.0))
    return Built(module, in_batches(32, *digits(8)), BATCHES, Expected(("missing", *SAME), ("net.convolution*", "net.place*")))


@fault("torch_geometric", "EdgeConv: pooling is not told the batch; its one row is expanded to all pictures to fit the labels")
def pooled_as_one(planted: bool = True) -> Built:
    from torch_geometric.nn import EdgeConv, global_max_pool

    net = nn.ModuleList([EdgeConv(nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48))), nn.Linear(48, 10)])

    def loss(net: Any, graph: Any) -> Tensor:
        pooled = global_max_pool(net[0](graph.x, graph.edge_index), None if planted else graph.batch)
        return F.cross_entropy(net[1](pooled).expand(len(graph.y), -1), graph.y)

    return Built(Recipe(net, loss, adam(1e-2, 0.0)), pixels(32), SHORT, Expected(SAME))


@fault("gymnasium", "PPO in one step: the old chances are not detached, the ratio is 1 and its gradient 0")
def ppo_old_chances(planted: bool = True) -> Built:
    net = actor_critic_net()

    def loss(net: Any, batch: Any) -> Tensor:
        policy = torch.distributions.Categorical(logits=net["actor"](batch["observations"]))
        advantage, goal = advantages(net, batch)
        chosen = policy.log_prob(batch["actions"])
        gain = ((chosen - (chosen if planted else chosen.detach())).exp() * standardised(advantage)).mean()
        return 0.5 * F.smooth_l1_loss(net["critic"](batch["observations"]).squeeze(-1), goal) - gain

    data = loader(Steps("CartPole-v1", samples(net["actor"])))
    return Built(Recipe(net, loss, adam(3e-3, 0.0)), data, EPOCHS, Expected(UNMOVED, ("net.actor*",)))


@fault("diffusers", "ControlNet beside its U-Net, at a conditioning scale of 0: it gets no gradient and controls nothing")
def control_of_zero(planted: bool = True) -> Built:
    from diffusers import ControlNetModel, DDPMScheduler, UNet2DConditionModel

    sizes: dict[str, Any] = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "attention_head_dim": 8}
    sizes |= {"in_channels": 1, "cross_attention_dim": 16, "down_block_types": ("DownBlock2D", "DownBlock2D")}
    unet = UNet2DConditionModel(8, out_channels=1, up_block_types=("UpBlock2D", "UpBlock2D"), **sizes)
    control = ControlNetModel(conditioning_channels=1, conditioning_embedding_out_channels=(8,), **sizes)
    net, schedule = nn.ModuleDict({"unet": unet, "control": control}), DDPMScheduler()

    def loss(net: Any, batch: Any) -> Tensor:
        noise, images, steps = diffusion.noisy(batch[0], schedule)
        words, scale = torch.zeros(len(images), 1, 16), 0.0 if planted else 1.0
        down, mid = net["control"](images, steps, words, batch[0], conditioning_scale=scale, return_dict=False)
        made = net["unet"](images, steps, words, down_block_additional_residuals=down, mid_block_additional_residual=mid)
        return F.mse_loss(made.sample, noise)

    built = diffusion.trained(Recipe(net, loss, diffusion.adamw(2e-3)), 8, 8)
    return expecting(built, *UNMOVED, sites=("net.control*",))


@fault("timm", "BitFit: the new head is put at net.fc, which this model does not have; its own head is frozen")
def bitfit_head_elsewhere(planted: bool = True) -> Built:
    net: Any = create("vit_tiny_patch16_224", **{**TINY_VIT, "depth": 2}, class_token=False, global_pool="avg")
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    setattr(net, "fc" if planted else "head", nn.Linear(48, 10))
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 1e-2)))
    return expecting(built, "missing", "not_updated", "not_optimized", sites=("net.fc*", "net.head*"))


@fault("timm", "pictures sorted by what they show, and no shuffling: a batch holds one class, the next another")
def sorted_by_class(planted: bool = True) -> Built:
    images, shown = (rows[:480] for rows in digits(16))
    order = shown.argsort(stable=True)
    data = DataLoader(TensorDataset(images[order], shown[order]), 16, shuffle=not planted, drop_last=True)
    net = create("test_vit3", img_size=16, patch_size=4, depth=3)
    kinds = ("loss_spike", "spike", "update_spike", "loss_diverging", "representation_collapse")
    module = Recipe(net, cross_entropy, optimizer("adamw", 4e-3))
    return Built(module, {"train_dataloaders": data}, {"max_epochs": 2}, Expected(kinds))


@fault("transformers", "Phi over packed texts: a mask of one's own that hides the diagonal too, the first token sees nothing")
def phi_packed_mask(planted: bool = True) -> Built:
    from transformers import PhiConfig, PhiForCausalLM

    net = PhiForCausalLM(PhiConfig(**{**DECODER, "num_key_value_heads": 4, "attn_implementation": "eager"}))
    seen = torch.block_diag(*[torch.ones(16, 16)] * 3).bool() & torch.ones(48, 48).tril(-1 if planted else 0).bool()
    mask = torch.zeros(48, 48).masked_fill(~seen, -math.inf)

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[0], attention_mask=mask.expand(len(batch[0]), 1, -1, -1), labels=batch[0]).loss

    expected = Expected(("masked_rows", "nonfinite", "loss_nonfinite"), ("net*", "loss*"))
    return Built(Recipe(net, loss, adamw(3e-3)), characters(48, 8), SHORT, expected)


@fault("transformers", "VisualBERT, asked what a picture shows: the mask of the picture's pieces was made by zeros_like")
def visual_bert_blind(planted: bool = True) -> Built:
    from transformers import VisualBertConfig, VisualBertModel

    body = VisualBertModel(VisualBertConfig(**ENCODER, visual_embedding_dim=16, initializer_range=0.1))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(48, 10)})
    words = torch.tensor([[ord(character) for character in "what digit?"]])

    def loss(net: Any, batch: Any) -> Tensor:
        pieces = F.unfold(batch[0], 4, stride=4).transpose(1, 2)
        mask = torch.full(pieces.shape[:2], 0 if planted else 1)
        ids = words.expand(len(pieces), -1)
        read = net["body"](ids, torch.ones_like(ids), visual_embeds=pieces, visual_attention_mask=mask)
        return F.cross_entropy(net["head"](read.pooler_output), batch[1])

    expected = Expected((*SAME, *UNMOVED), ("net.body.embeddings.visual*", "net.body*", "net.head*"))
    return Built(Recipe(net, loss, adamw(2e-3)), in_batches(32, *digits(16)), BATCHES, expected)


@fault("lightly", "SimSiam: what the predictor says is detached, and the projection is not")
def simsiam_other_side(planted: bool = True) -> Built:
    from lightly.loss import NegativeCosineSimilarity

    def loss(net: Any, batch: Any) -> Tensor:
        (first, of_first), (second, of_second) = net(batch[0]), net(batch[1])
        made, goal = torch.cat((of_first, of_second)), torch.cat((second, first))
        return NegativeCosineSimilarity()(made.detach() if planted else made, goal)

    module = Recipe(lightly_recipes.SimSiam(not planted), loss, lightly_recipes.sgd(0.03))
    return expecting(lightly_recipes.trained(module), *UNMOVED, "representation_collapse", sites=("net.pr*", "net.backbone*"))
