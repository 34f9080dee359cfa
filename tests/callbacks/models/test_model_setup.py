"""How parameters are set up, what the model starts from, and what it is fed, as the monitors report it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor
from lightning_hooks.alerts import ParameterSetup
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import assert_same


def setups(model: LightningModule, val: bool = False, every: int = 1, **kwargs: Any) -> dict[str, ParameterSetup]:
    monitor = GradientFlowMonitor(every_n_steps=every, summary=False)
    trainer([monitor], **kwargs).fit(model, loader(), loader() if val else None)
    assert monitor.report is not None
    return monitor.report.setups


class Several(Classifier):
    """The first layer is frozen, the second in two groups, the third forgotten; the rate falls to a tenth."""

    def __init__(self, optimizer: str = "SGD") -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)))
        self.net[0].requires_grad_(False)
        self.kind = optimizer

    def configure_optimizers(self) -> Any:
        weight, bias = self.net[1].weight, self.net[1].bias
        groups = [{"params": [weight], "weight_decay": 0.5}, {"params": [bias], "lr": 0.01}]
        optimizer = getattr(torch.optim, self.kind)(groups, lr=0.1)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.1), "interval": "step"}]


@pytest.mark.parametrize("val", [False, True])
@pytest.mark.parametrize(("optimizer", "decay"), [("SGD", 5e-5), ("AdamW", 5e-5), ("Adam", 0.0)])
def test_setup_of_each_parameter(val: bool, optimizer: str, decay: float) -> None:
    name = f"0-{optimizer}"
    l2 = 0.5 if optimizer == "Adam" else 0.0  # what AdamW takes of the weight, Adam adds to its gradient
    assert setups(Several(optimizer), val) == {
        "net.0.weight": ParameterSetup(64, 2, False, False),
        "net.0.bias": ParameterSetup(8, 1, False, False),
        "net.1.weight": ParameterSetup(64, 2, True, True, (name,), 7, pytest.approx(1e-4), 0.1, pytest.approx(decay), l2=l2),
        "net.1.bias": ParameterSetup(
            8, 1, True, True, (name,), 7, pytest.approx(1e-5), 0.01, pytest.approx(1e-7 if optimizer == "AdamW" else 0.0)
        ),
        "net.2.weight": ParameterSetup(24, 2, True, True),
        "net.2.bias": ParameterSetup(3, 1, True, True),
    }


class Branch(Classifier):
    """A branch that is taken in some batches, and one that never is."""

    def __init__(self, taken: set[int]) -> None:
        super().__init__(mlp())
        self.some, self.never, self.taken = nn.Linear(8, 3), nn.Linear(8, 3), taken

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        out = self.net(x) + self.some(x) if batch_idx in self.taken else self.net(x)
        return F.cross_entropy(out, y)


@pytest.mark.parametrize(
    ("taken", "affected"), [({1}, ["never"]), ({4, 5}, ["never"]), ({0}, ["never"]), (set(), ["never", "some"])]
)
def test_a_branch_that_is_taken_by_chance_is_not_missing(taken: set[int], affected: list[str]) -> None:
    monitor = GradientFlowMonitor(every_n_steps=3, summary=False)
    trainer([monitor]).fit(Branch(taken), loader())
    assert sorted(name for name, setup in monitor.report.setups.items() if not setup.has_gradient) == [
        f"{branch}.{part}" for branch in affected for part in ("bias", "weight")
    ]
    assert sorted(a.site for a in monitor.report.alerts if a.kind == "missing") == [
        f"{branch}.{part}" for branch in affected for part in ("bias", "weight")
    ]


class Squashed(Classifier):
    def __init__(self, loss: Any, *last: nn.Module) -> None:
        super().__init__(nn.Sequential(nn.Linear(8, 3), *last))
        self.loss = loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]), batch[1])


def test_what_the_model_starts_from_and_is_fed() -> None:
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(8, 8), *[nn.Linear(8, 8)] * 2, nn.Linear(8, 3)))
    expected = {f"net.{i}": model.net[i].weight.square().mean().sqrt().item() * 8**0.5 for i in (0, 1, 3)}
    monitor = FeatureStatsMonitor(every_n_steps=3, summary=False)
    val = [(x * 10, y) for x, y in loader(seed=5)]
    held_out_loader: Any = torch.utils.data.DataLoader(val, batch_size=None)  # type: ignore[arg-type]
    trainer([monitor]).fit(model, loader(), held_out_loader)
    report = monitor.report
    assert report.initial_gains == pytest.approx(expected, rel=1e-6)
    assert report.shared == {"net.1": ("net.2",)}
    assert (report.input_place, report.same_samples) == ("[0]", False)
    train = torch.cat([x for i, (x, _) in enumerate(loader()) if i % 3 == 0]).double()
    held_out = torch.cat([x for x, _ in val[:4]]).double()
    for part, values in (("training", train), ("validation", held_out)):
        assert report.inputs[part].rms == pytest.approx(values.square().mean().sqrt().item(), rel=1e-6)
        assert report.inputs[part].count == values.numel()
    assert {alert.kind for alert in report.alerts} == {"shared", "validation_shift"}
    assert_same(type(report).from_dict(report.to_dict()), report)


class Noisy(Classifier):
    """Adds noise to the batches of training in its step."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.generator, self.given = torch.Generator().manual_seed(3), list[Tensor]()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        noisy = batch[0] + 6 * torch.randn(batch[0].shape, generator=self.generator)
        self.given.append(noisy)
        return super().training_step((noisy, batch[1]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        assert bool(self.net[0]._forward_pre_hooks) == (batch_idx == 0)
        self.net(batch[0])


def test_what_the_first_layer_is_given() -> None:
    torch.manual_seed(0)
    model = Noisy(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)))
    monitor = FeatureStatsMonitor(every_n_steps=3, summary=False)
    held_out = [*loader(seed=5)]
    trainer([monitor], num_sanity_val_steps=0).fit(model, loader(), torch.utils.data.DataLoader(held_out, batch_size=None))  # type: ignore[arg-type]
    report = monitor.report
    assert report.first_layer == "net.0"
    for part, values in (("training", torch.cat(model.given[::3][:4])), ("validation", held_out[0][0])):
        assert report.layer_inputs[part].rms == pytest.approx(values.double().square().mean().sqrt().item(), rel=1e-6)
        assert report.layer_inputs[part].count == values.numel()
    assert report.inputs["training"].rms < 2
    (alert,) = report.alerts
    assert (alert.kind, alert.site, alert.causes[0].name) == ("validation_shift", "net.0", "strong_augmentation")
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_validation_that_raises_leaves_no_hook() -> None:
    class Raises(Noisy):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            raise ZeroDivisionError

    model = Raises(nn.Sequential(nn.Linear(8, 3)))
    run = trainer([FeatureStatsMonitor(summary=False)], num_sanity_val_steps=0)
    with pytest.raises(ZeroDivisionError):
        run.fit(model, loader(), loader(seed=5))
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_a_layer_with_a_fused_path_has_no_hook_in_validation() -> None:
    class Sequences(Noisy):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch[0][:, None]).square().mean()  # type: ignore[no-any-return]

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self.net(batch[0][:, None])
            assert not any(module._forward_pre_hooks or module._forward_hooks for module in self.modules())

    monitor = FeatureStatsMonitor(summary=False)
    model = Sequences(nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))
    trainer([monitor]).fit(model, loader(), loader(seed=5))
    assert monitor.report.layer_inputs.keys() <= {"training"}


def test_a_graph_that_cannot_be_looked_through_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(loss: Tensor) -> None:
        raise ZeroDivisionError("of ours")

    monkeypatch.setattr("lightning_hooks.diagnostics.gradients.hooks.squashed_twice", fail)
    monitor = GradientFlowMonitor(every_n_steps=1, summary=False)
    with pytest.warns(UserWarning, match='the hook at "the loss\'s graph" raised ZeroDivisionError: of ours'):
        trainer([monitor]).fit(Squashed(F.cross_entropy, nn.Softmax(1)), loader())
    assert set(monitor.report.modules) == {"net.0", "net.1"}
    assert monitor.report.squashed_twice == ""
