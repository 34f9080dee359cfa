"""Update ratios of tables of which a step moves some rows, against the whole tables."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.statistics.weight_sample import RowSample

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "sparse_adam": lambda parameters: torch.optim.SparseAdam(parameters, lr=0.01),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.01),
}


def ratio(sample: RowSample, weight: torch.Tensor) -> torch.Tensor:
    """The update's norm over the weight's."""
    update, norm, _ = sample.updates(weight)
    return update / norm


def ratios(rows: int, columns: int, touched: int, sparse: bool, optimizer: str) -> list[tuple[float, float]]:
    """The estimate and the truth of three steps after five."""
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    table = nn.Embedding(rows, columns, sparse=sparse)
    steps = OPTIMIZERS[optimizer](table.parameters())
    found = []
    for step in range(8):
        steps.zero_grad()
        ids = torch.randint(0, rows, (touched,), generator=generator)
        (table(ids) * torch.randn((touched, columns), generator=generator)).sum().backward()
        assert table.weight.grad is not None
        before = table.weight.detach().double().clone()
        sample = RowSample(table.weight, table.weight.grad)
        steps.step()
        truth = ((table.weight.detach().double() - before).norm() / before.norm()).item()
        if step > 4:
            found.append((ratio(sample, table.weight).item(), truth))
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # torch's own, of Adagrad
@pytest.mark.parametrize(
    ("rows", "columns", "touched", "sparse", "optimizer", "rel"),
    [
        (50_000, 16, 8, True, "sparse_adam", 0.02),
        (50_000, 16, 8, True, "sgd", 0.02),
        (50_000, 16, 500, True, "adagrad", 0.02),
        (50_000, 16, 128, False, "adam", 1e-5),
        (100_000, 16, 128, False, "sgd", 0.01),
        (100_000, 16, 10_000, False, "sgd", 0.01),
        (100_000, 16, 1_000, False, "momentum", 0.03),
        (100_000, 16, 1_000, False, "adam", 0.03),
    ],
)
def test_ratio_against_the_whole_table(rows: int, columns: int, touched: int, sparse: bool, optimizer: str, rel: float) -> None:
    for estimate, truth in ratios(rows, columns, touched, sparse, optimizer):
        assert estimate == pytest.approx(truth, rel=rel)


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize("what", ["more rows", "other columns", "freed"])
def test_a_table_that_became_another_has_no_ratio(what: str, sparse: bool) -> None:
    weight = nn.Parameter(torch.randn(400, 16))
    rows = torch.tensor([[3, 7]])
    gradient: Tensor = torch.randn_like(weight)
    if sparse:
        gradient = torch.sparse_coo_tensor(rows, torch.randn(2, 16), weight.shape, check_invariants=False)
    sample = RowSample(weight, gradient)
    if what == "freed":
        weight.untyped_storage().resize_(0)
    else:
        weight.data = torch.randn(500, 16) if what == "more rows" else torch.randn(400, 20)
    found = sample.updates(weight)
    assert found.shape == (3,)
    assert found.isnan().all()
