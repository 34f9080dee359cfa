"""Activity, masks and decisions, against float64 numpy on everything kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.pruning.sites import Activity, UnitSite, UnitSites

GENERATOR = torch.Generator().manual_seed(0)


def one(module: nn.Module, root: nn.Module | None = None, **kwargs: Any) -> tuple[UnitSites, UnitSite]:
    root = root or nn.Sequential(module)
    name = next(name for name, found in root.named_modules() if found is module)
    sites = UnitSites([(name, module)], root, **kwargs)
    return sites, sites.sites[0]


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=GENERATOR).to(dtype)


# module, shape of its input, the axis its units lie in
LAYOUTS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "linear": (nn.Linear(6, 5), (4, 6), 1),
    "linear on tokens": (nn.Linear(6, 5), (4, 3, 6), 2),
    "linear on maps": (nn.Linear(6, 5), (2, 4, 3, 6), 3),
    "linear unbatched": (nn.Linear(6, 5), (6,), 0),
    "conv2d": (nn.Conv2d(2, 5, 3), (4, 2, 6, 6), 1),
    "conv2d unbatched": (nn.Conv2d(2, 5, 3), (2, 6, 6), 0),
    "conv1d": (nn.Conv1d(2, 5, 3), (4, 2, 6), 1),
    "transposed": (nn.ConvTranspose2d(2, 5, 3), (4, 2, 6, 6), 1),
    "batch norm": (nn.BatchNorm2d(5), (4, 5, 3, 3), 1),
    "batch norm 1d": (nn.BatchNorm1d(5), (4, 5), 1),
    "group norm": (nn.GroupNorm(1, 5), (4, 5, 3), 1),
    "layer norm": (nn.LayerNorm(5), (4, 3, 5), 2),
    "relu on features": (nn.ReLU(), (4, 5), 1),
    "relu on tokens": (nn.ReLU(), (4, 3, 5), 2),
    "relu on maps": (nn.ReLU(), (4, 5, 3, 3), 1),
}


@pytest.mark.parametrize("kind", LAYOUTS)
def test_activity_is_the_mean_magnitude_of_each_unit_and_masks_zero_it(kind: str) -> None:
    module, shape, axis = LAYOUTS[kind]
    sites, hook = one(module)
    outputs = []
    for size in (shape[0], 2 * shape[0]) if len(shape) > 1 and "unbatched" not in kind else (shape[0],):
        output = module(random(size, *shape[1:]))
        outputs.append(output.detach().double().numpy())
        assert hook(module, (), output) is None  # nothing masked yet: the output itself goes on
    magnitudes = [np.moveaxis(np.abs(output), axis, 0).reshape(5, -1) for output in outputs]
    expected = np.concatenate(magnitudes, axis=1).mean(1)
    found = sites.merged()
    (activity,) = found.values()
    np.testing.assert_allclose(activity.means, expected, rtol=1e-6)
    sites.end_epoch(0, 0, target=0.4)
    weakest = set(np.argsort(expected)[:2].tolist())
    output = module(random(*shape))
    masked = hook(module, (), output)
    for unit in range(5):
        was, now = output.select(axis, unit), masked.select(axis, unit)
        assert torch.equal(now, torch.zeros_like(was) if unit in weakest else was)


def decide(means: list[float], target: float, kept: list[bool] | None = None) -> tuple[list[bool], Any]:
    module = nn.ReLU()
    sites, _ = one(module)
    (site,) = sites.sites
    if kept is not None:
        site.mask(torch.tensor(kept), torch.device("cpu"))
    site.activity = Activity(torch.tensor(means, dtype=torch.float64) * 4, 4)
    report = sites.end_epoch(0, 0, target)
    return site.kept.tolist(), report.sites["0"]


def test_the_weakest_go_and_ties_go_by_index() -> None:
    kept, units = decide([3, 1, 1, 2], 0.5)
    assert kept == [True, False, False, True]
    assert (units.units, units.masked, units.sparsity, units.threshold, units.activity) == (4, 2, 0.5, 1.0, 2.5)
    assert decide([1, 1, 1, 1], 0.25)[0] == [False, True, True, True]


def test_masked_units_stay_masked() -> None:
    assert decide([9, 1, 2, 3], 0.25, kept=[False, True, True, True])[0] == [False, True, True, True]
    assert decide([9, 1, 2, 3], 0.5, kept=[False, True, True, True])[0] == [False, False, True, True]
    assert decide([9, 1, 2, 3], 0.0, kept=[False, False, True, True])[0] == [False, False, True, True]


def test_ranks_are_merged_as_if_their_data_were_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The middle site runs on the second rank only, with more units than any layer has."""
    net = nn.ModuleDict({"a": nn.Linear(3, 4), "odd": nn.ReLU(), "b": nn.Linear(4, 2)})
    batches = [random(5, 3), random(2, 3)]
    found = []
    for rank, batch in enumerate([*batches, torch.cat(batches)]):
        sites = UnitSites(list(net.items()), net)
        hooks = {site.name: site for site in sites.sites}
        hidden = net["a"](batch)
        hooks["a"](net["a"], (), hidden)
        if rank > 0:
            hooks["odd"](net["odd"], (), net["odd"](hidden[-2:].repeat(1, 3)))
        hooks["b"](net["b"], (), net["b"](hidden))
        found.append(sites.merged())
    parts = [{name: (activity.sums, activity.count) for name, activity in rank.items()} for rank in found[:2]]
    monkeypatch.setattr("lightning_hooks.extraction.extracted.gather", lambda own: parts)
    merged, whole = sites.merged(), found[2]
    assert list(merged) == list(whole) == ["a", "odd", "b"]
    for name, activity in merged.items():
        assert activity.count == whole[name].count
        np.testing.assert_allclose(activity.means, whole[name].means, rtol=1e-6)
