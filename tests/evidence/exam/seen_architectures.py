"""Healthy trainings of libraries' models that no other module of the exam has, by the examples of these libraries."""

from __future__ import annotations

import functools
import html.entities
import inspect
import itertools
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.counts import cells
from tests.evidence.exam.healthy_forecasting import trained as forecast
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.healthy_timm import create, mixed, optimizer, with_cosine
from tests.evidence.exam.healthy_timm import trained as on_digits
from tests.evidence.exam.language_models import PICTURES, TOKENS, language_model
from tests.evidence.exam.schedules import CLIPPED, adamw, decayed_apart, scheduled, warm_cosine, warm_linear
from tests.evidence.exam.seen_models import gpt_neo_net
from tests.evidence.exam.signals import captioned
from tests.evidence.exam.texts import VOCABULARY, batches, characters, codes_of

WELL = Expected()


@healthy(
    "transformers", "Reformer: reversible blocks, which compute their activations again going backward, local and hashed attention"
)
def reformer() -> Built:
    from transformers import ReformerConfig, ReformerModelWithLMHead

    places = {"axial_pos_shape": (6, 8), "axial_pos_embds_dim": (16, 32), "max_position_embeddings": 48}
    lengths = {"local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16, "num_buckets": 4, "num_hashes": 2}
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "attention_head_size": 12, "feed_forward_size": 96}
    layers = ["local", "lsh", "local"]
    config = ReformerConfig(vocab_size=VOCABULARY, **sizes, **lengths, **places, attn_layers=layers, is_decoder=True, **TOKENS)
    net = ReformerModelWithLMHead(config)
    return Built(Recipe(net, language_model, warm_linear(adamw(2e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "RecurrentGemma: gated linear recurrences between local attention, beta2 of 0.95, a warm-up and a cosine")
def recurrent_gemma() -> Built:
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "lru_width": 48}
    config = RecurrentGemmaConfig(vocab_size=VOCABULARY, **sizes, intermediate_size=96, attention_window_size=16, **TOKENS)
    net = RecurrentGemmaForCausalLM(config)
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(3e-3))), characters(32, 8), CLIPPED, WELL)


@healthy("transformers", "gpt-oss: a sink in each head's softmax, four experts, two batches a step, warm up, stay, decay")
def gpt_oss() -> Built:
    from transformers import GptOssConfig, GptOssForCausalLM, get_wsd_schedule

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.01}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    options: dict[str, Any] = {**sizes, **experts, **TOKENS, "intermediate_size": 64, "sliding_window": 16, "rope_parameters": rope}
    net = GptOssForCausalLM(GptOssConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **options))
    steps = functools.partial(get_wsd_schedule, num_warmup_steps=4, num_decay_steps=8, num_training_steps=30)
    limits = {**CLIPPED, "limit_train_batches": 30, "accumulate_grad_batches": 2}
    return Built(Recipe(net, language_model, scheduled(decayed_apart(2e-3), steps)), characters(48, 8), limits, WELL)


@healthy("transformers", "ImageGPT writes digits pixel by pixel, in seventeen colours, Adam's beta2 of 0.95")
def image_gpt() -> Built:
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=F.pad(batch[0], (1, 0), value=17), labels=F.pad(batch[0], (1, 0), value=17)).loss

    net = ImageGPTForCausalImageModeling(ImageGPTConfig(vocab_size=18, n_positions=65, n_embd=48, n_layer=2, n_head=4))
    pixels = torch.tensor(load_digits().data).long()
    optimizers = warm_cosine(adamw(3e-3, betas=(0.9, 0.95)))
    return Built(Recipe(net, loss, optimizers), batches(16, pixels), CLIPPED, WELL)


@functools.cache
def swings(episodes: int = 64, steps: int = 60) -> tuple[Tensor, ...]:
    """What a controller that pumps energy sees, does and still gets in Pendulum; each with more or less noise."""
    import gymnasium

    worlds = gymnasium.make_vec("Pendulum-v1", episodes, vectorization_mode="sync")
    random = np.random.default_rng(0)
    noise = random.uniform(0.1, 1.5, episodes)
    seen, rows = worlds.reset(seed=0)[0], []
    for _ in range(steps):
        cosine, sine, speed = seen.T
        falls = np.clip(8 * np.arctan2(sine, cosine) + 2 * speed, -2, 2) * -1
        force = np.where(cosine > 0.8, falls, 2 * np.sign(speed))
        action = np.clip(force + noise * random.standard_normal(episodes), -2, 2).astype(np.float32)[:, None]
        after, reward, *_ = worlds.step(action)
        rows.append((seen, action / 2, reward[:, None]))
        seen = after
    states, actions, rewards = (torch.tensor(np.stack(row, 1)).float() for row in zip(*rows, strict=True))
    return states * torch.tensor([1, 1, 0.25]), actions, rewards.flip(1).cumsum(1).flip(1) / 300


@healthy(
    "transformers and gymnasium", "decision transformer of Pendulum: only actions are in its loss, as in its paper, clipped at 0.25"
)
def decision_transformer() -> Built:
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    def loss(net: Any, batch: Any) -> Tensor:
        start = int(torch.randint(40, ()))
        states, actions, goals = (rows[:, start : start + 20] for rows in batch)
        times = torch.arange(start, start + 20).expand(len(states), -1)
        seen = torch.ones_like(times)
        found = net(states, actions, rewards=None, returns_to_go=goals, timesteps=times, attention_mask=seen)
        return F.mse_loss(found.action_preds, actions)

    sizes = {"state_dim": 3, "act_dim": 1, "hidden_size": 48, "n_layer": 2, "n_head": 4, "max_ep_len": 64, **TOKENS}
    net = DecisionTransformerModel(DecisionTransformerConfig(**sizes))
    module = Recipe(net, loss, warm_linear(adamw(1e-3, 1e-4), 80, 8))
    return Built(module, batches(16, *swings()), {"max_epochs": 20, "gradient_clip_val": 0.25}, WELL)


@healthy("transformers", "GIT writes what a picture shows: image tokens stand before the text in one decoder")
def git_captions() -> Built:
    from transformers import GitConfig, GitForCausalLM

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    net = GitForCausalLM(GitConfig(vision_config=PICTURES, vocab_size=VOCABULARY, max_position_embeddings=16, **sizes, **TOKENS))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[1], pixel_values=batch[0], labels=batch[1]).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), captioned(16, 16), CLIPPED, WELL)


@healthy("timm", "Sequencer: LSTMs along rows and columns, Adafactor at a fixed rate with a cosine")
def timm_sequencer() -> Built:
    sizes = {"img_size": 32, "layers": (1, 1, 1, 1), "patch_sizes": (4, 2, 1, 1), "embed_dims": (24, 48, 48, 48)}
    net = create("sequencer2d_s", **sizes, hidden_sizes=(8, 12, 12, 12), mlp_ratios=(3.0, 3.0, 3.0, 3.0))
    loss = lambda net, batch: F.cross_entropy(net(batch[0]), batch[1])  # noqa: E731
    return on_digits(Recipe(net, loss, with_cosine(optimizer("adafactorbv", 1e-2, 0.01))))


@healthy("timm", "multiscale vision transformer, mixup and CutMix, binary cross entropy over soft targets, ADOPT")
def timm_mvit() -> Built:
    from timm.data import Mixup
    from timm.loss import BinaryCrossEntropy
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    mixup, entropy = Mixup(0.1, 1.0, num_classes=10, label_smoothing=0.1), BinaryCrossEntropy(smoothing=0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        images, targets = mixup(batch[0].clone(), batch[1])
        return entropy(net(images), targets)

    config = MultiScaleVitCfg(depths=(1, 1, 1), embed_dim=(24, 48, 96), num_heads=(1, 2, 4), stride_kv_adaptive=(2, 2))
    net = MultiScaleVit(config, (32, 32), in_chans=1, num_classes=10)
    return on_digits(Recipe(net, loss, with_cosine(optimizer("adopt", 2e-3, 0.05), 40)), limit_train_batches=20)


@healthy("timm", "ReXNet with mixup, RAdam whose slow weights look ahead")
def timm_rexnet() -> Built:
    net = create("rexnet_100", width_mult=0.3, depth_mult=0.3, initial_chs=16, final_chs=64, drop_path_rate=0.05)
    return on_digits(Recipe(net, mixed, optimizer("lookahead_radam", 5e-3, 1e-4)), limit_train_batches=16)


class Molecules(nn.Module):
    """SchNet whose atoms are all joined within a molecule."""

    def __init__(self) -> None:
        from torch_geometric.nn.models import SchNet

        super().__init__()
        self.net = SchNet(32, 32, 3, 24, cutoff=6.0, interaction_graph=self.joined)

    @staticmethod
    def joined(places: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        same = (batch[:, None] == batch) & ~torch.eye(len(batch), dtype=torch.bool)
        edges = same.nonzero().T
        return edges, (places[edges[0]] - places[edges[1]]).norm(dim=1)

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        batch = torch.arange(len(kinds)).repeat_interleave(kinds.shape[1])
        return self.net(kinds.flatten(), places.flatten(0, 1), batch).squeeze(1)


@healthy(
    "torch_geometric", "SchNet: energies of clusters of six simulated atoms, mean absolute error, an exponential decay of the rate"
)
def graphs_schnet() -> Built:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(1, 4, (1200, 6), generator=generator)
    grid = torch.tensor([[x, y, z] for x in (0.0, 1.6) for y in (0.0, 1.6) for z in (0.0, 1.6)])
    chosen = torch.rand(1200, 8, generator=generator).argsort(1)[:, :6]
    places = grid[chosen] + 0.2 * torch.randn(1200, 6, 3, generator=generator)
    far = (places[:, :, None] - places[:, None] + 1e-3).norm(dim=3) + 10 * torch.eye(6)
    pairs = (kinds[:, :, None] * kinds[:, None]).float() * ((1 - (-(far - 1.6)).exp()).square() - 1)
    energy = pairs.sum((1, 2)) / 2
    energy = (energy - energy.mean()) / energy.std()
    loss = lambda net, batch: F.l1_loss(net(batch[0], batch[1]), batch[2])  # noqa: E731
    decay = scheduled(adamw(3e-3, 0.0), lambda chosen: torch.optim.lr_scheduler.ExponentialLR(chosen, 0.98))
    return Built(Recipe(Molecules(), loss, decay), batches(32, kinds, places, energy), {**CLIPPED, "max_epochs": 3}, WELL)


@healthy(
    "torch_geometric",
    "metapath2vec over pictures and their bright pixels: sparse gradients and SparseAdam, as in the library's example",
)
def graphs_metapath() -> Built:
    from torch_geometric.nn import MetaPath2Vec

    rows, columns = torch.tensor(load_digits().data[:500] > 10).nonzero().T
    has, within = ("picture", "has", "pixel"), ("pixel", "within", "picture")
    edges = {has: torch.stack((rows, columns)), within: torch.stack((columns, rows))[:, columns.argsort(stable=True)]}
    net = MetaPath2Vec(edges, 32, [has, within], 10, 5, 2, 2, {"picture": 500, "pixel": 64}, sparse=True)
    loss = lambda net, batch: net.loss(*batch)  # noqa: E731
    sparse = lambda module: torch.optim.SparseAdam(list(module.parameters()), 0.01)  # noqa: E731
    data = {"train_dataloaders": net.loader(batch_size=16, shuffle=True, num_workers=0)}
    return Built(Recipe(net, loss, sparse), data, {"max_epochs": 3}, WELL)


@healthy("scvi", "SysVI: a mixture of posteriors of pseudo-inputs is the prior, cycles between batches are in the loss")
def scvi_sysvi() -> Built:
    from scvi.external import SysVI
    from scvi.train import TrainingPlan

    data = cells(log=True)
    SysVI.setup_anndata(data, batch_key="batch")
    model = SysVI(data, n_latent=8, n_hidden=48, n_layers=2)
    return planned(model, TrainingPlan)


@healthy("scvi", "scAR: what ambient noise adds to counts, a binomial likelihood, the library's own plan")
def scvi_ambient() -> Built:
    from scvi.external import SCAR
    from scvi.train import TrainingPlan

    data = cells()
    SCAR.setup_anndata(data)
    return planned(SCAR(data, n_hidden=48, n_latent=8), TrainingPlan)


@healthy("pytorch_forecasting", "TiDE: dense encoder and decoder with a linear skip from the past, clipped at 0.1")
def forecasting_tide() -> Built:
    from pytorch_forecasting.models.tide import TiDEModel

    return forecast(TiDEModel, learning_rate=5e-3, hidden_size=32, decoder_output_dim=8, temporal_decoder_hidden=16)


@healthy("peft", "HRA: Householder reflections of a GPT-Neo that has read code and now reads a table of names, linear decay")
def hra() -> Built:
    from peft import HRAConfig

    net = gpt_neo_net()
    learn(net, language_model, characters(48, 8), 80)
    config = HRAConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "c_fc"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(net, config), language_model, warm_linear(adamw(2e-2)))
    codes = codes_of(inspect.getsource(html.entities))
    return Built(module, batches(8, codes[: len(codes) // 48 * 48].view(-1, 48)), CLIPPED, WELL)


def learn(net: nn.Module, loss: Any, data: dict[str, Any], steps: int, rate: float = 3e-3) -> None:
    """What was learnt before: a net as it would be downloaded, after a short training of its own."""
    chosen = torch.optim.AdamW(net.parameters(), rate)
    for _, batch in zip(range(steps), itertools.chain.from_iterable(itertools.repeat(data["train_dataloaders"])), strict=False):
        chosen.zero_grad()
        loss(net, batch).backward()
        chosen.step()
    net.zero_grad(set_to_none=True)
