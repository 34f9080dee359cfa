"""Faults of scale: initialisation, learning rate, inputs, decay."""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Adversarial, Supervised, adam, adamw, sgd
from tests.evidence.faults.zoo import Built, Expected, fault, worse

EPOCHS = {"max_epochs": 3}
SIX_EPOCHS = {"max_epochs": 6}


@fault("MLP", "eight sigmoid layers after two rectified ones", reaches=0.8, hurts=worse(0.3))
def deep_sigmoid(seed: int, planted: bool = True) -> Built:
    activation = nn.Sigmoid if planted else nn.ReLU
    body = nets.mlp((64,) * 4).named_children()
    stack = [module for _ in range(8) for module in (nn.Linear(64, 64), activation())]
    net = nn.Sequential(OrderedDict([*list(body)[:-1], ("stack", nn.Sequential(*stack)), ("head", nn.Linear(64, 10))]))
    if not planted:
        nets.initialise(net)
    expected = Expected(("vanishing",), ("net.stack.*",))
    return Built(Supervised(net, adam(1e-3)), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("CNN", "one convolution's initial weights times 10", reaches=0.8, hurts=None)
def init_times_10(seed: int, planted: bool = True) -> Built:
    net, layer = nets.cnn(norm=False), f"conv{seed % 3}"
    if planted:
        _scale(net, layer, 10)
    expected = Expected(("poor_init", "exploding"), (f"net.{layer}*", f"net.act{seed % 3}"))
    return Built(Supervised(net, adam(1e-3)), data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("MLP", "one layer's initial weights divided by 10", reaches=0.7, hurts=None)
def init_divided_by_10(seed: int, planted: bool = True) -> Built:
    net, layer = nets.mlp((64, 64, 64, 64, 64, 10), init=nn.init.kaiming_normal_), 1 + seed % 3
    if planted:
        _scale(net, f"fc{layer}", 0.1)
    expected = Expected(("poor_init",), (f"net.fc{layer}*", f"net.act{layer}"))
    return Built(Supervised(net, sgd(0.1, 0.5)), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "one hidden layer starts from zeros", reaches=0.7, hurts=worse(0.3))
def zero_init(seed: int, planted: bool = True) -> Built:
    net, layer = nets.mlp((64, 64, 64, 64, 10), init=nn.init.kaiming_normal_), seed % 3
    if planted:
        _scale(net, f"fc{layer}", 0)
    expected = Expected(("dead", "zero", "constant", "poor_init"), (f"net.fc{layer}*", f"net.act{layer}"))
    return Built(Supervised(net, sgd(0.1)), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "learning rate times 1000, SGD", reaches=0.8, hurts=worse(0.3))
def lr_times_1000_sgd(seed: int, planted: bool = True) -> Built:
    expected = Expected(("step_too_long", "update_too_large", "exploding", "nonfinite"))
    module = Supervised(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.1 * (1000 if planted else 1)))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("transformer", "learning rate times 1000, Adam", reaches=0.22, hurts=worse(0.1))
def lr_times_1000_adam(seed: int, planted: bool = True) -> Built:
    expected = Expected(("step_too_long", "update_too_large", "exploding", "nonfinite"))
    module = Supervised(nets.Transformer(), adam(3e-3 * (1000 if planted else 1)))
    return Built(module, data.loaders(data.text(), 32, seed), EPOCHS, expected)


@fault("CNN", "learning rate divided by a million", reaches=0.9, hurts=worse(0.5))
def lr_divided_by_1e6(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.cnn(), adam(3e-3 * (1e-6 if planted else 1)))
    return Built(module, data.loaders(data.images(), 64, seed), EPOCHS, Expected(("update_too_small",)))


@fault("CNN", "the head's group of parameters has its learning rate multiplied twice by 50", reaches=0.85, hurts=worse(0.05))
def double_lr_group(seed: int, planted: bool = True) -> Built:
    def groups(module: nn.Module) -> torch.optim.Optimizer:
        head = [p for name, p in module.named_parameters() if ".head." in name]
        body = [p for name, p in module.named_parameters() if ".head." not in name]
        lr = 1e-3
        return torch.optim.Adam([{"params": body}, {"params": head, "lr": lr * 50 * (50 if planted else 1)}], lr=lr)

    expected = Expected(("update_too_large", "exploding"), ("net.head*",))
    return Built(Supervised(nets.cnn(), groups), data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("MLP", "rectifiers killed by a learning rate that is too high", reaches=0.8, hurts=worse(0.2))
def dying_relu(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.mlp((64, 64, 64, 64, 10), init=nn.init.kaiming_normal_), sgd(1.5 if planted else 0.1))
    expected = Expected(("dead", "update_too_large"), ("net.act*", "net.fc*"))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "a negative bias kills one layer", reaches=0.8, hurts=worse(0.3))
def negative_bias(seed: int, planted: bool = True) -> Built:
    net, layer = nets.mlp((64, 64, 64, 64, 10), init=nn.init.kaiming_normal_), seed % 3
    if planted:
        nn.init.constant_(net.get_submodule(f"fc{layer}").bias, -20.0)  # type: ignore[arg-type]
    expected = Expected(("dead",), (f"net.fc{layer}*", f"net.act{layer}"))
    return Built(Supervised(net, sgd(0.1)), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "pixels of 0 to 255 into tanh", reaches=0.75, hurts=None)
def unnormalised_tanh(seed: int, planted: bool = True) -> Built:
    pixels = data.digits(255 / 16 if planted else 1 / 16)
    expected = Expected(("saturated",), ("net.fc0*", "net.act0"))
    module = Supervised(nets.mlp((64, 64, 64, 10), nn.Tanh), adam(1e-3))
    return Built(module, data.loaders(pixels, 64, seed), EPOCHS, expected)


@fault("transformer", "one layer's queries and keys start ten times too large: its attention saturates", reaches=0.22, hurts=None)
def attention_saturated(seed: int, planted: bool = True) -> Built:
    net, layer = nets.Transformer(), seed % 2
    if planted:
        with torch.no_grad():
            net.blocks[layer].attention.qkv.weight[:64] *= 10  # type: ignore[union-attr,index,operator]
    sites = f"net.blocks.{layer}.attention.softmax*", f"net.blocks.{layer}.attention.qkv*"
    expected = Expected(("saturated", "poor_init", "attention_collapse"), sites)
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), EPOCHS, expected)


@fault("ResNet", "weight decay of 30", reaches=0.85, hurts=worse(0.3))
def weight_decay_too_large(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.ResNet(), adamw(1e-2, 30.0 if planted else 0.01))
    expected = Expected(("update_too_large", "constant", "vanishing"))
    return Built(module, data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("RNN", "a rectified recurrent net whose recurrent weights stretch by 2 at every character", reaches=0.2, hurts=worse(0.1))
def exploding_rnn(seed: int, planted: bool = True) -> Built:
    net = nets.Recurrent(nn.RNN, nonlinearity="relu")
    nn.init.orthogonal_(net.rnn.weight_hh_l0, gain=2.0 if planted else 0.7)  # type: ignore[arg-type]
    expected = Expected(("exploding", "nonfinite"), ("net.rnn*",))
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), EPOCHS, expected)


@fault("GAN", "a negative bias kills the generator's second layer", reaches=0.3, hurts=None)
def gan_dead_generator(seed: int, planted: bool = True) -> Built:
    module = Adversarial()
    if planted:
        nn.init.constant_(module.net["generator"].fc1.bias, -20.0)  # type: ignore[index,union-attr,arg-type]
    expected = Expected(("dead",), ("net.generator.fc1*", "net.generator.act1"))
    return Built(module, data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


def _scale(net: nn.Module, layer: str, factor: float) -> None:
    with torch.no_grad():
        net.get_submodule(layer).weight.mul_(factor)  # type: ignore[union-attr,operator]
