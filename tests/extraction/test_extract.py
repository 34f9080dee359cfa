"""FeatureExtractor.extract: equal to a model that returns the layer itself."""

from __future__ import annotations

import copy
from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import FeatureExtractor
from lightning_hooks.extraction.capture import POOLS, extract, pooled
from tests.support.models import ResidualCNN, TinyLSTM, hook_counts
from tests.support.reference import same_state

X = torch.randn((4, 1, 6, 6), generator=torch.Generator().manual_seed(1))


def stages(net: ResidualCNN, x: Tensor) -> dict[str, Tensor]:
    """ResidualCNN written so that it returns its layers, out of place."""
    stem = net.stem(x)
    bn = net.bn(stem)
    act = nn.functional.relu(bn)
    conv = net.conv(act)
    act2 = nn.functional.relu(conv + act)
    head = net.head(act2.mean((2, 3)))
    return {"stem": stem, "bn": bn, "act": act, "conv": conv, "act2": act2, "head": head}


def test_equal_to_a_model_that_returns_its_layers() -> None:
    """In-place layers come after stem, bn and conv; what they gave is kept as it was."""
    net = ResidualCNN()
    net.bn.running_mean.uniform_(-1, 1)
    found = FeatureExtractor.extract(net, X)
    expected = stages(net.eval(), X)
    assert list(found) == list(expected)
    for name, values in expected.items():
        assert torch.equal(found[name], values), name
        assert not found[name].requires_grad


def test_the_model_is_left_alone() -> None:
    net = ResidualCNN().train()
    net(X).sum().backward()
    before, hooks, random_state = copy.deepcopy(net), hook_counts(net), torch.get_rng_state()
    gradients = {name: parameter.grad.clone() for name, parameter in net.named_parameters()}
    FeatureExtractor.extract(net, X, "conv")
    assert same_state(net, before)
    assert net.training
    assert hook_counts(net) == hooks
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(torch.equal(parameter.grad, gradients[name]) for name, parameter in net.named_parameters())


def test_hooks_are_gone_when_the_model_raises() -> None:
    net = ResidualCNN()
    before = hook_counts(net)
    with pytest.raises(RuntimeError, match="expected input"):
        FeatureExtractor.extract(net, torch.zeros(1, 5, 6, 6))
    assert hook_counts(net) == before
    assert net.training


@pytest.mark.parametrize("kind", ["bert", "gpt2", "vit"])
def test_hidden_states_of_transformers(kind: str) -> None:
    import transformers

    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}
    ids = torch.randint(0, 50, (2, 7))
    batch: Any = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "id": ["a", "b"]}
    if kind == "bert":
        model = transformers.BertModel(transformers.BertConfig(vocab_size=50, **small))
    elif kind == "gpt2":
        model = transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=3, n_head=2, n_inner=32, bos_token_id=0, eos_token_id=0)
        )
    else:
        model = transformers.ViTModel(transformers.ViTConfig(image_size=8, patch_size=4, **small))
        batch = {"pixel_values": torch.randn(2, 3, 8, 8), "labels_of_another": 3}
    names = [name for name, _ in model.named_modules() if name.rpartition(".")[2].isdigit()]
    assert len(names) == 3
    found = FeatureExtractor.extract(model.train(), UserDict(batch), names)
    wanted = {key: value for key, value in batch.items() if key not in ("id", "labels_of_another")}
    hidden = model.eval()(**wanted, output_hidden_states=True).hidden_states
    assert len(hidden) == 4
    for name, expected in zip(names[:-1], hidden[1:-1], strict=True):
        assert torch.equal(found[name], expected), name
    if kind == "bert":  # the others normalise what the last layer gives
        assert torch.equal(found[names[-1]], hidden[-1])
    cls = FeatureExtractor.extract(model, batch, names[0], pool="cls")[names[0]]
    assert torch.equal(cls, hidden[1][:, 0])


def test_calls_and_outputs() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.act, self.b = nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.act(self.a(self.act(x - 1))))

    net, x = Twice(), torch.randn(5, 6)
    found = extract(net, x)
    assert list(found) == ["a", "act", "act#2", "b"]
    assert torch.equal(found["act"], (x - 1).relu())
    assert torch.equal(found["act#2"], net.a((x - 1).relu()).relu())
    lstm, x = TinyLSTM().eval(), torch.randn(2, 5, 6)
    with torch.no_grad():  # some processors have another kernel for it
        whole, _ = lstm.lstm(x)
    assert torch.equal(extract(lstm, x, "lstm")["lstm"], whole)


def test_pooling_against_numpy() -> None:
    maps, tokens, vectors, swin = torch.randn(3, 4, 5, 6), torch.randn(3, 7, 4), torch.randn(3, 4), torch.randn(3, 2, 5, 4)
    linear, conv1d = nn.Linear(4, 4), nn.Conv1d(7, 7, 1)
    cases = [
        (maps, "mean", linear, maps.numpy().mean((2, 3))),
        (maps, "space", linear, maps.numpy().mean((2, 3))),
        (swin, "tokens", linear, swin.numpy().mean((1, 2))),
        (tokens, "mean", linear, tokens.numpy().mean(1)),
        (tokens, "mean", conv1d, tokens.numpy().mean(2)),
        (tokens, "tokens", conv1d, tokens.numpy().mean(1)),
        (tokens, "space", linear, tokens.numpy().mean(2)),
        (tokens, "cls", linear, tokens.numpy()[:, 0]),
        (vectors, "mean", linear, vectors.numpy()),
        (maps, None, linear, maps.numpy()),
        (maps, lambda values: values.amax((2, 3)), linear, maps.numpy().max((2, 3))),
    ]
    for values, pool, module, expected in cases:
        np.testing.assert_allclose(pooled(values, pool, module).numpy(), expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"pool='cls' takes the first token of \(n, tokens, features\); got shape \(3, 4\)\."):
        pooled(vectors, "cls", linear)
    assert POOLS == ("mean", "space", "tokens", "cls")


class Careless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.forwarded = nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.forwarded.forward(self.used(x))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"modules": "unused"}, ValueError, r"there is no output of the modules 'unused' of Careless \(Linear\): not called"),
        (
            {"modules": ["used", "forwarded"]},
            ValueError,
            r"the modules 'forwarded' of Careless \(Linear\).*called as \.forward\(x\)",
        ),
        ({"modules": "un*"}, ValueError, "there is no output of any module selected in Careless"),
        ({"modules": "usde"}, ValueError, "modules='usde' matches no module of Careless. Closest names: 'used'"),
        ({"pool": "max"}, ValueError, "pool must be None, one of 'mean', 'space', 'tokens', 'cls', or a function .*; got 'max'"),
        ({"forward": 3}, TypeError, "forward must be the name of a submodule or method.*; got 3"),
        ({"forward": "used.nothing"}, AttributeError, "forward='used.nothing': Linear has no 'nothing'"),
        (
            {"batch": {"y": 1, "z": 2}},
            TypeError,
            "Careless takes 'x'; the batch has 'y', 'z'. Pass forward=",
        ),
    ],
)
def test_messages(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        FeatureExtractor.extract(Careless(), **{"batch": torch.zeros(2, 6), **arguments})
