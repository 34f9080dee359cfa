"""Targets that the inputs of a batch hold, from the loss's call to the alert."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_hooks.alerts import TargetCopies
from tests.support.plain_loop import trained

Batch = tuple[Tensor, Tensor]


def table(leaks: Callable[[Tensor, Tensor], object], labels: bool = False, samples: int = 16) -> list[Batch]:
    torch.manual_seed(0)
    batches = []
    for _ in range(10):
        inputs = torch.randn(samples, 5)
        target = torch.randint(3, (samples,)) if labels else torch.randn(samples)
        leaks(inputs, target)
        batches.append((inputs, target))
    return batches


def in_column(place: int) -> Callable[[Tensor, Tensor], object]:
    return lambda inputs, target: inputs[:, place].copy_(target)


def mse(outputs: Tensor, target: Tensor) -> Tensor:
    return F.mse_loss(outputs[:, 0], target)


def test_a_target_that_is_a_column() -> None:
    report, (alert,) = trained(nn.Linear(5, 1), table(in_column(3)), mse, "target_leak")
    assert report.copies == {"mse_loss": TargetCopies(4, 4, 0, 0, 64, 3, "0")}
    assert (alert.site, alert.severity) == ("mse_loss", "warning")
    assert alert.message.startswith("its target is column 3 of what 0 is given, but for the unit, in all 4 batches")


def test_labels_that_are_a_column() -> None:
    report, alerts = trained(nn.Linear(5, 3), table(in_column(0), labels=True), F.cross_entropy, "target_leak")
    assert report.copies["cross_entropy"].in_column == 4
    assert [alert.site for alert in alerts] == ["cross_entropy"]


@pytest.mark.parametrize(
    "leaks",
    [
        lambda inputs, target: None,
        lambda inputs, target: inputs[1:, 2].copy_(target[1:]),  # but for one sample
        lambda inputs, target: inputs[:, 2].copy_(target + 0.01 * torch.randn(len(target))),  # with noise
        lambda inputs, target: (inputs[:, 1].fill_(1.0), target.fill_(1.0)),  # the same for all samples
    ],
)
def test_other_columns(leaks: Callable[[Tensor, Tensor], object]) -> None:
    report, alerts = trained(nn.Linear(5, 1), table(leaks), mse, "target_leak")
    assert not report.copies
    assert not alerts


class Divided(nn.Module):
    """It takes the target out of what the batch holds."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        found: Tensor = self.layer(inputs[:, :4])
        return found


def test_a_target_that_the_model_is_not_given() -> None:
    report, alerts = trained(Divided(), table(in_column(4)), mse, "target_leak")
    assert not report.copies
    assert not alerts


class Copies(nn.Module):
    """It puts out logits that are high at the token that it is given."""

    def __init__(self, certain: float) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 20)
        nn.init.eye_(self.table.weight)
        self.table.weight.data.mul_(certain)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.table(tokens).flatten(0, 1)
        return found


def of_tokens(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits, target.flatten())


@pytest.mark.parametrize(
    ("certain", "shift", "ignored", "found"),
    [(5.0, 0, 0, True), (5.0, 0, 9, True), (5.0, 1, 0, False), (-5.0, 0, 0, False)],
)
def test_labels_that_are_the_tokens(certain: float, shift: int, ignored: int, found: bool) -> None:
    """They are an alert if they are copied without an error."""
    torch.manual_seed(0)
    tokens = [torch.randint(20, (4, 12)) for _ in range(10)]
    batches = [(rows, rows.roll(-shift, 1).index_fill(1, torch.arange(ignored), -100)) for rows in tokens]
    report, alerts = trained(Copies(certain), batches, of_tokens, "target_leak")
    assert [copies.as_tokens for copies in report.copies.values()] == [4] * (shift == 0)
    assert [alert.site for alert in alerts] == ["cross_entropy"] * found
    if found:
        assert "tokens that the model is given, at the same positions, in all 4 batches" in alerts[0].message
        assert "tokens[:, 1:]" in alerts[0].advice[0]


@pytest.mark.parametrize(
    ("ahead", "ignored", "losses", "found"), [(2, 0, 1, True), (2, 5, 1, True), (1, 0, 1, False), (2, 0, 2, False)]
)
def test_labels_that_are_shifted_twice(ahead: int, ignored: int, losses: int, found: bool) -> None:
    """A second loss may predict the token after the next one."""
    torch.manual_seed(0)
    tokens = [torch.randint(20, (4, 12)) for _ in range(10)]
    batches = [(rows, F.pad(rows, (0, ahead), value=-100)[:, ahead:].index_fill(1, torch.arange(ignored), -100)) for rows in tokens]

    def loss(logits: Tensor, target: Tensor) -> Tensor:
        more = [F.cross_entropy(logits[:8], target.flatten()[:8].clamp(0)) for _ in range(losses - 1)]
        return torch.stack([of_tokens(logits, target), *more]).sum()

    report, alerts = trained(Copies(-5.0), batches, loss, "output_range")
    assert [copies.two_ahead for copies in report.copies.values()] == [4] * (ahead == 2)
    assert [(alert.site, alert.causes[0].name) for alert in alerts] == [("cross_entropy", "shifted_twice")] * found


class Decoder(nn.Module):
    """It is given other tokens first, and then those to go on from."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.copies = nn.Embedding(20, 20), Copies(5.0)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.copies(tokens[:, 1]) + 0 * self.source(tokens[:, 0]).flatten(0, 1)
        return found


@pytest.mark.parametrize("shift", [0, 1])
def test_labels_that_are_the_tokens_of_a_decoder(shift: int) -> None:
    torch.manual_seed(0)
    tokens = [torch.randint(20, (4, 2, 12)) for _ in range(10)]
    report, alerts = trained(Decoder(), [(rows, rows[:, 1].roll(-shift, 1)) for rows in tokens], of_tokens, "target_leak")
    assert [copies.as_tokens for copies in report.copies.values()] == [4] * (shift == 0)
    assert [alert.kind for alert in alerts] == ["target_leak"] * (shift == 0)
