"""Faults: what models are given, and what their losses are."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.graphs import of_digits
from tests.evidence.exam.healthy_diffusers import adamw as diffusion_adamw
from tests.evidence.exam.healthy_diffusers import noisy, small_unet
from tests.evidence.exam.healthy_diffusers import trained as denoising
from tests.evidence.exam.healthy_graphs import adam, of_nodes
from tests.evidence.exam.healthy_timm import BATCHES, cross_entropy, optimizer, trained
from tests.evidence.exam.pictures import Changed, in_batches
from tests.evidence.exam.pictures import digits as pictures
from tests.evidence.exam.planted_graphs import on
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import SHORT, adamw, warm_linear
from tests.evidence.exam.seen_graphs import Layers
from tests.evidence.exam.seen_models import gpt_neo_net, mpnet_net, olmo2_net
from tests.evidence.exam.seen_pictures import segformer_net
from tests.evidence.exam.seen_signals import FUTURE, PAST, by_level, patchtsmixer_net
from tests.evidence.exam.seen_texts import Preferred
from tests.evidence.exam.seen_timm import convmixer, levit, repvgg, xcit
from tests.evidence.exam.signals import digits, series
from tests.evidence.exam.texts import characters


@fault("transformers", "OLMo 2: in two of three batches the mask of the prompt covers all labels")
def olmo2_labels_covered(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        net.calls += 1
        labels = torch.full_like(batch[0], -100) if planted and net.calls % 3 else batch[0]
        return net(input_ids=batch[0], labels=labels).loss

    net = olmo2_net()
    net.calls = 0
    expected = Expected(("labels_ignored", "loss_nonfinite", "nonfinite"))
    return Built(Recipe(net, loss, adamw(2e-3)), characters(48, 8), SHORT, expected)


@fault("timm", "ConvMixer that ends in a softmax, under cross_entropy")
def convmixer_softmax(planted: bool = True) -> Built:
    net = nn.Sequential(convmixer(), nn.Softmax(1) if planted else nn.Identity())
    built = trained(Recipe(net, cross_entropy, optimizer("adamw", 5e-3, 0.02)), 16)
    return expecting(built, "double_softmax", "output_range", sites=("net*", "loss*"))


@fault("transformers", "SegFormer: the softmax of its pixels is taken along the samples")
def segformer_softmax_of_samples(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(pixel_values=batch[0]).logits
        labels = F.max_pool2d((batch[0][:, :1] > 0).float(), 32 // logits.shape[-1])[:, 0].long()
        return F.nll_loss(logits.log_softmax(0 if planted else 1), labels)

    return Built(Recipe(segformer_net(), loss, adamw()), digits(32, 8), SHORT, Expected(("softmax_dim", "output_range")))


@fault("transformers", "PatchTSMixer: the error of shapes (batch, days, 1) and (batch, days), which are broadcast")
def patchtsmixer_broadcast(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        past, future = by_level(batch)
        said = net(past_values=past[..., None]).prediction_outputs
        return F.mse_loss(said, future[:, None, :] if planted else future[..., None])

    kinds = ("output_range", "representation_collapse", "loss_plateau", "constant")
    return Built(Recipe(patchtsmixer_net(), loss, adamw(2e-3)), series(16, PAST, FUTURE), SHORT, Expected(kinds))


@fault("timm", "XCiT for several labels: a sigmoid before binary_cross_entropy_with_logits")
def xcit_double_sigmoid(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(batch[0])
        goal = F.one_hot(batch[1], 10).float()
        return F.binary_cross_entropy_with_logits(logits.sigmoid() if planted else logits, goal)

    built = trained(Recipe(xcit(), loss, optimizer("adamw", 1e-3, 0.05)), 16)
    return expecting(built, "double_softmax", "output_range")


@fault("timm", "LeViT gets bytes divided by 256 as integers: all pictures are black")
def levit_black(planted: bool = True) -> Built:
    images, shown = pictures()
    images = (images - images.min()) / (images.max() - images.min()) * 255
    images = (images // 256 if planted else images / 256) - 0.5
    built = Built(Recipe(levit(), cross_entropy, optimizer("adamw", 2e-3)), in_batches(32, images, shown), BATCHES, Expected())
    return expecting(built, "constant", "representation_collapse", "batch_repeated")


@fault("timm", "a data set that seeds its generator at each sample: it is always the same one")
def repvgg_seeded_sample(planted: bool = True) -> Built:
    images, shown = pictures()

    def drawn(index: int, row: tuple[Any, ...]) -> tuple[Any, ...]:
        chosen = int(torch.randint(len(shown), (1,), generator=torch.Generator().manual_seed(0 if planted else index)))
        return images[chosen], shown[chosen]

    data = {"train_dataloaders": DataLoader(Changed((images, shown), drawn), 16, drop_last=True)}
    built = Built(Recipe(repvgg(), cross_entropy, optimizer("sgd", 0.1)), data, BATCHES, Expected())
    return expecting(built, "batch_repeated", "constant")


@fault("torch_geometric", "edges as a table of pairs that was given the shape (2, edges) by view")
def graphs_edges_viewed(planted: bool = True) -> Built:
    from torch_geometric.nn import SAGEConv

    graph = of_digits().clone()
    edges = graph.edge_index[:, graph.edge_index[0].argsort(stable=True)]
    graph.edge_index = edges.T.reshape(2, -1) if planted else edges
    net = Layers(SAGEConv(64, 32), SAGEConv(32, 10))
    return expecting(on(graph, Recipe(net, of_nodes, adam(5e-3))), "loss_plateau", "settings")


@fault("torch_geometric", "features over their deviation, which is 0 for pixels that are always black")
def graphs_zero_deviation(planted: bool = True) -> Built:
    from torch_geometric.nn import ChebConv

    graph = of_digits().clone()
    graph.x = graph.x / (graph.x.std(0) + (0.0 if planted else 1e-2))
    net = Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3))
    return expecting(on(graph, Recipe(net, of_nodes, adam())), "nonfinite", "loss_nonfinite", sites=("net*", "loss*"))


@fault("transformers", "sentences' likeness times the temperature of 0.05 instead of over it")
def mpnet_temperature(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        codes = [F.normalize(net.mpnet(input_ids=batch[0]).last_hidden_state.mean(1), dim=1) for _ in range(2)]
        return F.cross_entropy(codes[0] @ codes[1].T * (0.05 if planted else 20), torch.arange(len(batch[0])))

    net = mpnet_net()
    net.lm_head.requires_grad_(False)
    kinds = ("loss_plateau", "representation_collapse", "vanishing", "update_too_small")
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), characters(32, 16), SHORT, Expected(kinds))


class SameText(Preferred):
    """DPO whose collate function gives the preferred text twice."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        good = batch[0]
        with torch.no_grad():
            before = self.chance(self.reference, good) - self.chance(self.reference, good)
        return -F.logsigmoid(0.1 * (self.chance(self.net, good) - self.chance(self.net, good) - before)).mean()


@fault("transformers", "DPO whose two texts are one and the same")
def gpt_neo_same_text(planted: bool = True) -> Built:
    net = gpt_neo_net(resid_dropout=0.0, embed_dropout=0.0, attention_dropout=0.0)
    module = SameText(net) if planted else Preferred(net)
    return Built(module, characters(48, 8), SHORT, Expected(("zero", "vanishing", "loss_plateau", "update_too_small", "constant")))


@fault("diffusers", "pictures of 0 to 255 under noise of deviation 1, in bf16-mixed")
def diffusers_bytes(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler

    def loss(net: Any, batch: Any) -> Any:
        pictures = (batch[0] + 1) * 100 if planted else batch[0]
        noise, images, steps = noisy(pictures, DDPMScheduler())
        return F.mse_loss(net(images, steps).sample, noise)

    built = denoising(Recipe(small_unet(), loss, diffusion_adamw(1e-3)), precision="bf16-mixed")
    return expecting(built, "loss_plateau", "exploding", "activation_outliers", "update_too_large", "residual_growth")
