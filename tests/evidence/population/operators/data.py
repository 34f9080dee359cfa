"""Faults of data: units, missing values, order, pairs, copies, leaks, axes. Unless said otherwise validation has them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from tests.evidence.population.operators.fault import Group, Sites, between, both, shuffled, validating, when
from tests.evidence.population.training import Batch, Training

CLASSES = ("classes", "tokens", "masks")
BOTH, TRAIN = ("train", "validation"), ("train",)
fault = Group("data")


def floats(t: Training) -> list[int]:
    """The inputs that are numbers of a measurement: edges of a graph, ids and times are none."""
    first = t.data.train.inputs[0]
    return [0] if first.is_floating_point() and t.data.kind not in ("actions",) else []


pixels = when(lambda t: t.data.form.kind == "image" and t.recipe.inputs != "standard")


def columns(t: Training) -> list[int]:
    """The columns of a table."""
    first = t.data.train.inputs[0]
    return list(range(first.shape[1])) if floats(t) and first.ndim == 2 and first.shape[1] > 1 else []


def targets(t: Training) -> list[None]:
    """Targets of their own."""
    return [None] if t.data.train.targets is not None and t.data.kind not in ("actions", "inputs") else []


def classes(t: Training) -> list[None]:
    """Targets that are classes."""
    return targets(t) if targets(t) and not t.data.train.targets.is_floating_point() and t.data.kind in CLASSES else []


ignorable = both(when(lambda t: t.data.kind in CLASSES[1:] and t.recipe.loss in ("cross_entropy", "nll")), classes)


def numbers(t: Training) -> list[None]:
    """Targets that are numbers, measured by a loss that takes any."""
    return targets(t) if t.data.kind == "numbers" and t.recipe.loss in ("mse", "l1", "huber", "gaussian") else []


def inputs(t: Training, change: Callable[[Tensor], Tensor], parts: Iterable[str] = BOTH) -> None:
    """Change the first input; an autoencoder's targets are its inputs."""
    for name in parts:
        batch = getattr(t.data, name)
        new = [change(x) for x in batch.inputs[: 2 if t.data.kind == "ranking" else 1]]
        same = t.data.kind == "inputs" and batch.targets is not None and batch.targets is batch.inputs[0]
        setattr(t.data, name, Batch((*new, *batch.inputs[len(new) :]), new[0] if same else batch.targets))


def answers(t: Training, change: Callable[[Tensor], Tensor], parts: Iterable[str] = BOTH) -> None:
    """Change the targets."""
    for name in parts:
        batch = getattr(t.data, name)
        if batch.targets is not None:
            setattr(t.data, name, batch._replace(targets=change(batch.targets)))


def chosen(t: Training, indices: Tensor) -> None:
    """Train on these samples only."""
    batch = t.data.train
    t.data.train = Batch(tuple(x[indices] for x in batch.inputs), None if batch.targets is None else batch.targets[indices])


def column(t: Training, i: int, change: Callable[[Tensor], Tensor], parts: Iterable[str] = BOTH) -> None:
    """Change one column."""
    inputs(t, lambda x: torch.cat([x[:, :i], change(x[:, i])[:, None], x[:, i + 1 :]], 1), parts)


def times(factor: float, plus: float = 0.0) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor + plus


def spread(t: Training) -> float:
    """The deviation of the inputs."""
    return t.data.train.inputs[0].std().item()


@fault("nonfinite_data", "leave out samples that are not finite", floats)
def sample_with_nan(t: Training, _: int) -> Sites:
    at, value = int(shuffled(t, len(t.data.train.inputs[0]))[0]), t.pick((float("nan"), float("inf")))

    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[at].view(-1)[0] = value
        return x

    inputs(t, spoil, TRAIN)


@fault("ordered_data", "shuffle the training samples", both(when(lambda t: t.data.kind == "classes"), classes), stage="training")
def sorted_by_class(t: Training, _: None) -> Sites:
    chosen(t, t.data.train.targets.reshape(len(t.data.train.targets), -1)[:, 0].argsort(stable=True))
    t.loop.shuffle = False


def each_batch(t: Training, change: Callable[..., Tensor], *more: float) -> None:
    """Change the first input of training batches."""
    t.loop.prepare.insert(0, lambda _, batch: batch._replace(inputs=(change(batch.inputs[0], *more), *batch.inputs[1:])))


@fault("bad_batch", "leave out the samples that are unlike the others", floats, stage="training")
def one_corrupt_batch(t: Training, _: int) -> Sites:
    at, factor, calls = int(t.loop.steps * t.pick((0.2, 0.5, 0.7))), between(t, 1e3, 1e6), [0]

    def corrupt(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * factor if calls[0] == at + 1 else x

    each_batch(t, corrupt)


def moved(t: Training, n: int) -> Tensor:
    """Another order."""
    order = shuffled(t, n)
    return order.roll(1) if order.equal(torch.arange(n)) else order


def numbered(t: Training, order: Tensor) -> None:
    """Other numbers of the classes of training."""
    answers(t, lambda y: torch.where(y >= 0, order[y.clamp(min=0)], y), TRAIN)


def gaps(t: Training, share: float) -> Callable[[Tensor], Tensor]:
    """A share of the values of a column at -9999."""
    return lambda x: x.index_fill(0, shuffled(t, len(x))[: max(1, int(share * len(x)))], -9999.0)


# fmt: off
fault.by("tiny_inputs", "divide the inputs once", both(pixels, floats),
         inputs_divided_twice=lambda t, _: inputs(t, times(1 / between(t, 255, 255**2))))
fault.by("large_inputs placeholder", "scale each column", columns,
         column_in_other_units=lambda t, i: column(t, i, times(between(t, 100, 30_000))))
fault.by("large_targets", "standardise the targets", numbers,
         targets_in_dollars=lambda t, _: answers(t, times(between(t, 100, 1e6))),
         targets_far_from_zero=lambda t, _: answers(t, times(1.0, between(t, 50, 5000))))
fault.by("large_inputs", "scale the inputs to a deviation of 1", floats,
         inputs_scaled=lambda t, _: inputs(t, times(between(t, 30, 3000))))
fault.by("large_inputs destroyed_inputs", "subtract the mean from the inputs", floats,
         inputs_shifted=lambda t, _: inputs(t, times(1.0, between(t, 5, 300) * spread(t))))
fault.by("other_units", "scale validation as training", both(validating, floats),
         validation_in_other_units=lambda t, _: inputs(t, times(t.pick((1 / 255, 16.0, 255.0, between(t, 5, 100)))), BOTH[1:]))
fault.by("unrelated_targets unlike_validation", "keep each sample with its target", targets,
         targets_shuffled=lambda t, _: answers(t, lambda y: y[shuffled(t, len(y))], TRAIN))
fault.by("constant_data destroyed_inputs", "scale before the numbers become integers", both(pixels, floats),
         divided_as_integers=lambda t, _: inputs(t, lambda x: (x / (1.01 * x.abs().max())).trunc()))
fault.by("placeholder large_inputs", "replace the number that stands for what is missing", columns,
         missing_as_minus_9999=lambda t, i: column(t, i, gaps(t, between(t, 0.01, 0.2))))
fault.by("same_batches", "draw new samples for each batch",
         few_samples_repeated=lambda t, _: chosen(t, torch.arange(len(t.data.train.inputs[0])) % int(between(t, 2, 24))))
fault.by("target_in_input", "leave out the column that holds the target", both(classes, columns),
         column_that_is_the_target=lambda t, i: column(t, i, lambda _: t.data.train.targets.flatten().float(), TRAIN))
fault.by("other_units unlike_validation", "bring the columns of validation into the order of training", both(columns, targets),
         columns_in_another_order=lambda t, _: inputs(
    t, partial(torch.index_select, dim=1, index=moved(t, t.data.train.inputs[0].shape[1])), TRAIN))
fault.by("labels_lost", "ignore only what is padding", ignorable,
         labels_ignored=lambda t, _: answers(t, lambda y: y.where(torch.rand(y.shape) > t.pick((0.95, 0.99)), -100), TRAIN))
fault.by("other_numbers", "number the classes once, for training and validation", classes,
         classes_numbered_anew=lambda t, _: numbered(t, moved(t, t.data.form.answers)))
fault.by("strong_augmentation unrelated_targets", "add less noise", floats, stage="training",
         noise_too_strong=lambda t, _: each_batch(t, lambda x, size: x + size * torch.randn_like(x), between(t, 4, 40) * spread(t)))
