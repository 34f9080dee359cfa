"""The interpreter of remedies does what they say, and cures are counted by the score."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks.declare.cause import Remedy
from tests.evidence.cure.configured import rates, tenth_of_rate
from tests.evidence.cure.infos import judged as infos_judged
from tests.evidence.cure.infos import table as infos_table
from tests.evidence.cure.interpret import any_remedies, apply
from tests.evidence.cure.planted import CAUSES, REPAIRS
from tests.evidence.cure.run import counts, judged, limit_of, run_one
from tests.evidence.cure.trainings import trainings
from tests.evidence.exam.catalogue import CASES as EXAM
from tests.evidence.faults.catalogue import FAULTS
from tests.evidence.faults.tasks import Supervised, adam, sgd
from tests.evidence.faults.zoo import Built, Expected


def built(optimizers: Any = None, **kwargs: Any) -> Built:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.Sigmoid(), nn.LayerNorm(3, eps=0.5), nn.Linear(3, 2))
    return Built(Supervised(net, optimizers or sgd(0.5, 0.9)), {}, kwargs, Expected())


def scheduled(module: nn.Module) -> Any:
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 4)
    return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def changed(remedy: Remedy, one: Built | None = None) -> Built:
    found = apply(remedy, one or built())
    assert found is not None
    return found


def test_settings_of_the_optimizer() -> None:
    one = changed(Remedy("set", "optimizer.lr", 0.5, 0.05))
    assert one.module.configure_optimizers()[0].param_groups[0]["lr"] == pytest.approx(0.05)
    one = changed(Remedy("set", "optimizer.momentum", 0.9, 0.1), one)
    (optimizer,) = one.module.configure_optimizers()
    assert (optimizer.param_groups[0]["momentum"], optimizer.param_groups[0]["lr"]) == (0.1, pytest.approx(0.05))


def test_a_rate_under_a_schedule_and_the_schedule_itself() -> None:
    one = changed(Remedy("set", "optimizer.lr", 0.01, 0.001), built(scheduled))
    (optimizer,), (config,) = one.module.configure_optimizers()
    assert config["scheduler"].base_lrs == [pytest.approx(0.001)]
    optimizer.step()
    config["scheduler"].step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.001 * 2 / 4)
    assert changed(Remedy("set", "scheduler.interval", "step", "epoch"), built(scheduled)).module.configure_optimizers()[1][0][
        "interval"
    ] == "epoch"  # fmt: skip
    (optimizer,) = changed(Remedy("remove", "scheduler"), built(scheduled)).module.configure_optimizers()
    assert optimizer.param_groups[0]["lr"] == 0.01


def test_parameters_and_modules() -> None:
    before = built().module.net[0].weight.detach().clone()
    assert torch.equal(changed(Remedy("fill", "net.0.bias", None, 0.0)).module.net[0].bias, torch.zeros(3))
    assert torch.equal(changed(Remedy("scale", "net.0.weight", None, 2.0)).module.net[0].weight, 2 * before)
    assert not torch.equal(changed(Remedy("initialise", "net.0.weight")).module.net[0].weight, before)
    assert isinstance(changed(Remedy("remove", "net.1")).module.net[1], nn.Identity)
    assert isinstance(changed(Remedy("replace", "nn.Sigmoid", None, "nn.ReLU")).module.net[1], nn.ReLU)
    normed = built()
    normed.module.net[2] = nn.BatchNorm1d(3)
    assert changed(Remedy("replace", "nn.BatchNorm1d", None, "nn.GroupNorm"), normed).module.net[2].num_channels == 3
    assert changed(Remedy("set", "net.2.eps", 0.5, 1e-5)).module.net[2].eps == 1e-5
    assert apply(Remedy("fill", "net.9.bias", None, 0.0), built()) is None
    assert apply(Remedy("check", "the samples of batch 3"), built()) is None


def test_the_batch_the_loss_and_the_trainer() -> None:
    batch = torch.tensor([[1.0, torch.nan, 2.0, torch.inf]]), torch.tensor([1])
    one = changed(Remedy("replace", "batch[0]", "NaN", "finite numbers"))
    assert one.module.on_after_batch_transfer(batch, 0)[0].tolist() == [[1.0, 0.0, 2.0, 0.0]]
    one = changed(Remedy("scale", "batch[0]", None, 0.5))
    assert one.module.on_after_batch_transfer(batch, 0)[0][0, 2] == 1.0
    x = torch.ones(2, 4), torch.tensor([0, 1])
    plain, scaled = built(), changed(Remedy("scale", "loss", None, 0.25))
    assert scaled.module.training_step(x, 0).item() == pytest.approx(0.25 * F.cross_entropy(plain.module.net(x[0]), x[1]).item())
    assert changed(Remedy("set", "trainer.gradient_clip_val", None, 2.0)).kwargs == {"gradient_clip_val": 2.0}


def test_parameters_are_added_to_the_optimizer() -> None:
    part = built(lambda module: torch.optim.Adam(module.net[0].parameters()))
    (optimizer,) = changed(Remedy("add", "net.3", None, "optimizer"), part).module.configure_optimizers()
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]


def test_parameters_are_thawed_and_rates_of_groups_set() -> None:
    part = built(lambda module: torch.optim.Adam(module.net[0].parameters(), 0.5))
    part.module.net[3].requires_grad_(False)
    (optimizer,) = changed(Remedy("call", "requires_grad_(True) on net.0, net.3"), part).module.configure_optimizers()
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert part.module.net[3].weight.requires_grad
    remedy = Remedy("set", "optimizer.param_groups[0].lr, optimizer.param_groups[1].lr", None, 0.01)
    (optimizer,) = changed(remedy, part).module.configure_optimizers()
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.01]


def test_gradients_are_zeroed_after_steps() -> None:
    one = changed(Remedy("call", "optimizer.zero_grad() once after each step"))
    (optimizer,) = one.module.configure_optimizers()
    one.module.net[0].weight.grad = torch.ones(3, 4)
    optimizer.step()
    assert one.module.net[0].weight.grad is None


def test_the_batch_is_normalised_over_the_training_data() -> None:
    x = torch.tensor([[1.0, 30.0], [3.0, 10.0]])
    data = {"train_dataloaders": DataLoader(TensorDataset(x), 2, shuffle=True, generator=torch.Generator())}
    for to, expected in (
        ("its columns, standardised", (x - x.mean(0)) / x.std(0)),
        ("its values, standardised", (x - x.mean()) / x.std()),
        ("its values, from -1 to 1", (x - 15.5) / 14.5),
    ):
        one = changed(Remedy("replace", "batch[0]", None, to), built()._replace(data=data))
        assert torch.allclose(one.module.on_after_batch_transfer((x,), 0)[0], expected)
    one = changed(Remedy("replace", "batch[0]", 30.0, "0 where it is 30"))
    assert one.module.on_after_batch_transfer((x,), 0)[0].tolist() == [[1.0, 0.0], [3.0, 10.0]]
    last = changed(Remedy("set", "dataloader.drop_last", False, True), built()._replace(data=data))
    assert last.data["train_dataloaders"].drop_last
    larger = changed(Remedy("set", "dataloader.batch_size", 2, 16), built()._replace(data=data)).data["train_dataloaders"]
    assert (larger.batch_size, larger.drop_last) == (16, False)


class Calls(LightningModule):
    """A step that calls one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        result: Tensor = self.function(batch)
        return result

    def validation_step(self, batch: Any, batch_idx: int) -> None: ...


@pytest.mark.parametrize(
    ("remedy", "function", "given", "expected"),
    [
        (Remedy("replace", "log in training_step", None, "…"), torch.log, torch.zeros(1), math.log(1e-8)),
        (Remedy("replace", "sqrt in net", None, "…"), lambda x: x.sqrt(), torch.zeros(1), 1e-4),
        (Remedy("replace", "division in net", None, "…"), lambda x: 0 / x, torch.zeros(1), 0.0),
        (Remedy("replace", "std in net", None, "…"), lambda x: x.std(), torch.ones(2), 1e-4),
        (Remedy("replace", "-inf before the softmax in net", None, "…"), lambda x: x.softmax(0).sum(), -torch.ones(2) / 0, 1.0),
        (Remedy("replace", "the target of mse_loss", None, "…"), lambda x: F.mse_loss(x, x[:, 0]), torch.eye(2)[:, :1], 0.0),
    ],
)
def test_calls_do_what_remedies_say(remedy: Remedy, function: Any, given: Tensor, expected: float) -> None:
    one = changed(remedy, Built(Calls(function), {}, {}, Expected()))
    assert one.module.training_step(given, 0).item() == pytest.approx(expected, rel=1e-4)


def test_gradients_pass_where_remedies_say_so() -> None:
    for remedy, function in (
        (Remedy("replace", "round, floor or sign of the weight in net", None, "…"), torch.round),
        (Remedy("remove", "the detach of the state between the calls of net"), lambda x: 1 * x.detach()),
    ):
        x = torch.ones(1, requires_grad=True)
        changed(remedy, Built(Calls(function), {}, {}, Expected())).module.training_step(x, 0).backward()
        assert x.grad is not None
        assert x.grad.item() == 1.0


def test_modes_of_modules_and_dropout_are_set_in_steps() -> None:
    one = changed(Remedy("call", "train() of the model"), changed(Remedy("call", "eval() of net.1")))
    one.module.train().training_step((torch.ones(2, 4), torch.tensor([0, 1])), 0)
    assert [one.module.net.training, one.module.net[1].training] == [True, False]
    assert apply(Remedy("call", "eval() of net.9"), built()) is None
    dropped = Built(Calls(lambda x: F.dropout(x, 0.5, True).sum()), {}, {}, Expected())
    module = changed(Remedy("set", "training of net/dropout", None, "self.training"), dropped).module
    assert module.eval().training_step(torch.ones(8), 0).item() == 8.0
    assert module.train().training_step(torch.ones(8), 0).item() in range(0, 17, 2)


def test_modules_and_tensors_become_known() -> None:
    one = built()
    for name, value in (("hidden", [nn.Linear(2, 2)]), ("widths", [torch.ones(2)]), ("code", torch.ones(2))):
        one.module.net.__dict__[name] = value
    changed(Remedy("replace", "net.hidden", None, "an nn.ModuleList or nn.ModuleDict"), one)
    changed(Remedy("replace", "net.widths", None, "an nn.Parameter or nn.ParameterList"), one)
    changed(Remedy("replace", "net.code", None, "an nn.Parameter or nn.ParameterList"), one)
    assert {"net.hidden.0.weight", "net.widths.0", "net.code"} <= dict(one.module.named_parameters()).keys()
    assert apply(Remedy("replace", "net.none", None, "an nn.ModuleList or nn.ModuleDict"), one) is None
    x = torch.ones(1, 4)
    plain = one.module.net[0](x) - one.module.net[0].bias
    scaled = changed(Remedy("scale", "what net.0 is given", None, 0.5), one).module.net[0](x) - one.module.net[0].bias
    assert torch.allclose(scaled, plain / 2)
    between = changed(Remedy("insert", "net.3", None, "nn.ReLU()"), one)
    assert isinstance(between.module.net[3][0], nn.ReLU)
    one.module.net[0].weight.data = torch.ones(4, 3).t()
    assert changed(Remedy("replace", "net.0.weight.data", None, "…"), one).module.net[0].weight.is_contiguous()
    one.module.net[0].weight.register_hook(lambda slope: 0 * slope)
    assert not changed(Remedy("remove", "the hooks (register_hook)"), one).module.net[0].weight._backward_hooks


def test_what_remedies_are_compared_with() -> None:
    assert rates(tenth_of_rate(built(adam(0.02)))) == pytest.approx(0.002)
    for remedy in any_remedies(built()):
        assert apply(remedy, built()) is not None
    assert "trainer.gradient_clip_val" not in [remedy.target for remedy in any_remedies(built(gradient_clip_val=1.0))]


def test_cures_are_counted_by_the_score_of_harmful_faults() -> None:
    twins = {"negative_bias": {0: 0.9, 1: 0.92, 2: 0.94, 3: 0.5, 4: 0.86}}
    cause = {"causes": [["offset_bias", 0.9, "So."]]}
    rows = [
        ("negative_bias", 0, {"score": 0.3, "first": 0.89, "tenth": 0.3, **cause}),  # the limit is 0.92 - 2 * 0.02
        ("negative_bias", 1, {"score": 0.3, "first": 0.87, "second": 0.95, "random": None, "tenth": 0.9}),
        ("negative_bias", 2, {"score": 0.9, "first": 0.9, "tenth": 0.9, **cause}),
        ("negative_bias", 3, {"score": 0.6, "first": 0.6, "tenth": 0.6}),  # without the fault it is no better at this seed
        ("negative_bias", 4, {"score": 0.3, "first": 0.86, "tenth": 0.3}),  # and no cure makes it better than that
    ]
    found = counts(judged(rows, twins))
    assert found == {"trainings": 5, "harmful": 3, "named": 2, "first": 2, "two": 3, "random": 0, "tenth": 1}


def test_the_limit_of_scores_and_of_losses() -> None:
    assert limit_of([0.9, 0.92, 0.94]) == pytest.approx(0.92 - 2 * 0.02)
    assert limit_of([0.9, 0.9, 0.9]) == pytest.approx(0.88)  # a standard deviation below 0.01 counts as 0.01
    assert limit_of([-50.0, -50.0]) == pytest.approx(-51.0)  # and one below a hundredth of the mean as that
    assert limit_of([]) == float("inf")


def test_doing_what_an_info_says_is_compared_with_the_training_without_it() -> None:
    infos = [
        {"info": "dead at a", "remedy": "one", "applied": True, "score": 0.87},
        {"info": "zero at b", "remedy": "two", "applied": True, "score": 0.89},
        {"info": "zero at c", "remedy": "three", "applied": True, "score": None},  # broke
        {"info": "zero at d", "remedy": "four", "applied": False, "score": None},
    ]
    found = infos_judged([("a", 0, {"score": 0.9, "infos": infos})], {"a": [0.9, 0.92, 0.94]})
    assert [row["worse"] for row in found] == [True, False, True, False]
    assert [line.split(" | ")[-1] for line in infos_table(found).splitlines()[2:]] == ["yes |", "no |", "yes |", "- |"]


def test_the_bugs_of_others_have_a_score() -> None:
    known = trainings("bugs")
    assert "ranks_with_the_same_data" not in known.faults  # of two processes
    case = known.faults["softmax_before_loss"]
    well, again, planted = (known.score(known.build(case, 0, planted), ()) for planted in (False, False, True))
    assert well == again > planted > 0  # accuracy
    loss = known.score(known.build(known.faults["targets_broadcast"], 0, False), ())
    assert -2.0 < loss < 0  # minus the last loss, of targets of variance 1


def test_every_family_of_the_tables_is_in_the_zoo_or_among_the_bugs() -> None:
    known = FAULTS.keys() | trainings("bugs").faults.keys() | EXAM.keys()
    assert not (CAUSES.keys() | REPAIRS.keys()) - known


@pytest.mark.slow
def test_a_bias_is_named_and_its_remedy_cures() -> None:
    row = run_one(("negative_bias", 0, "fault"))
    twins = {"negative_bias": {seed: run_one(("negative_bias", seed, "twin"))["score"] for seed in (0, 1)}}
    (found,) = judged([("negative_bias", 0, row)], twins)
    assert (found["harmful"], found["right"], found["cured"]["first"], found["cured"]["tenth"]) == (True, True, True, False)
