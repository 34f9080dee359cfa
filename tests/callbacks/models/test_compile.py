"""torch.compile: the same statistics and tags, no graph break, a word where hooks came too late."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import monitors
from tests.support.models import ResidualCNN, loader, mlp, trainer
from tests.support.reference import assert_same
from tests.support.trainings import Plain

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, from within its compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*lru_cache.*"),
    pytest.mark.filterwarnings("ignore:Graph break"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch.compiler.reset()


def compiled(model: Plain, what: str, backend: str) -> Any:
    if what == "module":
        return torch.compile(model, backend=backend)
    if what == "child":
        model.net = torch.compile(model.net, backend=backend)
    elif what == "in place":
        model.net.compile(backend=backend)
    elif what == "layer":
        model.net[0] = torch.compile(model.net[0], backend=backend)
    return model


def fit(
    net: Any, shape: tuple[int, ...], what: str = "none", backend: str = "eager", listen: bool = True
) -> tuple[Any, Any, int, int]:
    torch.manual_seed(0)
    model = Plain(net(), lr=0.01)
    ours = monitors(every_n_steps=2, summary=False) if listen else []
    run = trainer(ours, max_epochs=2, gradient_clip_val=0.5)
    run.fit(compiled(model, what, backend), loader(shape, n=48))
    counters = torch._dynamo.utils.counters
    reports = [callback.report for callback in ours[:3]]
    tags = sorted(tag for tag in run.callback_metrics)
    assert not any(callback.faults.errors for callback in ours[:3])
    return reports, tags, counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())


CASES = [
    *(("mlp", what, "eager") for what in ("module", "child", "layer")),
    ("mlp", "child", "inductor"),
    ("cnn", "in place", "eager"),
    ("cnn", "child", "aot_eager"),
]
NETS = {"mlp": (mlp, (8,)), "cnn": (ResidualCNN, (1, 6, 6))}


class NoDropout(ResidualCNN):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Identity()


@pytest.mark.parametrize(("net", "what", "backend"), CASES)
def test_compiled_training_gives_the_same_numbers_under_the_same_tags(net: str, what: str, backend: str) -> None:
    build, shape = NETS[net]
    build = NoDropout if net == "cnn" else build
    expected, expected_tags, _, _ = fit(build, shape)
    _, _, graphs, breaks = fit(build, shape, what, backend, listen=False)
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    found, tags, more_graphs, more_breaks = fit(build, shape, what, backend)
    # Calls of functions and operations, and what the inputs of layers are, which graphs do not show.
    unseen = (
        *(
            "outputs",
            "softmax",
            "dropout",
            "loss_sign",
            "feature_scales",
            "linear_layers",
            "layer_inputs",
            "first_layer",
            "over_constant",
            "constant_loss",
        ),
        "why_not",
    )
    assert_same(tuple(found), tuple(expected), rel=1e-3 if net == "cnn" else 1e-4, skip=unseen, tiny=1e-6)
    assert tags == [tag for tag in expected_tags if tag != "learning/over_constant"]
    assert more_breaks == breaks == 0
    assert more_graphs <= graphs + 2


def test_a_compiled_model_has_the_same_histograms() -> None:
    def histograms(what: str) -> list[Any]:
        torch.manual_seed(0)
        ours = monitors(every_n_steps=2, summary=False, histograms=True)
        trainer(ours, max_epochs=2).fit(compiled(Plain(mlp(), lr=0.01), what, "inductor"), loader(n=48))
        assert not any(callback.faults.errors for callback in ours)
        return [callback.histograms for callback in ours]

    expected, found = histograms("none"), histograms("child")
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 0
    for one, other in zip(expected[:2], found, strict=False):
        assert list(one) == list(other) == [f"net.{i}" for i in range(5)]
        for site, (edges, counts) in one.items():
            assert sum(other[site][1]) == sum(counts)
            compare = dict(zip(other[site][0], other[site][1], strict=False))
            moved = sum(abs(compare.get(edge, 0) - count) for edge, count in zip(edges, counts, strict=False))
            assert moved <= 0.02 * sum(counts), site  # rounding takes a value over an edge


def test_hooks_that_come_after_the_compiler_are_reported_once_with_the_remedy() -> None:
    model = Plain(mlp())
    model.net = torch.compile(model.net, backend="eager")
    trainer().fit(model, loader())  # the graph is compiled here, without hooks
    ours = monitors(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match=r"torch.compiler.reset\(\)") as reported:
        trainer(ours, max_epochs=2).fit(model, loader())
    texts = [str(w.message) for w in reported if "torch.compiler.reset()" in str(w.message)]
    assert len(texts) == 1
    assert "net.0, net.1, net.2, net.3, net.4" in texts[0]
    assert ours[0].report.silent == tuple(f"net.{i}" for i in range(5))
    torch.compiler.reset()
    trainer(ours).fit(model, loader())
    assert ours[0].report.silent == ()


class Within(Plain):
    """Compiles its net within training_step, from some batch on, where nobody can see it from outside."""

    def __init__(self, first: int) -> None:
        super().__init__(mlp(), lr=0.01)
        self.first, self.batches = first, 0
        self.compiled: Any = None

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.batches == self.first:
            self.compiled = torch.compile(lambda x: self.net(x), backend="eager")
        self.batches += 1
        return nn.functional.cross_entropy((self.compiled or self.net)(batch[0]), batch[1])


@pytest.mark.parametrize("first", [0, 1])
def test_what_is_compiled_within_a_step_is_recorded_whether_or_not_that_step_is_sampled(first: int) -> None:
    def reports(first: int) -> list[Any]:
        torch.manual_seed(0)
        ours = monitors(every_n_steps=4, summary=False, functional=False)
        trainer(ours, max_epochs=2).fit(Within(first), loader(n=96))
        return [callback.report for callback in ours[:3]]

    expected = reports(-1)
    found = reports(first)
    assert sum(torch._dynamo.utils.counters["graph_break"].values()) == 0
    assert_same(
        tuple(found),
        tuple(expected),
        rel=1e-4,
        skip=("loss_sign", "feature_scales", "linear_layers", "layer_inputs", "first_layer"),
        tiny=1e-6,
    )
    assert all(stats.calls == 3 for stats in found[0].sites.values())


CHANGES = ["del effects._register_effectful_op", "del effects._EffectType", "effects._register_effectful_op = lambda: None"]
WITHOUT_OPERATORS = """
import os, sys, traceback, warnings
import lightning.pytorch
import torch
import torch._higher_order_ops.effects as effects
from torch import nn

def check():
    from lightning_hooks import monitors
    from lightning_hooks.hooks.listener import IN_GRAPHS
    from tests.support.models import Classifier, loader, mlp, trainer

    assert not IN_GRAPHS
    reports = []
    for compile in (False, True):
        torch.manual_seed(0)
        model = Classifier(mlp())
        if compile:
            model.net[0].compile(backend="eager")
            model.net[2].compile(backend="eager")
        ours = monitors(every_n_steps=1, summary=False)
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            trainer(ours).fit(model, loader())
        ours_reported = [str(each.message) for each in reported if "by which compiled graphs record" in str(each.message)]
        assert len(ours_reported) == compile, ours_reported
        assert not any(each.faults.errors for each in ours)
        reports.append({name: stats.rms for name, stats in ours[0].report.sites.items()})
    one, other = ({name: round(rms, 5) for name, rms in report.items()} for report in reports)
    assert one == other

failed = 0
for change in sys.argv[1:]:  # torch is imported once, and each change made in a process of its own
    child = os.fork()
    if child == 0:
        try:
            exec(change)
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(f"failed with: {change}", file=sys.stderr)
        failed += 1
sys.exit(failed)
"""


@pytest.mark.parametrize("native", ["1", "0"])
def test_a_torch_without_operators_for_graphs_traces_hooks_into_them(native: str) -> None:
    environment = {**os.environ, "LIGHTNING_HOOKS_NATIVE": native}
    done = subprocess.run([sys.executable, "-c", WITHOUT_OPERATORS, *CHANGES], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
