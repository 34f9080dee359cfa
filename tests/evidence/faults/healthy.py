"""Healthy trainings, of the kinds that look odd to a rule: frozen, sparse, tiny, clipped, confident, adversarial."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.faults import data, nets
from tests.evidence.faults.planted_numbers import amp
from tests.evidence.faults.tasks import (
    Adversarial,
    Manual,
    Supervised,
    Variational,
    adam,
    adamw,
    cross_entropy,
    pretrained,
    regression,
    sgd,
)
from tests.evidence.faults.zoo import Built, Expected, healthy

EPOCHS = {"max_epochs": 3}
SIX_EPOCHS = {"max_epochs": 6}
WELL = Expected()


@healthy("MLP", "a plain rectified net", reaches=0.8)
def mlp_relu(seed: int) -> Built:
    return Built(Supervised(nets.mlp(), adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


@healthy("MLP", "tanh, SGD with momentum", reaches=0.8)
def mlp_tanh(seed: int) -> Built:
    return Built(
        Supervised(nets.mlp((64, 64, 64, 64, 10), nn.Tanh), sgd(0.05, 0.9)), data.loaders(data.digits(), 64, seed), EPOCHS, WELL
    )


@healthy("MLP", "regression", reaches=0.2)
def regression_diabetes(seed: int) -> Built:
    return Built(
        regression(nets.mlp((10, 32, 32, 1)), sgd(0.02, 0.9)), data.loaders(data.diabetes(), 16, seed), {"max_epochs": 5}, WELL
    )


@healthy("MLP", "dropout 0.5", reaches=0.75)
def dropout(seed: int) -> Built:
    net = nets.mlp((64, 128, 128, 10), lambda: nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))
    return Built(Supervised(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


@healthy("MLP", "batches of two", reaches=0.85)
def tiny_batches(seed: int) -> Built:
    x, y, v, w = data.cancer()
    return Built(
        Supervised(nets.mlp((30, 16, 16, 2)), sgd(0.02)), data.loaders((x[:120], y[:120], v, w), 2, seed), {"max_epochs": 3}, WELL
    )


@healthy("CNN", "batch norm", reaches=0.9)
def cnn_batchnorm(seed: int) -> Built:
    return Built(Supervised(nets.cnn(), adam()), data.loaders(data.images(), 64, seed), EPOCHS, WELL)


@healthy("CNN", "without normalisation", reaches=0.8)
def cnn_plain(seed: int) -> Built:
    return Built(Supervised(nets.cnn(norm=False), adam(1e-3)), data.loaders(data.images(), 64, seed), EPOCHS, WELL)


@healthy("CNN", "a backbone trained on the digits 0 to 4, frozen; a new head learns 5 to 9", reaches=0.7)
def frozen_backbone(seed: int) -> Built:
    x, y, v, w = data.images()
    net = pretrained(nets.cnn())
    for parameter in net.parameters():
        parameter.requires_grad_(False)
    net.head = nn.Linear(32, 5)
    new = (x[y >= 5], y[y >= 5] - 5, v[w >= 5], w[w >= 5] - 5)
    module = Supervised(net, lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-2))
    return Built(module, data.loaders(new, 32, seed), EPOCHS, WELL)


@healthy("MLP", "a learning rate that is high but sane", reaches=0.8)
def high_learning_rate(seed: int) -> Built:
    return Built(Supervised(nets.mlp((64, 64, 64, 10)), sgd(0.5)), data.loaders(data.digits(), 64, seed), {"max_epochs": 4}, WELL)


@healthy("CNN", "label smoothing", reaches=0.9)
def label_smoothing(seed: int) -> Built:
    module = Supervised(nets.cnn(), adam(), partial(cross_entropy, label_smoothing=0.1))
    return Built(module, data.loaders(data.images(), 64, seed), EPOCHS, WELL)


@healthy("MLP", "half precision with a loss scaler", reaches=0.8)
def half_precision(seed: int) -> Built:
    return Built(Supervised(nets.mlp(), adam()), data.loaders(data.digits(), 64, seed), {**EPOCHS, "plugins": amp()}, WELL)


@healthy("LSTM", "clipping at 1.0", reaches=0.3)
def clip_one(seed: int) -> Built:
    module = Supervised(nets.Recurrent(), adam(1e-2))
    return Built(module, data.loaders(data.text(), 32, seed), {**EPOCHS, "gradient_clip_val": 1.0}, WELL)


@healthy("MLP", "a wide rectified net with a penalty on its activations: sparse by nature", reaches=0.8)
def natural_sparsity(seed: int) -> Built:
    net = nets.mlp((64, 256, 10))
    return Built(SparseCode(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class SparseCode(Supervised):
    """Its hidden activations cost something, so that each image uses few of them."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        hidden = self.net.act0(self.net.fc0(batch[0]))  # type: ignore[operator,union-attr]
        return self.note(cross_entropy(self.net.head(hidden), batch[1]) + 0.02 * hidden.mean())  # type: ignore[operator,union-attr]


@healthy("ResNet", "batch norm", reaches=0.85)
def resnet(seed: int) -> Built:
    return Built(Supervised(nets.ResNet(), adam()), data.loaders(data.images(), 64, seed), EPOCHS, WELL)


@healthy("ResNet", "residual branches that start at zero", reaches=0.85)
def zero_init_residual(seed: int) -> Built:
    net = nets.ResNet()
    for block in net.blocks:
        nn.init.zeros_(block.norm1.weight)  # type: ignore[union-attr,arg-type]
    return Built(Supervised(net, adam()), data.loaders(data.images(), 64, seed), EPOCHS, WELL)


class WarmUp(Supervised):
    """The learning rate rises from a thousandth over forty steps."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1e-3, min(1.0, step / 40)))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


@healthy("transformer", "a learning rate that warms up, weight decay, dropout", reaches=0.22)
def warm_up(seed: int) -> Built:
    module = WarmUp(nets.Transformer(dropout=0.1), adamw(5e-3, 0.1))
    return Built(module, data.loaders(data.text(), 32, seed), {"max_epochs": 4}, WELL)


@healthy("transformer", "four layers", reaches=0.22)
def transformer(seed: int) -> Built:
    return Built(Supervised(nets.Transformer(layers=4), adam()), data.loaders(data.text(), 32, seed), EPOCHS, WELL)


@healthy("transformer", "PyTorch's own encoder layers, post-norm", reaches=0.7)
def encoder_layers(seed: int) -> Built:
    return Built(Supervised(Rows(), adam()), data.loaders(data.digits(1 / 16, (8, 8)), 64, seed), {"max_epochs": 4}, WELL)


class Rows(nn.Module):
    """An image as a sequence of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).flatten(1))


@healthy("MLP", "an easy task, solved early: the gradient goes towards 0 because nothing is left to learn", reaches=0.9)
def early_convergence(seed: int) -> Built:
    x, y, v, w = data.digits()
    easy = (x[y < 2], y[y < 2], v[w < 2], w[w < 2])
    return Built(Supervised(nets.mlp((64, 64, 64, 2)), adam(1e-2)), data.loaders(easy, 16, seed), {"max_epochs": 5}, WELL)


@healthy("CNN", "gradients accumulated over four batches", reaches=0.7)
def accumulation(seed: int) -> Built:
    kwargs = {"max_epochs": 4, "accumulate_grad_batches": 4}
    return Built(Supervised(nets.cnn(), adam(5e-3)), data.loaders(data.images(), 16, seed), kwargs, WELL)


@healthy("LSTM", "tied embedding and head", reaches=0.25)
def tied_weights(seed: int) -> Built:
    return Built(Supervised(nets.Recurrent(tied=True), adam(1e-2)), data.loaders(data.text(), 32, seed), EPOCHS, WELL)


@healthy("MLP", "a bag of words over a sparse embedding", reaches=0.8)
def sparse_embedding(seed: int) -> Built:
    net = nn.Sequential(
        OrderedDict(embed=nn.EmbeddingBag(1088, 16, sparse=True), fc=nn.Linear(16, 32), act=nn.ReLU(), head=nn.Linear(32, 10))
    )
    x, y, v, w = data.digits(1.0)
    words = torch.arange(64) * 17  # each pixel's grey level is a word of its own
    split = ((x.long() + words), y, (v.long() + words), w)
    return Built(Sparse(net, adam()), data.loaders(split, 32, seed), EPOCHS, WELL)


class Sparse(Supervised):
    """SparseAdam for the embedding, Adam for the rest, by hand as two optimizers need."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        optimizers: Any = self.optimizers()
        for optimizer in optimizers:
            optimizer.zero_grad()
        self.manual_backward(self.note(self.loss(self.net(batch[0]), batch[1])))
        for optimizer in optimizers:
            optimizer.step()

    def configure_optimizers(self) -> Any:
        net: Any = self.net
        rest = [p for name, p in net.named_parameters() if not name.startswith("embed")]
        return torch.optim.SparseAdam(list(net.embed.parameters()), lr=3e-2), torch.optim.Adam(rest, lr=1e-2)


@healthy("GAN", "two optimizers", reaches=0.35)
def gan(seed: int) -> Built:
    return Built(Adversarial(), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, WELL)


@healthy("VAE", "a Gaussian one", reaches=0.4)
def vae(seed: int) -> Built:
    return Built(Variational(nets.VAE(), adam(5e-3)), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, WELL)


@healthy("MLP", "a manual loop that zeroes its gradients", reaches=0.8)
def manual_loop(seed: int) -> Built:
    return Built(
        Manual(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.2)), data.loaders(data.digits(), 64, seed), {"max_epochs": 4}, WELL
    )
