"""RouterMonitor: which routers are found, what is counted, what is reported, and that training stays as it was."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import RouterMonitor
from lightning_hooks.alerts import RouterReport
from lightning_hooks.diagnostics.routers.collector import find_routers
from lightning_hooks.plots import expert_load
from tests.diagnostics.test_routing import check, reference
from tests.support.architectures import ARCHITECTURES, ArchitectureModule, batches_of
from tests.support.host_reads import CountSyncs
from tests.support.mixtures import Choices, routed
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
    assert all((site.size, site.top_k) == (4, 2) and site.name.endswith("mlp.gate") for site in found)
    assert all(model.get_submodule(site.name) is site.module for site in found)


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


# What is counted.


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {}) for name in MIXTURES),
        *(
            (MIXTURES[0], options)
            for options in ({"precision": "bf16-mixed"}, {"accumulate_grad_batches": 2}, {"checkpointing": True})
        ),
    ],
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
    assert set(routers.to_frame()["of"]) == {"router", "codebook"}
    for figure in (routers.plot(), expert_load(list(routers.history)), routers.plot("entropy")):
        assert figure.axes
    assert routers.plot().axes[0].collections[0].get_array().size == 4  # type: ignore[union-attr]  # a router's experts
    assert [len(entry.routers) for entry in routers.history] == [1, 1]


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
