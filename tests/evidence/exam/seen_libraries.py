"""Healthy trainings with parts of libraries, from lightly to torchvision, that no other module of the exam has."""

from __future__ import annotations

import html.entities
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.counts import cells
from tests.evidence.exam.graphs import of_digits, whole
from tests.evidence.exam.healthy_diffusers import trained as on_small_digits
from tests.evidence.exam.healthy_forecasting import trained as forecast
from tests.evidence.exam.healthy_graphs import adam, on_nodes
from tests.evidence.exam.healthy_lightly import backbone
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.language_models import language_model, llama_net
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import CLIPPED, adamw, scheduled, warm_cosine, warm_linear
from tests.evidence.exam.seen_architectures import learn
from tests.evidence.exam.texts import batches, characters, codes_of

WELL = Expected()


@healthy("lightly", "LeJEPA: views lie near their mean, and random projections of all are to be Gaussian, AdamW and a cosine")
def lightly_gaussian() -> Built:
    from lightly.loss import LeJEPALoss
    from lightly.models.modules import LeJEPAProjectionHead

    criterion = LeJEPALoss(sigreg_num_vectors=128)

    def loss(net: Any, batch: Any) -> Tensor:
        said = net(torch.cat(list(batch))).view(len(batch), len(batch[0]), -1)
        return criterion(local_proj=said[2:], global_proj=said[:2])

    net = nn.Sequential(backbone(), LeJEPAProjectionHead(48, 64, 16))
    return on_views(Recipe(net, loss, warm_cosine(adamw(2e-3, 0.05), 50, 5)), 4, limit_train_batches=25)


@healthy("diffusers", "Flux at a tiny size: two streams, then one, rectified flow at times of a logistic normal, clipped at 1")
def diffusers_flux() -> Built:
    from diffusers import FluxTransformer2DModel
    from diffusers.training_utils import compute_density_for_timestep_sampling as times

    heads = {"attention_head_dim": 16, "num_attention_heads": 3, "axes_dims_rope": (4, 6, 6)}
    net: Any = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=2, joint_attention_dim=16, pooled_projection_dim=16, **heads
    )
    words = torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(0))
    place = torch.stack(torch.meshgrid(torch.zeros(1), torch.arange(4.0), torch.arange(4.0), indexing="ij"), -1).view(16, 3)

    def loss(net: Any, batch: Any) -> Tensor:
        tokens = F.pixel_unshuffle(batch[0], 2).flatten(2).transpose(1, 2)
        noise, time = torch.randn_like(tokens), times("logit_normal", len(tokens), 0.0, 1.0)
        mixed = time[:, None, None] * noise + (1 - time[:, None, None]) * tokens
        said = words[batch[1]]
        places: dict[str, Any] = {"img_ids": place, "txt_ids": torch.zeros(2, 3)}
        found = net(mixed, said, said.mean(1), time, **places, return_dict=False)[0]
        return F.mse_loss(found, noise - tokens)

    module = Recipe(net, loss, warm_cosine(adamw(2e-3, 1e-4), 70, 7))
    return on_small_digits(module, limit_train_batches=35, gradient_clip_val=1.0)


@healthy("diffusers", "aMUSEd's U-ViT finds pixels in four shades that are hidden, the share by a cosine, smoothed labels, AdamW")
def diffusers_masked() -> Built:
    from diffusers import UVit2DModel

    sizes = {"hidden_size": 48, "cond_embed_dim": 16, "micro_cond_encode_dim": 8, "micro_cond_embed_dim": 40, "in_channels": 32}
    sizes |= {"encoder_hidden_size": 16, "block_out_channels": 32, "num_res_blocks": 1, "intermediate_size": 96, "sample_size": 8}
    heads = {"block_num_heads": 4, "num_attention_heads": 4, "num_hidden_layers": 2}
    net: Any = UVit2DModel(vocab_size=6, codebook_size=4, **sizes, **heads)
    words = torch.randn(10, 2, 16, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        codes = ((batch[0][:, 0] + 0.82) / 0.67).long().clamp(0, 3)
        share = torch.cos(torch.rand(len(codes), 1, 1) * torch.pi / 2)
        hidden = torch.rand(codes.shape) < share.clamp_min(0.05)
        said = words[batch[1]]
        logits = net(codes.masked_fill(hidden, 5), said, said.mean(1), torch.ones(len(codes), 5))
        return F.cross_entropy(logits, codes.masked_fill(~hidden, -100), ignore_index=-100, label_smoothing=0.1)

    return on_small_digits(Recipe(net, loss, warm_linear(adamw(1e-3), 50, 5)), gradient_clip_val=1.0)


def reader() -> Any:
    """A Llama that has read code."""
    net = llama_net()
    learn(net, language_model, characters(48, 8), 60)
    return net


def names() -> dict[str, Any]:
    """A table of names, which is not like other code."""
    codes = codes_of(inspect.getsource(html.entities))
    return batches(8, codes[: len(codes) // 48 * 48].view(-1, 48))


@healthy("peft", "MiSS: one small matrix for all shards of each layer of a Llama that has read code and goes on with names")
def miss() -> Built:
    from peft import MissConfig

    config = MissConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(3e-3)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("peft", "PiSSA: adapters begin with the largest singular values of a Llama that has read code, a cosine")
def pissa() -> Built:
    from peft import LoraConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=8, lora_alpha=8, init_lora_weights="pissa", target_modules=targets, task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_cosine(adamw(1e-3, 0.0)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("scvi", "Stereoscope: the profile of each type of cell from counts, no net, a negative binomial, Adam at 0.01")
def scvi_stereoscope() -> Built:
    from scvi.external import RNAStereoscope
    from scvi.train import TrainingPlan

    data: Any = cells()
    RNAStereoscope.setup_anndata(data, labels_key="type")
    return planned(RNAStereoscope(data), TrainingPlan, lr=0.01)


class Adversarial(Recipe):
    """ARGVA, as the library's example trains it: a judge of codes learns five times a step, then the encoder."""

    def __init__(self) -> None:
        from torch_geometric.nn import ARGVA, GCNConv

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.mean, self.width = GCNConv(64, 32), GCNConv(32, 16), GCNConv(32, 16)

            def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
                x = self.first(x, edges).relu()
                return self.mean(x, edges), self.width(x, edges)

        judge = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        super().__init__(ARGVA(Encoder(), judge), lambda *_: None, self._both)
        self.automatic_optimization = False

    @staticmethod
    def _both(module: Any) -> Any:
        parts = ((module.net.encoder, 0.005), (module.net.discriminator, 0.001))
        return [torch.optim.Adam(part.parameters(), rate) for part, rate in parts]

    def training_step(self, graph: Any, batch_idx: int) -> Any:
        of_encoder, of_judge = self.optimizers()
        codes = self.net.encode(graph.x, graph.edge_index)
        for _ in range(5):
            of_judge.zero_grad()
            self.manual_backward(self.net.discriminator_loss(codes))
            of_judge.step()
        loss = self.net.recon_loss(codes, graph.edge_index) + self.net.reg_loss(codes) + self.net.kl_loss() / len(codes)
        of_encoder.zero_grad()
        self.manual_backward(loss)
        of_encoder.step()
        return {"loss": loss.detach()}


@healthy("torch_geometric", "ARGVA: a graph's codes are to look like noise to a judge, who learns five times as often")
def graphs_adversarial() -> Built:
    return Built(Adversarial(), whole(of_digits(300)), {"max_epochs": 80}, WELL)


class Heterogeneous(nn.Module):
    """A heterogeneous graph transformer over pictures and their bright pixels, as the library's example has it."""

    def __init__(self, metadata: Any) -> None:
        from torch_geometric.nn import HGTConv

        super().__init__()
        self.first = nn.ModuleDict({"picture": nn.Linear(64, 32), "pixel": nn.Embedding(64, 32)})
        self.convolutions = nn.ModuleList([HGTConv(32, 32, metadata, 2) for _ in range(2)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {kind: self.first[kind](values).relu() for kind, values in x.items()}
        for convolution in self.convolutions:
            x = convolution(x, edges)
        return self.head(x["picture"])


@healthy("torch_geometric", "HGT: pictures and pixels that attend to each other by what joins them, AdamW at 0.005")
def graphs_kinds() -> Built:
    from torch_geometric.data import HeteroData

    graph, known = HeteroData(), of_digits(600)
    rows, columns = (known.x > known.x.mean() + 0.3).nonzero().T
    graph["picture"].x, graph["pixel"].x = known.x, torch.arange(64)
    graph["picture", "shows", "pixel"].edge_index = torch.stack((rows, columns))
    graph["pixel", "shown", "picture"].edge_index = torch.stack((columns, rows))
    graph["picture", "like", "picture"].edge_index = known.edge_index

    def loss(net: Any, graph: Any) -> Tensor:
        return F.cross_entropy(net(graph.x_dict, graph.edge_index_dict)[known.train_mask], known.y[known.train_mask])

    module = Recipe(Heterogeneous(graph.metadata()), loss, adamw(5e-3, 1e-3))
    return Built(module, whole(graph), {"max_epochs": 40}, WELL)


class Supervised(nn.Module):
    """SuperGAT: attention also says which nodes are joined."""

    def __init__(self) -> None:
        from torch_geometric.nn import SuperGATConv

        super().__init__()
        options = {"dropout": 0.6, "attention_type": "MX", "edge_sample_ratio": 0.8, "is_undirected": True}
        self.first, self.second = SuperGATConv(64, 8, 8, **options), SuperGATConv(64, 10, 8, concat=False, **options)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(F.dropout(x, 0.6, self.training), edges)
        joined = self.first.get_attention_loss()
        x = self.second(F.dropout(F.elu(x), 0.6, self.training), edges)
        return x, joined + self.second.get_attention_loss()


@healthy(
    "torch_geometric",
    "SuperGAT: attention is taught who is joined, at a weight of four, dropout of 0.6, Adam with L2",
)
def graphs_taught() -> Built:
    def loss(net: Any, graph: Any) -> Tensor:
        out, joined = net(graph.x, graph.edge_index)
        return F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask]) + 4.0 * joined

    return on_nodes(Recipe(Supervised(), loss, adam(0.005)))


@healthy("pytorch_forecasting", "N-BEATS whose layers are Kolmogorov-Arnold nets, clipped at 0.1")
def forecasting_nbeats_kan() -> Built:
    from pytorch_forecasting import NBeatsKAN

    return forecast(NBeatsKAN, learning_rate=5e-3, widths=[16, 32], backcast_loss_ratio=0.1, num_block_layers=[2, 2])


@healthy(
    "torchvision",
    "LR-ASPP on MobileNetV3: which pixels are which digit, edges are ignored, SGD with polynomial rates",
)
def torchvision_segments() -> Built:
    from torchvision.models._utils import IntermediateLayerGetter
    from torchvision.models.mobilenetv3 import MobileNetV3, _mobilenet_v3_conf
    from torchvision.models.segmentation import LRASPP

    settings, last = _mobilenet_v3_conf("mobilenet_v3_small", width_mult=0.5)
    features = MobileNetV3(settings[:6], last).features
    channels = [features[index](torch.zeros(2, settings[0].input_channels, 8, 8)).shape[1] for index in (1,)]
    body = IntermediateLayerGetter(features, {"1": "low", str(len(features) - 1): "high"})
    net = LRASPP(body, channels[0], settings[5].out_channels * 6, 11, 32)

    def loss(net: Any, batch: Any) -> Tensor:
        bright = batch[0][:, 0]
        classes = torch.where(bright > 0.4, batch[1][:, None, None] + 1, 0).masked_fill((bright - 0.2).abs() < 0.2, 255)
        return F.cross_entropy(net(batch[0].expand(-1, 3, -1, -1))["out"], classes, ignore_index=255)

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.02, momentum=0.9, weight_decay=1e-4)  # noqa: E731
    rates = scheduled(sgd, lambda chosen: torch.optim.lr_scheduler.PolynomialLR(chosen, 70, 0.9))
    return Built(Recipe(net, loss, rates), in_batches(8, *digits(48)), {"max_epochs": 2, "limit_train_batches": 35}, WELL)
