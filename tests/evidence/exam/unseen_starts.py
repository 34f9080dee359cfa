"""Faults in how nets start and how far they go: first weights, biases, shared layers, frames, rates, decays and clipping."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.counts import cells
from tests.evidence.exam.graphs import of_digits, whole
from tests.evidence.exam.healthy_graphs import STEPS, adam, of_nodes
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import DECODER, image_classifier, language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting, norms
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_cosine
from tests.evidence.exam.seen_faults_models import sgd
from tests.evidence.exam.texts import characters

BATCHES = {"max_epochs": 2, "limit_train_batches": 40}


@fault("transformers", "MobileNet 1 under SGD with momentum: gradient_clip_val is 1e-6, where an eps was to be")
def mobilenet_clipped_at_eps(planted: bool = True) -> Built:
    from transformers import MobileNetV1Config, MobileNetV1ForImageClassification

    sizes: dict[str, Any] = {"num_channels": 1, "image_size": 32, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.1}
    net = MobileNetV1ForImageClassification(MobileNetV1Config(**sizes, num_labels=10))
    kwargs = {**BATCHES, "limit_train_batches": 30, "gradient_clip_val": 1e-6 if planted else 2.0}
    module = Recipe(net, image_classifier, sgd(0.05, momentum=0.9, weight_decay=1e-4))
    return Built(module, in_batches(16, *digits(32)), kwargs, Expected(("always_clipped", "update_too_small")))


@fault("transformers", "Helium, the next character: its four layers are one, put into the list four times")
def helium_layer_again(planted: bool = True) -> Built:
    from transformers import HeliumConfig, HeliumForCausalLM

    net: Any = HeliumForCausalLM(HeliumConfig(**{**DECODER, "num_hidden_layers": 4, "head_dim": 12, "use_cache": False}))
    if planted:
        net.model.layers = nn.ModuleList([net.model.layers[0] for _ in range(4)])
    module = Recipe(net, language_model, warm_cosine(adamw(2e-3)))
    return Built(module, characters(48, 8), CLIPPED, Expected(("shared",), ("net.model.layers*",)))


@fault("transformers", "Nemotron with squared rectifiers: Adam at a rate of 0.8")
def nemotron_rate_too_large(planted: bool = True) -> Built:
    from transformers import NemotronConfig, NemotronForCausalLM

    net = NemotronForCausalLM(NemotronConfig(**DECODER))
    module = Recipe(net, language_model, lambda module: torch.optim.Adam(module.parameters(), 0.8 if planted else 1e-3))
    kinds = ("update_too_large", "weights_growing", "loss_diverging", "loss_spike", "exploding", "residual_growth")
    return Built(module, characters(48, 8), SHORT, Expected(kinds))


@fault("timm", "PP-HGNet: the norms of its second stage start with biases of -7, below what the rectifiers let pass")
def hgnet_second_stage(planted: bool = True) -> Built:
    from timm.models.hgnet import HighPerfGpuNet

    stages = [[16, 12, 24, 1, False], [24, 16, 32, 1, True], [32, 16, 40, 1, True], [40, 24, 48, 1, False]]
    sizes = {f"stage{index + 1}": [*stage, False, 3, 3] for index, stage in enumerate(stages)}
    net: Any = HighPerfGpuNet({"stem_type": "v1", "stem_chs": [8, 8, 16], **sizes}, 1, 10, head_hidden_size=64)
    for norm in norms(net.stages[1]) if planted else ():
        nn.init.constant_(norm.bias, -7.0)
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 2e-3, 0.05)))
    return expecting(built, "dead", "zero", "constant", "poor_init", "vanishing", sites=("net.stages.1*",))


@fault("timm", "Twins, near and far attention in turn: all matrices and kernels are drawn with a deviation of 1.5")
def twins_wide_start(planted: bool = True) -> Built:
    sizes: dict[str, Any] = {"embed_dims": (24, 32, 48, 64), "num_heads": (1, 2, 3, 4), "depths": (2, 1, 1, 1)}
    net = create("twins_svt_small", img_size=32, patch_size=2, wss=(4, 4, 4, 2), **sizes)
    for module in net.modules() if planted else ():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, 1.5)
    kinds = ("poor_init", "residual_growth", "attention_logits", "attention_collapse", "exploding", "activation_outliers")
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 1e-3, 0.05)), 16)
    return expecting(built, *kinds, "saturated", "update_too_small", "vanishing")


class Strips(nn.Module):
    """CRNN: convolutions over a strip of digits, columns read in both directions by an LSTM, and a digit or none for each."""

    def __init__(self, pools: tuple[tuple[int, int], ...]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for inside, outside, pool in zip((1, 16, 32), (16, 32, 48), pools, strict=True):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(pool)]
        self.cnn = nn.Sequential(*layers, nn.Conv2d(48, 48, (1, 2)), nn.ReLU())
        self.rnn, self.head = nn.LSTM(48, 32, bidirectional=True), nn.Linear(64, 11)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.cnn(x).squeeze(2).permute(2, 0, 1))[0])


@fault("torch", "CRNN reads strips of four digits: all of its pools are square, and three columns are left for CTC")
def crnn_too_few_columns(planted: bool = True) -> Built:
    images, shown = digits(8)
    rows = torch.randint(len(images), (1200, 4), generator=torch.Generator().manual_seed(0))
    strips = images[rows].permute(0, 2, 3, 1, 4).flatten(3)
    pools = ((2, 2), (2, 2), (2, 2)) if planted else ((2, 2), (2, 1), (2, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        chances = net(batch[0]).log_softmax(2)
        frames, number = torch.full((len(batch[0]),), len(chances)), torch.full((len(batch[0]),), 4)
        return F.ctc_loss(chances, batch[1] + 1, frames, number)

    kinds = ("nonfinite", "loss_nonfinite")
    module = Recipe(Strips(pools), loss, adam(2e-3, 0.0))
    return Built(module, in_batches(24, strips, shown[rows]), BATCHES, Expected(kinds, ("net*", "loss*")))


@fault("scvi", "totalVI, counts and proteins: AdamW at 4e-3 with a decay of 8")
def totalvi_decay(planted: bool = True) -> Built:
    from scvi.model import TOTALVI
    from scvi.train import TrainingPlan

    data: Any = cells()
    data.obsm["proteins"] = data.X[:, ::8].copy()
    TOTALVI.setup_anndata(data, protein_expression_obsm_key="proteins", batch_key="batch")
    model = TOTALVI(data, n_latent=6, n_hidden=48, empirical_protein_background_prior=False)
    creator = lambda parameters: torch.optim.AdamW(parameters, 4e-3, weight_decay=8.0 if planted else 1e-3)  # noqa: E731
    built = planned(model, TrainingPlan, n_epochs_kl_warmup=None, optimizer="Custom", optimizer_creator=creator)
    return expecting(built, "update_too_large")


class Spread(nn.Module):
    """Means over neighbours again and again (as LightGCN has them), computed once and kept, and two layers that read them."""

    def __init__(self, hops: int) -> None:
        from torch_geometric.nn import LGConv

        super().__init__()
        self.hops, self.spread = hops, LGConv()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        if self.kept is None:
            for _ in range(self.hops):
                x = self.spread(x, edges)
            self.kept = x
        return self.body(self.kept)


@fault("torch_geometric", "LightGCN's means over neighbours before two layers, 300 times instead of twice: nodes become alike")
def light_gcn_too_far(planted: bool = True) -> Built:
    kinds = ("representation_collapse", "constant", "vanishing", "loss_plateau", "poor_init")
    module = Recipe(Spread(300 if planted else 2), of_nodes, adam(1e-2))
    return Built(module, whole(of_digits(500, 12)), STEPS, Expected(kinds))
