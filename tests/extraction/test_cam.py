"""GradCAM.compute: against a slow reference and against captum, in the cases that hooks get wrong."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import GradCAM
from lightning_hooks.extraction import grad_cam
from tests.support.models import ResidualCNN, TinyLSTM, hook_counts
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


def reference(net: Plain, x: Tensor, upto: str, target: int | list[int], relu: bool = True) -> Tensor:
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
        maps.append(cam.clamp(min=0) if relu else cam)
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
    signed = GradCAM.compute(net, x, module=module, target=1, relu=False)
    torch.testing.assert_close(signed.double(), reference(net, x, module, 1, relu=False), rtol=1e-4, atol=1e-6)
    assert (signed < 0).any()


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
    assert torch.equal(GradCAM.compute(net, x, module=net.conv2, target=classes.tolist()), expected)
    assert torch.equal(GradCAM.compute(net, x, target=lambda output: output.max(1).values), expected)
    cam = grad_cam(net, x)
    assert torch.equal(cam.scores, net(x).max(1).values)
    assert torch.equal(cam.classes, classes)


def test_maps_do_not_depend_on_the_rest_of_the_batch() -> None:
    net, x = build(InPlace)
    whole = GradCAM.compute(net.train(), x, module="conv1", target=1)
    single = torch.cat([GradCAM.compute(net, sample[None], module="conv1", target=1) for sample in x])
    torch.testing.assert_close(whole, single, rtol=1e-4, atol=1e-7)


class Shared(nn.Module):
    """One convolution called twice, and a forward that runs the body twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.act, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(inplace=True), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv(x))
        return self.head(self.act(self.conv(x)).mean((2, 3)))


def test_each_call_of_a_layer_has_its_own_map() -> None:
    torch.manual_seed(0)
    net, x = Shared(), torch.randn(2, 3, 6, 6)
    tapped = []
    with torch.enable_grad():
        first = net.conv(x)
        second = net.conv(first.relu())
        score = net.head(second.relu().mean((2, 3)))[:, 2].sum()
    for values in (first, second):
        gradient = torch.autograd.grad(score, values, retain_graph=True)[0]
        tapped.append((gradient.mean((2, 3), keepdim=True) * values).sum(1).clamp(min=0).detach())
    assert not torch.equal(*tapped)
    for call, expected in ((0, tapped[0]), (1, tapped[1]), (-1, tapped[1]), (-2, tapped[0])):
        torch.testing.assert_close(GradCAM.compute(net, x, module="conv", target=2, call=call), expected)
    with pytest.raises(ValueError, match="call=2, but 'conv' was called 2 times in this forward pass"):
        GradCAM.compute(net, x, module="conv", target=2, call=2)


def test_forward_passes_before_and_after_do_not_mix_in() -> None:
    """Hooks that keep 'the last activation' give the map of another batch."""
    net, x = build(InPlace)
    expected = GradCAM.compute(net, x, module="conv1", target=0)
    net.eval()
    loss = net(torch.randn(2, 3, 11, 13)).sum()
    assert torch.equal(GradCAM.compute(net, x, module="conv1", target=0), expected)
    loss.backward()


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


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
def test_frozen_models_and_no_grad_callers(grad_mode: Any) -> None:
    net, x = build(InPlace)
    expected = GradCAM.compute(net, x, module="conv2", target=1)
    net.requires_grad_(False)
    assert torch.equal(GradCAM.compute(net, x, module="conv2", target=1), expected)
    with grad_mode():
        found = GradCAM.compute(net, x.clone(), module="conv2", target=1)
    assert torch.equal(found, expected)
    assert not found.requires_grad


def test_residual_sums_in_place_and_bfloat16() -> None:
    net, x = ResidualCNN(), torch.randn(2, 1, 6, 6)
    found = GradCAM.compute(net, x, module="conv", target=0)
    net.eval()
    act = net.act(net.bn(net.stem(x)))
    values = net.conv(act)
    score = net.head((values + act).relu().mean((2, 3)))[:, 0].sum()
    gradient = torch.autograd.grad(score, values)[0]
    torch.testing.assert_close(found, (gradient.mean((2, 3), keepdim=True) * values).sum(1).clamp(min=0).detach())
    half = GradCAM.compute(net.bfloat16(), x.bfloat16(), module="conv", target=0)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, found, rtol=0.1, atol=0.01)


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


def test_tuples_and_volumes_and_signals() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.both = nn.ModuleDict({"conv": nn.Conv2d(1, 2, 3)})
            self.inner = self.Inner()
            self.head = nn.Linear(2, 2)

        class Inner(nn.Module):
            def forward(self, x: Tensor) -> Any:
                return {"mask": torch.ones(1, dtype=torch.long), "out": (x * 2, x)}

        def forward(self, x: Tensor) -> Tensor:
            found = self.inner(self.both["conv"](x))
            return self.head(found["out"][0].relu_().mean((2, 3)))

    net, x = Pair(), torch.randn(2, 1, 6, 6)
    first = GradCAM.compute(net, x, module="inner", target=0)
    torch.testing.assert_close(first, GradCAM.compute(net, x, module="both.conv", target=0))
    volume = nn.Sequential(nn.Conv3d(1, 2, 3), nn.AdaptiveAvgPool3d(1), nn.Flatten())
    assert GradCAM.compute(volume, torch.randn(2, 1, 5, 6, 7), target=0).shape == (2, 3, 4, 5)
    signal = nn.Sequential(nn.Conv1d(1, 2, 3), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    assert GradCAM.compute(signal, torch.randn(2, 1, 8), target=0).shape == (2, 6)
    lstm = TinyLSTM()
    assert GradCAM.compute(lstm, torch.randn(2, 5, 6), module="lstm", target=0, reshape=(1, 5)).shape == (2, 1, 5)


def test_size_scales_bilinearly() -> None:
    net, x = build(InPlace)
    small = GradCAM.compute(net, x, target=0)
    large = GradCAM.compute(net, x, target=0, size=(11, 13))
    assert torch.equal(large, nn.functional.interpolate(small[:, None], (11, 13), mode="bilinear")[:, 0])


def test_one_score_per_sample_and_segmentation() -> None:
    x = torch.randn(2, 1, 6, 6)
    two = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    one = nn.Sequential(*two, nn.Flatten(0))
    assert one(x).shape == (2,)
    assert torch.equal(GradCAM.compute(one, x, target=0), GradCAM.compute(two, x, target=0))
    assert torch.equal(GradCAM.compute(one, x), GradCAM.compute(two, x))
    segmenter = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))
    found = GradCAM.compute(segmenter, x, module="0", target=lambda output: output[:, 2].mean((1, 2)))
    values = segmenter[0](x)
    gradient = torch.autograd.grad(segmenter[2](values.relu())[:, 2].mean((1, 2)).sum(), values)[0]
    torch.testing.assert_close(found, (gradient.mean((2, 3), keepdim=True) * values).sum(1).clamp(min=0).detach())


NET, X = build(InPlace)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"module": "conv3"}, ValueError, "modules='conv3' matches no module of InPlace. Closest names: "),
        ({"module": "conv*"}, ValueError, r"module='conv\*' matches 2 modules, of which Grad-CAM takes one: \['conv1', 'conv2'\]"),
        ({"module": nn.Linear(1, 1)}, ValueError, r"module=Linear\(…\) is not in InPlace; give one of its own"),
        ({"module": 3}, TypeError, "module must be a name, a module of the model, or None for the last convolution; got 3"),
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


def test_messages_about_tokens_and_models_without_convolutions() -> None:
    with pytest.raises(ValueError, match="7 tokens are no square grid, with or without the first; pass reshape="):
        GradCAM.compute(TinyLSTM(), torch.randn(2, 7, 6), module="lstm")
    with pytest.raises(ValueError, match=r"reshape=\(3, 3\) needs 9 tokens; the layer gives 7"):
        GradCAM.compute(TinyLSTM(), torch.randn(2, 7, 6), module="lstm", reshape=(3, 3))
    with pytest.raises(ValueError, match="TinyLSTM has no convolution to choose; name a layer with module="):
        GradCAM.compute(TinyLSTM(), torch.randn(2, 7, 6))


def test_objects_with_logits() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = NET

        def forward(self, x: Tensor) -> Any:
            return SimpleNamespace(logits=self.net(x), hidden=x)

    assert torch.equal(
        GradCAM.compute(Wrapped(), X, module="net.conv2", target=0), GradCAM.compute(NET, X, module="conv2", target=0)
    )
