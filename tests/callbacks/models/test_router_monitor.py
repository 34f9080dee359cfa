"""RouterMonitor: which routers are found, what is counted, what is reported, and that training stays as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_hooks import RouterMonitor, TrainingMonitor
from lightning_hooks.alerts import RouterReport
from lightning_hooks.diagnostics.routers.collector import chosen_codebooks, chosen_routers, find_routers
from lightning_hooks.plots import expert_load
from tests.diagnostics.test_routing import check, reference
from tests.support.architectures import ARCHITECTURES, ArchitectureModule, batches_of
from tests.support.host_reads import CountSyncs
from tests.support.mixtures import Choices, Mixture, Routed, routed
from tests.support.models import Classifier, hook_counts, loader, trainer

MIXTURES = [name for name, architecture in ARCHITECTURES.items() if architecture.routers]


def monitor(**options: Any) -> RouterMonitor:
    return RouterMonitor(**{"every_n_steps": 1, "summary": False, "report_dir": None, **options})


# What is found.


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_routers_of_transformers_are_found_and_nothing_else(name: str) -> None:
    torch.manual_seed(0)
    model = ARCHITECTURES[name].make()
    found = find_routers(model)
    assert len(found) == ARCHITECTURES[name].routers
    assert all((site.experts, site.top_k) == (4, 2) and site.name.endswith("mlp.gate") for site in found)
    assert all(model.get_submodule(site.name) is site.module for site in found)


class TopKRouter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_experts, self.k, self.proj = 6, 3, nn.Linear(4, 6)


class Gated(nn.Module):
    """A gate that is none of experts, and a shared expert: no router."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.shared_expert = nn.Linear(4, 4), nn.Linear(4, 4)


def test_routers_of_ones_own() -> None:
    net = nn.Sequential(Mixture(), TopKRouter(), Gated())
    assert [site[:1] + site[2:] for site in find_routers(net)] == [("0.gate", 4, 2), ("1", 6, 3)]


def test_names_and_sizes_by_pattern() -> None:
    net = nn.ModuleDict({"pick": nn.Linear(4, 5), "routed": Routed()})
    (site,) = chosen_routers(net, "pick")
    assert (site.experts, site.top_k) == (5, 1)
    (book,) = chosen_codebooks(net, "*.quantise")
    assert (book.name, book.size) == ("routed.quantise", 16)
    assert chosen_codebooks(net, None) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routers": "*.gat"}, "modules='\\*.gat' matches no module"),
        ({"routers": nn.LayerNorm}, "does not say how many experts there are"),
        ({"codebooks": "net.norm"}, "does not say how many codes there are"),
        ({}, "RouterMonitor found no router in Classifier"),
    ],
)
def test_what_cannot_be_observed_is_an_error_at_train_start(options: Any, message: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.norm = nn.Linear(8, 3), nn.LayerNorm(8, elementwise_affine=False)

        def forward(self, x: Any) -> Any:
            return self.gate(self.norm(x))

    with pytest.raises(ValueError, match=message):
        trainer([monitor(**options)]).fit(Classifier(Net()), loader())


@pytest.mark.parametrize(("factor", "error"), [(0.5, ValueError), (True, TypeError), ("2", TypeError)])
def test_the_capacity_is_at_least_an_even_share(factor: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="capacity_factor must be"):
        RouterMonitor(capacity_factor=factor)


# What is counted.


@pytest.mark.parametrize("name", MIXTURES)
@pytest.mark.parametrize(
    "options", [{}, {"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}, {"checkpointing": True}], ids=str
)
def test_choices_of_transformers_against_a_reference(name: str, options: dict[str, Any]) -> None:
    kwargs = dict(options)
    model = ArchitectureModule(ARCHITECTURES[name])
    if kwargs.pop("checkpointing", False):
        model.net.activation_checkpointing_enable()  # type: ignore[operator,union-attr]
    site = f"net.{find_routers(model.net)[0].name}"
    routers, seen = monitor(), Choices(site)
    trainer([seen, routers], **kwargs).fit(model, batches_of(ARCHITECTURES[name], 4))
    report = routers.report
    assert report is not None
    assert len(seen.calls) == 4
    check(report.routers[site], reference([(logits, chosen) for logits, _, chosen in seen.calls], 4, 2), rel=1e-4)
    assert (report.silent, report.sampled_batches, report.batches) == ((), 4, 4)


@pytest.mark.parametrize("every", [1, 3])
def test_gates_and_codebooks_against_a_reference(every: int) -> None:
    routers = monitor(routers="*.gate", codebooks="net.quantise", every_n_steps=every)
    gate, codes = Choices("net.mixture.gate", every), Choices("net.quantise", every)
    trainer([gate, codes, routers]).fit(routed(), loader())
    report = routers.report
    assert report is not None
    check(report["net.mixture.gate"], reference([(x, x.topk(2).indices) for (x,) in gate.calls], 4, 2))
    chosen = torch.cat([numbers for _, numbers in codes.calls])
    shares = torch.bincount(chosen, minlength=16).double() / len(chosen)
    book = report.codebooks["net.quantise"]
    assert (book.calls, book.codes, book.size) == (len(codes.calls), len(chosen), 16)
    assert book.usage == float((shares > 0).double().mean())
    assert book.perplexity == pytest.approx(float(torch.special.entr(shares).sum().exp()))
    assert book.max_share == pytest.approx(float(shares.max()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_a_compiled_gate_is_counted() -> None:
    torch.compiler.reset()
    model = routed()
    model.net.mixture.compile(backend="eager")
    routers, seen = monitor(), Choices("net.mixture.gate")
    trainer([routers]).fit(model, loader())
    plain = routed()
    trainer([seen]).fit(plain, loader())
    assert routers.report is not None
    check(routers.report.routers["net.mixture.gate"], reference([(x, x.topk(2).indices) for (x,) in seen.calls], 4, 2))
    torch.compiler.reset()


def test_what_never_runs_is_silent() -> None:
    model = routed()
    model.net.unused = Mixture()
    routers = monitor()
    trainer([routers]).fit(model, loader())
    assert routers.report is not None
    assert routers.report.silent == ("net.unused.gate",)


# What comes of it.


def test_training_is_unaltered_and_hooks_are_removed() -> None:
    plain = routed()
    trainer([]).fit(plain, loader())
    state = torch.get_rng_state()
    seen = routed()
    before = hook_counts(seen)
    trainer([monitor(codebooks="net.quantise")]).fit(seen, loader())
    assert torch.equal(state, torch.get_rng_state())
    assert plain.losses == seen.losses
    assert all(torch.equal(one, other) for one, other in zip(plain.parameters(), seen.parameters(), strict=True))
    assert hook_counts(seen) == before


def test_no_batch_waits_for_the_device() -> None:
    plain, seen = CountSyncs(), CountSyncs()
    trainer([plain]).fit(routed(), loader())
    trainer([seen, monitor(codebooks="net.quantise")]).fit(routed(), loader())
    assert plain.mode.syncs == seen.mode.syncs


def test_logged_values_report_figure_and_table() -> None:
    routers = monitor(codebooks="net.quantise", summary="full")
    run = trainer([routers], max_epochs=2)
    run.fit(routed(), loader())
    report, metrics = routers.report, run.callback_metrics
    assert report is not None
    for name, stats in {**report.routers, **report.codebooks}.items():
        logged = {tag.rpartition("/")[2] for tag in metrics if tag.startswith(f"routers/{name}/")}
        assert logged
        assert all(float(metrics[f"routers/{name}/{stat}"]) == pytest.approx(getattr(stats, stat)) for stat in logged)
    assert "routers/model/balance_worst" in metrics
    assert RouterReport.from_dict(json.loads(json.dumps(report.to_dict()))) == report
    assert "net.mixture.gate: balance" in repr(report)
    assert set(routers.to_frame()["of"]) == {"router", "codebook"}
    for figure in (routers.plot(), expert_load(list(routers.history)), routers.plot("entropy")):
        assert figure.axes
    assert sum(len(bar.patches) for bar in routers.plot().axes[0].containers) == 2 * 4  # type: ignore[union-attr]
    assert [len(entry.routers) for entry in routers.history] == [1, 1]


def test_short_windows_merge_into_the_epoch() -> None:
    short, whole = monitor(report_every_n_steps=3), monitor(report_every_n_steps=None)
    trainer([short]).fit(routed(), loader())
    trainer([whole]).fit(routed(), loader())
    assert short.report is not None
    assert whole.report is not None
    assert len(short.history) == 3  # of 7 batches: 3, 3, 1
    assert short.report.routers == whole.report.routers


class Saves(Callback):
    def __init__(self, folder: Path) -> None:
        self.path = folder / "middle.ckpt"

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 2:
            trainer.save_checkpoint(self.path)


@pytest.mark.filterwarnings("ignore:You're resuming from a checkpoint")
def test_a_run_that_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    first, rest = monitor(codebooks="net.quantise"), monitor(codebooks="net.quantise")
    trainer([first, Saves(tmp_path)]).fit(routed(), loader(n=56))
    trainer([rest]).fit(routed(), loader(n=56), ckpt_path=tmp_path / "middle.ckpt", weights_only=True)
    assert rest.report is not None
    gate, book = rest.report.routers["net.mixture.gate"], rest.report.codebooks["net.quantise"]
    assert (gate.calls, gate.tokens, book.calls, book.codes) == (7, 56, 7, 56)  # three batches before, four after
    assert sum(gate.load) == pytest.approx(1.0)


def collapsed(**options: Any) -> RouterMonitor:
    model = routed()
    with torch.no_grad():
        model.net.mixture.gate.bias.copy_(torch.tensor([0.0, 0.0, 50.0, 50.0]))
    routers = monitor(**options)
    trainer([routers], max_epochs=1).fit(model, loader(n=400))
    return routers


def test_a_collapse_is_found_in_a_run_of_one_epoch_and_dead_experts_follow_from_it() -> None:
    found: list[Any] = []
    routers = collapsed(on_alert=found.append)
    (alert,) = found
    assert (alert.kind, alert.site, alert.severity, alert.epoch) == ("router_collapse", "net.mixture.gate", "warning", 0)
    assert alert.consequences == ("dead_experts at net.mixture.gate",)
    assert "go to 2 experts in effect; one of them gets 100% of all tokens" in alert.seen
    assert routers.report is not None
    assert {entry.kind for entry in routers.report.alerts} == {"router_collapse", "dead_experts"}


def test_rules_can_be_muted() -> None:
    routers = collapsed(rules=["-router_collapse", "-dead_experts"])
    assert routers.report is not None
    assert routers.report.alerts == ()


def test_it_runs_next_to_the_other_monitors(tmp_path: Path) -> None:
    routers, others = monitor(report_dir=tmp_path), TrainingMonitor(summary=False, report_dir=tmp_path)
    trainer([routers, others]).fit(routed(), loader())
    assert routers.report is not None
    kinds = {json.loads(line).get("kind") for line in (tmp_path / "lightning_hooks" / "reports.jsonl").read_text().splitlines()}
    assert "RouterReport" in kinds
