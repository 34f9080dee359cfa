"""The benchmark runs, its arithmetic is right, and its tables are those of its results. Nothing is timed here."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks import FeatureStatsMonitor, monitors
from lightning_hooks.session.module_hooks import SharedHook
from lightning_hooks.statistics.kernels import kernels_for
from tests.benchmarks import overhead, tables
from tests.benchmarks.capabilities import CAPABILITIES, prices
from tests.benchmarks.fits import FitTimes, by_place, fit
from tests.benchmarks.own_time import Stopwatch, entry_points, own_time
from tests.benchmarks.rows import ROWS, without_native
from tests.benchmarks.workloads import DigitsCNN, SdpaTransformer, Workload

pytestmark = pytest.mark.filterwarnings("ignore")  # as the benchmark itself does

TINY = Workload(DigitsCNN, lambda: torch.randn(4, 1, 8, 8), 4, 2, 1)
TOKENS = Workload(SdpaTransformer, lambda: torch.randint(0, 100, (4, 8)), 4, 2, 1)
ABOUT = {
    "commit": "abc1234",
    "code": tables.code_hash(),
    "machine": {"date": "2026-11-23", "processor": "a processor", "torch": "2.13", "threads": 2},
    "quick": True,
}


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What a run of everything gives, of a tiny workload."""
    parts = ("fits", "own", "reads", "counts", "capabilities")
    found = overhead.measure("digits", TINY, ["default", "every"], parts, ["updates"])
    found["wall"] = found["fits"]
    limits = {"epoch_end": {"label": "an epoch's end", "value": 12.0, "unit": "ms", "limit": 100}}
    return json.loads(json.dumps(overhead.rounded({**ABOUT, "results": [found], "limits": limits})))


def test_a_run_measures_each_part(results: dict[str, Any]) -> None:
    (found,) = results["results"]
    assert set(found["fits"]) == {"default", "every"}
    own = found["own"]["c"]
    assert own["sampled"] > own["other"] > 0
    assert own["default"] == pytest.approx((own["sampled"] + 9 * own["other"]) / 10, rel=1e-2)
    assert 0 < found["reads"]["sum_ms"] < 1e3 * found["step_ms"]
    assert found["reads"]["mb"] == pytest.approx(_megabytes(), rel=1e-3)
    sampled, other = found["counts"]["sampled"], found["counts"]["other"]
    assert sampled["operations"] > other["operations"] >= 0
    assert sampled["syncs"] == other["syncs"] == 0
    assert other["dispatches"] == 0
    assert sampled["dispatches"] >= sampled["own_dispatches"]
    assert found["capabilities"]["updates"]["inside"] > 0


def _megabytes() -> float:
    """Of the batch, of what the first layer is given, of outputs and the gradients at them, and of the parameters' gradients,
    before they are clipped and after.
    """
    batch = torch.randn(4, 1, 8, 8)
    model, size = DigitsCNN(), 2 * batch.nbytes

    def add(module: Any, args: Any, output: torch.Tensor) -> None:
        nonlocal size
        size += 2 * output.nbytes

    for module in model.modules():
        if not list(module.children()) and not isinstance(module, torch.nn.Flatten):
            module.register_forward_hook(add)
    model(batch)
    return (size + 2 * sum(parameter.nbytes for parameter in model.parameters())) / 1e6


def test_a_step_is_compared_apart_from_start_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Off 10 ms a step; on 12, the first eight 22, and 100 and 50 ms more at start and end."""

    def times(workload: Workload, make: Any, steps: int, clock: Any) -> FitTimes:
        if make is list:
            return FitTimes(1.0, [0.010] * steps, 0.510)
        return FitTimes(1.1, [0.022] * 8 + [0.012] * (steps - 8), 0.562)

    monkeypatch.setattr(overhead, "fit", times)
    found = overhead.measure_row(TINY, ROWS["every"])
    assert found["percent"] == pytest.approx(20)
    assert found["quartiles"] == pytest.approx([20, 20, 20])
    assert found["us"] == pytest.approx(2000)
    assert found["step_ms"] == pytest.approx(10)
    assert found["start_ms"] == pytest.approx(100 + 8 * 10)
    assert found["end_ms"] == pytest.approx(50)


def test_the_low_quartile_of_each_place() -> None:
    fits = [FitTimes(float(i), [float(i), float(4 - i)], 1.0) for i in range(5)]
    assert by_place(fits) == FitTimes(1.0, [1.0, 1.0], 1.0)


def test_by_default_one_step_in_ten_is_sampled() -> None:
    never = {"percent": 1.0, "us": 10.0, "quartiles": [0.0, 1.0, 2.0], "step_ms": 1.0}
    every = {"percent": 11.0, "us": 110.0, "quartiles": [10.0, 11.0, 12.0], "step_ms": 1.0}
    assert overhead.by_default(never, every) == {"percent": 2.0, "us": 20.0, "quartiles": [1.0, 2.0, 3.0], "step_ms": 1.0}


def test_each_fit_has_the_same_data_and_a_new_model() -> None:
    seen: list[torch.Tensor] = []

    class See(overhead.pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            seen.append(outputs["loss"].detach())

    for make in (lambda: [See()], lambda: [See(), *monitors(every_n_steps=1)]):
        times = fit(TINY, make, 3)
        assert len(times.steps) == 3
    assert len(seen) == 8  # one more step than is counted in each
    assert torch.equal(torch.stack(seen[:4]), torch.stack(seen[4:]))


def test_a_call_within_a_call_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks: Iterator[float] = iter([1.0, 4.0, 10.0, 15.0])
    monkeypatch.setattr("tests.benchmarks.own_time.time.thread_time", lambda: next(ticks))
    monkeypatch.setattr("tests.benchmarks.own_time._costs", lambda: (0.5, 0.25))
    watch = Stopwatch()
    inner = watch.around(lambda: None)
    watch.around(lambda: (inner(), inner()))()
    with pytest.raises(ZeroDivisionError):
        watch.around(lambda: 1 / 0)()
    assert watch.seconds == 3 + 5 - 2 * 0.5 - 2 * 0.25


def test_the_package_is_as_before_after_its_time_is_measured() -> None:
    before = {(kind, name): vars(kind)[name] for kind, name in entry_points()}
    assert (SharedHook, "__call__") in before
    times = own_time(TINY, lambda: [FeatureStatsMonitor(every_n_steps=1)], 3)
    assert min(times.steps) > 0
    assert {(kind, name): vars(kind)[name] for kind, name in entry_points()} == before


def test_every_capability_is_priced() -> None:
    found = prices(list(CAPABILITIES), TOKENS, 1, 2, off=False)
    assert all(price["inside"] > 0 for price in found.values())
    assert all(math.isnan(price["saved"]) for price in found.values())


def test_without_capabilities_training_goes_on() -> None:
    """What stands in their places is enough for a whole fit: no site is disabled."""
    made = monitors(every_n_steps=1)
    with contextlib.ExitStack() as stack:
        for capability in CAPABILITIES.values():
            stack.enter_context(capability.turned_off())
        fit(TOKENS, lambda: made, 2)
    assert [monitor.faults.errors for monitor in made] == [{}, {}, {}]
    features, gradients, _ = (monitor.report for monitor in made)
    assert features.sites
    assert features.outputs == features.representations == {}
    compared = [name for name, stats in gradients.parameters.items() if stats.update_ratio is not None]
    assert compared == ["net.embed.weight"]  # whose rows are compared apart


def test_the_c_library_is_turned_off_and_on_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LIGHTNING_HOOKS_NATIVE", raising=False)
    before = kernels_for("cpu").name
    with without_native():
        assert kernels_for("cpu").name == "torch"
    assert kernels_for("cpu").name == before


# The tables.


def test_a_page_is_filled_and_checked(results: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, page = tmp_path / "run.json", tmp_path / "page.md"
    page.write_text("before\n<!-- benchmark: limits -->\nold\n<!-- /benchmark -->\nafter\n", encoding="utf-8")
    given = ["--results", str(run), "--pages", str(page)]
    assert tables.main(given) == 1  # no results
    run.write_text(json.dumps(results), encoding="utf-8")
    assert tables.main(given[:2]) == 1  # the project's own pages take no quick run's
    assert "is of a quick run" in capsys.readouterr().out
    assert tables.main([*given, "--check"]) == 1
    assert "its tables are not those of run.json" in capsys.readouterr().out
    assert tables.main(given) == 0
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- benchmark: limits -->\n\nMeasured at commit `abc1234`")
    assert text.endswith("|\n\n<!-- /benchmark -->\nafter\n")
    without = {**results, "limits": {}, "results": []}
    assert tables.filled(text.replace("limits", "counts"), without) == text.replace("limits", "counts")  # it has none
    assert tables.main([*given, "--check"]) == 0
    run.write_text(json.dumps({**results, "code": "another"}), encoding="utf-8")
    assert tables.main([*given, "--check"]) == 1
    assert "The tables are of commit abc1234" in capsys.readouterr().out


def test_the_hash_is_of_the_measured_code(tmp_path: Path) -> None:
    for name in ("hooks/gate.py", "statistics/kernels/native.c", "plots/heat.py", "hooks/notes.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1", encoding="utf-8")
    before = tables.code_hash(tmp_path)
    for name, changes in (("plots/heat.py", False), ("hooks/notes.txt", False), ("statistics/kernels/native.c", True)):
        (tmp_path / name).write_text("2", encoding="utf-8")
        assert (tables.code_hash(tmp_path) != before) is changes, name


@pytest.mark.skipif(not tables.RESULTS.is_file(), reason="no results of a run are kept")
def test_the_tables_of_the_pages_are_those_of_the_kept_run() -> None:
    kept = json.loads(tables.RESULTS.read_text(encoding="utf-8"))
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        assert tables.filled(text, kept) == text
