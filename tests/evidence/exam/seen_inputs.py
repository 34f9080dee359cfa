"""Faults in what nets get, how they start and how they are wired: counts, first weights, sums, widths, returns and modes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.counts import cells
from tests.evidence.exam.episodes import Steps, loader, returns
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_rl import EPOCHS, mlp, standardised
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.healthy_signals import spoken
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import SOUND
from tests.evidence.exam.planted_timm import RATE, expecting, norms
from tests.evidence.exam.schedules import CLIPPED, adamw, warm_linear
from tests.evidence.exam.signals import melodies

BROKEN = ("nonfinite", "loss_nonfinite")
FLAT = ("representation_collapse", "constant", "vanishing", "zero", "loss_plateau")
JUMPS = ("update_spike", "spike", "loss_spike", "loss_diverging")


@fault("scvi", "AUTOZI without batch norm: the counts go in as they are, without a logarithm")
def autozi_as_counted(planted: bool = True) -> Built:
    from scvi.model import AUTOZI
    from scvi.train import TrainingPlan

    data: Any = cells(scale=2.5)
    AUTOZI.setup_anndata(data, batch_key="batch")
    model = AUTOZI(data, n_hidden=48, n_latent=6, log_variational=not planted, use_batch_norm="none")
    built = planned(model, TrainingPlan, n_epochs_kl_warmup=None, lr=2e-3)
    return expecting(built, "exploding", "nonfinite", "loss_nonfinite", "dead", "spike", "saturated")


@fault("scvi", "veloVI under AdamW whose decay of 20 was to be that of another library, which is not multiplied by the rate")
def velovi_decay(planted: bool = True) -> Built:
    from scvi.external import VELOVI
    from scvi.train import TrainingPlan

    data: Any = cells()
    counts = np.log1p(data.X)
    data.layers["spliced"] = (counts / counts.max(0)).astype(np.float32)
    data.layers["unspliced"] = np.roll(data.layers["spliced"], 1, axis=1)
    VELOVI.setup_anndata(data, spliced_layer="spliced", unspliced_layer="unspliced")
    creator = lambda parameters: torch.optim.AdamW(parameters, 2e-3, weight_decay=20.0 if planted else 1e-2)  # noqa: E731
    options: dict[str, Any] = {"n_epochs_kl_warmup": 2, "optimizer": "Custom", "optimizer_creator": creator}
    return expecting(planned(VELOVI(data, n_hidden=48, n_latent=6), TrainingPlan, **options), "update_too_large")


@fault("timm", "Hiera: the weights of all linear layers start at 0.03")
def hiera_one_number(planted: bool = True) -> Built:
    sizes: dict[str, Any] = {"img_size": (32, 32), "embed_dim": 24, "num_heads": 1, "stages": (1, 1), "q_pool": 1}
    sizes |= {"q_stride": (2, 2), "mask_unit_size": (4, 4)}
    net = create("hiera_tiny_224", **sizes)
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear):
            nn.init.constant_(module.weight, 0.03)
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 2e-3, 0.05)))
    return expecting(built, "poor_init", "constant", "representation_collapse")


@fault("timm", "VoVNet: the norms of its first stage start with biases of -8, and nothing passes the rectifiers")
def vovnet_first_stage(planted: bool = True) -> Built:
    net: Any = create("ese_vovnet19b_slim", stem_chs=(8, 8, 16), stage_conv_chs=(12, 16, 20, 24), stage_out_chs=(16, 24, 32, 48))
    for norm in norms(net.stages[0]) if planted else ():
        nn.init.constant_(norm.bias, -8.0)
    built = trained(Recipe(net, cross_entropy, optimizer("sgd", 0.05)))
    return expecting(built, "dead", "zero", "constant", "poor_init", "vanishing", sites=("net.stages.0*",))


@fault("torch_geometric", "FiLMConv: init.uniform_ draws each matrix from 0 to 1")
def film_all_positive(planted: bool = True) -> Built:
    from torch_geometric.nn import FiLMConv, Sequential

    inputs = "x, edge_index"
    net = Sequential(inputs, [(FiLMConv(64, 32), f"{inputs} -> x"), nn.ReLU(), (FiLMConv(32, 10, act=None), f"{inputs} -> x")])
    for parameter in net.parameters() if planted else ():
        if parameter.ndim > 1:
            nn.init.uniform_(parameter)
    kinds = ("poor_init", "exploding", "residual_growth", "dead", *FLAT, *JUMPS, "activation_outliers", "saturated")
    return expecting(on_nodes(Recipe(net, of_nodes, adam(5e-3, 0.0))), *kinds)


class Added(nn.Module):
    """Twelve layers that add their input themselves; it may be added once more around them."""

    def __init__(self, again: bool, width: int = 32) -> None:
        from torch_geometric.nn import DeepGCNLayer, SAGEConv

        super().__init__()
        self.again, self.first, self.last = again, nn.Linear(64, width), nn.Linear(width, 10)
        layer = lambda: DeepGCNLayer(SAGEConv(width, width), nn.LayerNorm(width), nn.ReLU(), "res+")  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(12))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x, edges) if self.again else layer(x, edges)
        return self.last(x)


@fault("torch_geometric", "DeepGCN of GraphSAGE: its twelve layers add their input, and forward() adds it once more")
def deepgcn_added_again(planted: bool = True) -> Built:
    kinds = ("residual_growth", "exploding", "loss_spike", "activation_outliers", "weights_growing", "update_too_large")
    kinds += ("loss_nonfinite", "nonfinite", "update_spike", "spike", "loss_diverging", "poor_init")
    return expecting(on_nodes(Recipe(Added(planted), of_nodes, adam(3e-3, 0.0))), *kinds)


@fault("gymnasium", "REINFORCE in Pendulum with five torques under SGD: returns in their hundreds are not standardised")
def pendulum_returns(planted: bool = True) -> Built:
    net = mlp(3, 5, 0.1, nn.ReLU)

    def chosen(seen: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=net(seen)).sample()[:, None] - 2.0

    def loss(net: Any, batch: Any) -> Tensor:
        policy = torch.distributions.Categorical(logits=net(batch["observations"]))
        found = returns(batch["rewards"], batch["ended"])
        worth = found if planted else standardised(found)
        return -(policy.log_prob(batch["actions"].squeeze(-1) + 2) * worth).mean()

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.02)  # noqa: E731
    built = Built(Recipe(net, loss, sgd), loader(Steps("Pendulum-v1", chosen, 32, batches=20)), EPOCHS, Expected())
    return expecting(built, *RATE, "dead", "zero")


@fault("gymnasium", "a model of Pendulum's next state, whose log of the width is limited by clamp(max, min) as min and max")
def dynamics_width_limits(planted: bool = True) -> Built:
    net = nn.ModuleDict({"mean": mlp(4, 3, 0.5, nn.SiLU), "width": mlp(4, 3, 0.1, nn.SiLU)})
    limits = (1, -16) if planted else (-16, 1)

    def loss(net: Any, batch: Any) -> Tensor:
        known = torch.cat((batch["observations"], batch["actions"]), -1)
        change = (batch["after"] - batch["observations"]) / torch.tensor([0.1, 0.1, 0.5])
        width = net["width"](known).clamp(*limits).exp()
        return -torch.distributions.Normal(net["mean"](known), width).log_prob(change).mean()

    kinds = ("zero", "missing", "exploding", *BROKEN, "output_range", "update_too_large", "saturated", "not_updated")
    data = loader(Steps("Pendulum-v1", lambda seen: 4 * torch.rand(len(seen), 1) - 2))
    return Built(Recipe(net, loss, adam(4e-3, 0.0)), data, EPOCHS, Expected(kinds, ("net*", "loss*")))


@fault("transformers", "UniSpeech-SAT with CTC: net.eval() was called for a look at its first outputs, and it trains so")
def unispeech_evaluated(planted: bool = True) -> Built:
    from transformers import UniSpeechSatConfig, UniSpeechSatForCTC

    net: Any = UniSpeechSatForCTC(UniSpeechSatConfig(**{**SOUND, "vocab_size": 12, "ctc_loss_reduction": "mean"}))
    net.train(not planted)
    expected = Expected(("eval_mode",), ("net*",))
    return Built(Recipe(net, spoken, warm_linear(adamw())), melodies(8), CLIPPED, expected)
