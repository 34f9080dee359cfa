"""Trainings by libraries: agents, graphs, adapters, encoders; healthy ones first, then faults."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, Recipe, fault, healthy
from tests.evidence.exam.episodes import Steps, loader
from tests.evidence.exam.graphs import of_digits, of_pixels, whole
from tests.evidence.exam.healthy_timm import create, cross_entropy
from tests.evidence.exam.language_models import DECODER, image_classifier, language_model, vit_net
from tests.evidence.exam.pictures import digits, pictures
from tests.evidence.exam.schedules import adamw, scheduled, warm_cosine
from tests.evidence.exam.signals import digits as coloured
from tests.evidence.exam.texts import batches, characters, stretches
from tests.evidence.exam.unseen_seven_parts import NOTHING_LEARNED, TOO_LITTLE, TOO_MUCH, Scored, adam, halves, mlp

SHORT = {"max_epochs": 2, "limit_train_batches": 75}


class Elite(Recipe):
    """Does what was done in the stretches that lasted longest (the cross-entropy method)."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        lasted = batch["ended"].cumsum(0).lt(1).sum(0).float()
        self.log("lasted", lasted.mean())
        best = lasted >= lasted.quantile(0.7)
        kept = batch["ended"].cumsum(0)[:, best] < 1
        told = self.net(batch["observations"][:, best][kept])
        return F.cross_entropy(told, batch["actions"][:, best][kept])


@healthy("gymnasium", "the cross-entropy method in CartPole: of eight stretches the longest are imitated, Adam at 0.01, tanh")
def agent_of_the_elite() -> Built:
    net = mlp(4, 64, 2, act=nn.Tanh)

    def choose(seen: Tensor) -> Tensor:
        return torch.multinomial(net(seen).softmax(-1), 1)[:, 0]

    data = loader(Steps("CartPole-v1", choose, steps=48, copies=8, batches=75))
    return Built(Elite(net, None, adam(0.01)), data, {"max_epochs": 2}, Expected())


@healthy(
    "torch_geometric", "GraphMAE: half of the nodes are hidden, their features are drawn again under a scaled cosine error, AdamW"
)
def graph_hidden_nodes() -> Built:
    from torch_geometric.nn import GATConv, Sequential

    def layers(before: int, after: int, heads: int) -> Any:
        parts = [(GATConv(before, 32 // heads, heads), "x, edges -> x"), nn.PReLU(), (GATConv(32, after), "x, edges -> x")]
        return Sequential("x, edges", parts)

    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode, self.hidden = layers(64, 32, 4), layers(32, 64, 4), nn.Parameter(torch.zeros(64))

        def forward(self, graph: Any) -> Tensor:
            chosen = torch.rand(len(graph.x), 1) < 0.5
            codes = self.encode(torch.where(chosen, self.hidden, graph.x), graph.edge_index)
            drawn = self.decode(codes * ~chosen, graph.edge_index)
            return (1 - F.cosine_similarity(drawn, graph.x)[chosen[:, 0]]).square().mean()

    module = Recipe(Hides(), lambda net, batch: net(batch), adamw(3e-3, 2e-4))
    return Built(module, whole(of_digits()), {"max_epochs": 150}, Expected())


@healthy(
    "transformers", "Gemma 3 that prefers text as it stands to shuffled text: likelihood and log odds in one loss (ORPO), a cosine"
)
def gemma3_odds_ratio() -> Built:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    rows = stretches(32)

    def said(net: Any, ids: Tensor) -> Tensor:
        told = net(input_ids=ids).logits[:, :-1].log_softmax(-1)
        return told.gather(-1, ids[:, 1:, None])[..., 0].mean(1)

    def loss(net: Any, batch: Any) -> Tensor:
        good, bad = said(net, batch[0]), said(net, batch[1])
        odds = good - bad - (torch.log1p(-good.exp().clamp_max(0.999)) - torch.log1p(-bad.exp().clamp_max(0.999)))
        return -good.mean() - 0.1 * F.logsigmoid(odds).mean()

    config = Gemma3TextConfig(
        **{**DECODER, "head_dim": 12, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    )
    shuffled = rows[:, torch.randperm(32, generator=torch.Generator().manual_seed(0))]
    module = Recipe(Gemma3ForCausalLM(config), loss, warm_cosine(adamw(3e-3), 150))
    return Built(module, batches(8, rows, shuffled), {**SHORT, "gradient_clip_val": 1.0}, Expected())


@healthy(
    "transformers",
    "DINOv3's encoder with rotary places and registers tells digits, layer scale, AdamW, smoothed labels, two batches a step",
)
def dinov3_digits() -> Built:
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 16}
    body = DINOv3ViTModel(DINOv3ViTConfig(**sizes, patch_size=4, num_register_tokens=2))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(48, 10)})

    def loss(net: Any, batch: Any) -> Tensor:
        told = net["head"](net["body"](pixel_values=batch[0]).pooler_output)
        return F.cross_entropy(told, batch[1], label_smoothing=0.05)

    kwargs = {"max_epochs": 4, "accumulate_grad_batches": 2}
    return Built(Recipe(net, loss, adamw(3e-3, 0.05)), coloured(16, 32), kwargs, Expected())


def swings(number: int, kept_apart: bool) -> tuple[Tensor, Tensor]:
    """Pendulums under chance torques: angle, speed and torque, and what changes in a step."""
    import gymnasium
    import numpy as np

    world, buffer = gymnasium.make("Pendulum-v1"), np.zeros(4, dtype=np.float32)
    world.action_space.seed(0)
    rows, changes = [], []
    seen, _ = world.reset(seed=0)
    for step in range(number):
        torque = world.action_space.sample()
        after, _, _, _, _ = world.step(torque)
        buffer[:3], buffer[3:] = seen, torque
        rows.append(buffer.copy() if kept_apart else buffer)
        changes.append(after - seen)
        seen = world.reset()[0] if step % 100 == 99 else after
    return torch.tensor(np.stack(rows)), torch.tensor(np.stack(changes))


@fault("gymnasium", "a model of Pendulum: each row of its memory is one and the same array, which is overwritten at every step")
def pendulum_one_buffer(planted: bool = True) -> Built:
    x, changes = swings(4000, kept_apart=True)
    data = halves(64, x, changes)
    if planted:
        data |= batches(64, *swings(3200, kept_apart=False))
    module = Scored(mlp(4, 64, 3), lambda net, batch: 10 * F.mse_loss(net(batch[0]), batch[1]), adam(2e-3))
    kinds = ("constant", "representation_collapse", "batch_repeated", "validation_shift", *NOTHING_LEARNED)
    return Built(module, data, {"max_epochs": 4}, Expected(kinds))


@fault("torch_geometric", "graphs are put together by torch.cat alone: the edges of all of them join the nodes of the first")
def pixels_edges_of_the_first(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = GCNConv(1, 48), GCNConv(48, 48), mlp(48, 48, 10)

        def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
            x = F.relu(self.second(F.relu(self.first(x, edges)), edges))
            return self.head(global_mean_pool(x, graph))

    def collate(graphs: list[Any]) -> Any:
        edges = [each.edge_index + (0 if planted else 64 * place) for place, each in enumerate(graphs)]
        graph = torch.arange(len(graphs)).repeat_interleave(64)
        return torch.cat([each.x[:, :1] for each in graphs]), torch.cat(edges, 1), graph, torch.stack([each.y for each in graphs])

    data = DataLoader(of_pixels(), 32, shuffle=True, drop_last=True, collate_fn=collate)
    module = Recipe(Net(), lambda net, batch: F.cross_entropy(net(*batch[:3]), batch[3]), adam(5e-3))
    return Built(
        module, {"train_dataloaders": data}, {"max_epochs": 5}, Expected((*NOTHING_LEARNED, "activation_outliers", "constant"))
    )


@fault("timm", "a vision transformer: pixels of 0 to 1 are put to (x - 128) / 64, as if they were bytes, and are all -2")
def vit_nothing_but_minus_two(planted: bool = True) -> Built:
    images, shown = digits(32)
    images = (images - images.min()) / (images.max() - images.min())
    images = (images - 128) / 64 if planted else (images - 0.5) / 0.25
    net = create("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, pre_norm=True)
    kinds = ("constant", "representation_collapse", "attention_uniform", "settings", *NOTHING_LEARNED)
    return Built(Scored(net, cross_entropy, adamw(2e-3)), halves(32, images, shown), {"max_epochs": 4}, Expected(kinds))


@fault("peft", "LoRA of a ViT with a new classifier that is not among modules_to_save: it stays as it was drawn")
def lora_classifier_left_out(planted: bool = True) -> Built:
    from peft import LoraConfig, get_peft_model

    head = None if planted else ["classifier"]
    net = get_peft_model(vit_net(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=head))
    kinds = ("not_optimized", "not_updated", "missing", "part_not_learning", *NOTHING_LEARNED, *TOO_LITTLE)
    expected = Expected(kinds, ("*classifier*",))
    return Built(Recipe(net, image_classifier, adamw(5e-3)), coloured(16, 32), {"max_epochs": 3}, expected)


@fault("peft", "LoRA of a GPT-Neo under lora_alpha of 0.016 where 16 was meant: what it adds counts a five-hundredth")
def lora_alpha_of_little(planted: bool = True) -> Built:
    from peft import LoraConfig, get_peft_model
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16}
    net = GPTNeoForCausalLM(GPTNeoConfig(vocab_size=128, max_position_embeddings=64, bos_token_id=2, eos_token_id=3, **sizes))
    config = LoraConfig(r=8, lora_alpha=0.016 if planted else 16, target_modules=["q_proj", "v_proj", "c_fc", "c_proj", "lm_head"])
    module = Recipe(get_peft_model(net, config), language_model, adamw(5e-3))
    kinds = (*TOO_LITTLE, *NOTHING_LEARNED, "settings", "poor_init", "vanishing")
    return Built(module, characters(48, 8), SHORT, Expected(kinds))


@fault(
    "transformers",
    "DINOv2 with registers: a rate for each part that grows towards the head, 1e-3 times 30 ** n, not 0.7 ** n from it",
)
def dinov2_rates_that_grow(planted: bool = True) -> Built:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4, "mlp_ratio": 2}
    net = Dinov2WithRegistersForImageClassification(Dinov2WithRegistersConfig(**sizes, num_labels=10))

    def optimizers(module: Any) -> Any:
        body = module.net.dinov2_with_registers
        parts = (body.embeddings, nn.ModuleList([body.encoder, body.layernorm]), module.net.classifier)
        rates = [1e-3 * 30**depth if planted else 2e-3 * 0.7 ** (2 - depth) for depth in range(3)]
        return torch.optim.AdamW([{"params": part.parameters(), "lr": rate} for part, rate in zip(parts, rates, strict=True)])

    falling = scheduled(optimizers, lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 168))
    kinds = (
        *TOO_MUCH,
        *NOTHING_LEARNED,
        "saturated",
        "representation_collapse",
        "constant",
        "attention_logits",
        "attention_collapse",
    )
    return Built(Recipe(net, image_classifier, falling), coloured(16, 32), {"max_epochs": 3}, Expected(kinds))


@fault("timm", "a net of depthwise convolutions: pictures of one channel lose their mean over channels, which is all they are")
def channels_lose_their_mean(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        images = batch[0] - batch[0].mean(1 if planted else (1, 2, 3), keepdim=True)
        return F.cross_entropy(net(images), batch[1])

    kinds = ("constant", "zero", "representation_collapse", "dead", "missing", *NOTHING_LEARNED)
    module = Recipe(create("test_convnext"), loss, adamw(2e-3))
    return Built(module, pictures(32, 32), {"max_epochs": 2}, Expected(kinds))
