"""GradCAM.compute: against a slow reference and against captum, in the cases that hooks get wrong."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradCAM
from lightning_hooks.extraction.cam import grad_cam
from tests.support.models import hook_counts
from tests.support.reference import same_state


class Plain(nn.Module):
    """A CNN; every module works out of place."""

    inplace = False

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv2d(3, 6, 3), nn.ReLU(inplace=self.inplace)
        self.conv2, self.bn, self.act2 = nn.Conv2d(6, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(inplace=self.inplace)
        self.pool, self.head = nn.AdaptiveAvgPool2d(2), nn.Linear(32, 5)
        with torch.no_grad():
            self.bn.running_mean.uniform_(-0.5, 0.5)
            self.bn.running_var.uniform_(0.5, 1.5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.conv1(x))
        x = self.act2(self.bn(self.conv2(x)))
        return self.head(self.pool(x).flatten(1))


class InPlace(Plain):
    inplace = True


def reference(net: Plain, x: Tensor, upto: str, target: int | list[int]) -> Tensor:
    """By the paper's formulas, in float64, one sample at a time, with the model cut in two by hand."""
    net, x = copy.deepcopy(net).double().eval(), x.double()
    first = {
        "conv1": [net.conv1],
        "act1": [net.conv1, net.act1],
        "conv2": [net.conv1, net.act1, net.conv2],
        "bn": [net.conv1, net.act1, net.conv2, net.bn],
    }[upto]
    rest = [net.conv1, net.act1, net.conv2, net.bn, net.act2, net.pool, nn.Flatten(), net.head][len(first) :]
    maps = []
    for i, sample in enumerate(x):
        values = sample[None]
        for module in first:
            values = module(values).clone()
        values = values.detach().requires_grad_()
        scores = values.clone()
        for module in rest:
            scores = module(scores)
        score = scores[0, target if isinstance(target, int) else target[i]]
        gradient = torch.autograd.grad(score, values)[0][0]
        cam = torch.zeros(values.shape[2:], dtype=torch.float64)
        for k in range(values.shape[1]):
            alpha = gradient[k].sum() / gradient[k].numel()
            cam += alpha * values[0, k].detach()
        maps.append(cam.clamp(min=0))
    return torch.stack(maps)


def build(kind: type[Plain]) -> tuple[Plain, Tensor]:
    torch.manual_seed(0)
    return kind(), torch.randn(4, 3, 11, 13)


@pytest.mark.parametrize("kind", [Plain, InPlace])
@pytest.mark.parametrize("module", ["conv1", "act1", "conv2", "bn"])
def test_equals_the_slow_reference_with_in_place_layers_too(kind: type[Plain], module: str) -> None:
    net, x = build(kind)
    for target in (2, [0, 1, 2, 4]):
        found = GradCAM.compute(net, x, module=module, target=target)
        expected = reference(build(Plain)[0], x, module, target)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-6)
        assert (expected.amax((1, 2)) > 0).all()


@pytest.mark.parametrize("kind", [Plain, InPlace])
@pytest.mark.parametrize("module", ["conv1", "act1", "conv2", "bn", "act2"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_equals_captum(kind: type[Plain], module: str) -> None:
    from captum.attr import LayerGradCam

    net, x = build(kind)
    found = GradCAM.compute(net, x, module=module, target=torch.tensor([3, 0, 2, 1]))
    layer = getattr(net.eval(), module)
    expected = LayerGradCam(net, layer).attribute(x, target=torch.tensor([3, 0, 2, 1]), relu_attributions=True)
    torch.testing.assert_close(found, expected[:, 0].detach(), rtol=1e-5, atol=1e-7)


def test_the_default_is_the_last_convolution_and_the_predicted_class() -> None:
    net, x = build(InPlace)
    classes = net.eval()(x).argmax(1)
    expected = GradCAM.compute(net, x, module="conv2", target=classes)
    assert torch.equal(GradCAM.compute(net, x), expected)
    assert torch.equal(GradCAM.compute(net, x, module="conv2", target=classes.tolist()), expected)
    assert torch.equal(GradCAM.compute(net, x, target=lambda output: output.max(1).values), expected)
    _, scores, of_samples = grad_cam(net, x)
    assert torch.equal(scores, net(x).max(1).values)
    assert torch.equal(of_samples, classes)


def test_gradients_modes_and_random_state_are_left_alone() -> None:
    net, x = build(InPlace)
    net.train()
    net(x).sum().backward()
    before, hooks, random_state = copy.deepcopy(net), hook_counts(net), torch.get_rng_state()
    gradients = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    fired = []
    net.conv1.weight.register_hook(lambda gradient: fired.append(1))
    hooks["conv1.weight:tensor"] = hooks["conv1:tensor"] = 1
    GradCAM.compute(net, x.requires_grad_(), module="conv2", target=0)
    assert same_state(net, before)
    assert all(module.training for module in net.modules())
    assert all(torch.equal(parameter.grad, gradients[name]) for name, parameter in net.named_parameters())
    assert x.grad is None
    assert not fired
    assert torch.equal(torch.get_rng_state(), random_state)
    assert {name: count for name, count in hook_counts(net).items() if ":" not in name} == {
        name: count for name, count in hooks.items() if ":" not in name
    }


class TinyViT(nn.Module):
    def __init__(self, extra: int = 1) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 4, stride=4)
        self.cls = nn.Parameter(torch.randn(1, extra, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat((self.cls.expand(len(x), -1, -1), self.patch(x).flatten(2).transpose(1, 2)), 1)
        return self.head(self.block(self.norm(x)).mean(1))


@pytest.mark.parametrize(("size", "extra", "reshape"), [((12, 12), 1, None), ((12, 12), 0, None), ((8, 12), 3, (2, 3))])
def test_tokens_of_a_vit_are_laid_out_in_space(size: tuple[int, int], extra: int, reshape: Any) -> None:
    torch.manual_seed(0)
    net, x = TinyViT(extra).eval(), torch.randn(2, 3, *size)
    found = GradCAM.compute(net, x, module="norm", target=1, reshape=reshape)
    height, width = size[0] // 4, size[1] // 4
    tokens = torch.cat((net.cls.expand(2, -1, -1), net.patch(x).flatten(2).transpose(1, 2)), 1)
    values = net.norm(tokens)
    gradient = torch.autograd.grad(net.head(net.block(values).mean(1))[:, 1].sum(), values)[0]
    expected = torch.zeros(2, height, width)
    weights = gradient[:, extra:].mean(1)
    for row in range(height):
        for column in range(width):
            expected[:, row, column] = (weights * values[:, extra + row * width + column]).sum(1).clamp(min=0).detach()
    torch.testing.assert_close(found, expected)
    by_hand = GradCAM.compute(
        net, x, module="norm", target=1, reshape=lambda t: t[:, extra:].transpose(1, 2).unflatten(2, (height, width))
    )
    assert torch.equal(by_hand, found)


@pytest.mark.parametrize("kind", ["vit", "resnet"])
def test_transformers_models(kind: str) -> None:
    """Their output is an object with logits, their input comes by name."""
    import transformers

    torch.manual_seed(0)
    if kind == "vit":
        config = transformers.ViTConfig(
            image_size=16,
            patch_size=4,
            hidden_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=32,
            num_labels=4,
        )
        model: Any = transformers.ViTForImageClassification(config)
        module = next(name for name, _ in model.named_modules() if name.endswith("1.layernorm_before"))
        shape = (2, 4, 4)
    else:
        config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", num_labels=4)
        model, module, shape = transformers.ResNetForImageClassification(config), None, (2, 2, 2)
    x = torch.randn(2, 3, 16, 16)
    model.train()
    found = GradCAM.compute(model, {"pixel_values": x, "labels": torch.tensor([0, 1])}, module=module, target=[1, 3])
    assert found.shape == shape
    assert (found.amax((1, 2)) > 0).all()
    assert model.training


NET, X = build(InPlace)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": "conv3"}, ValueError, "modules='conv3' matches no module of InPlace. Closest names: "),
        ({"module": "conv*"}, ValueError, r"module='conv\*' matches 2 modules, of which Grad-CAM takes one: \['conv1', 'conv2'\]"),
        ({"module": 3}, TypeError, "modules must be a glob pattern.*got 3"),
        ({"target": 5}, ValueError, "target must be between 0 and 4, the model's classes; got 5"),
        ({"target": -1}, ValueError, "target must be between 0 and 4, the model's classes; got -1"),
        ({"target": [0, 1]}, ValueError, r"target must be a class or one class for each of the 4 samples; got \[0, 1\]"),
        ({"target": 1.5}, ValueError, "target must be a class or one class for each of the 4 samples; got 1.5"),
        ({"target": "cat"}, TypeError, "target must be the number of a class, one for each sample.*; got 'cat'"),
        ({"size": 7}, TypeError, r"size must be the \(height, width\) that maps are scaled to, or None; got 7"),
        ({"target": lambda output: 3}, TypeError, "target, a function .*, must return a tensor of scores; got int"),
        ({"module": "head"}, ValueError, r"the output of this Linear has shape \(4, 5\), without spatial dimensions"),
        ({"reshape": (2, 3, 4)}, TypeError, r"reshape must be \(height, width\) of the grid of tokens.*; got \(2, 3, 4\)"),
        ({"forward": "conv2"}, RuntimeError, "to have 6 channels"),
        (
            {"forward": lambda net, x: net(x).detach()},
            ValueError,
            "the score does not depend on the output of 'conv2', or forward cuts",
        ),
        ({"forward": lambda net, x: net.conv1(x), "module": "conv2"}, ValueError, "there is no output of the modules 'conv2'"),
        ({"forward": lambda net, x: net(x)[:, :, None]}, ValueError, r"scores of shape \(4, 5, 1\), not \(n, classes\)"),
        (
            {"forward": lambda net, x: (net(x), x)},
            ValueError,
            "the model returns 2 floating-point tensors .* none is called logits",
        ),
    ],
)
def test_messages(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        GradCAM.compute(NET, X, **arguments)
