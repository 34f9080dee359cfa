"""Faults of data: units, missing values, order, pairs, copies, leaks, axes. Unless said otherwise validation has them too."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from tests.evidence.population.operators.fault import Sites, between, both, fault, shuffled, when
from tests.evidence.population.training import Batch, Training

CLASSES = ("classes", "tokens", "masks")


def floats(t: Training) -> list[int]:
    """The inputs that are numbers of a measurement: edges of a graph, ids and times are none."""
    first = t.data.train.inputs[0]
    return [0] if first.is_floating_point() and t.data.kind not in ("actions",) else []


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


def numbers(t: Training) -> list[None]:
    """Targets that are numbers, measured by a loss that takes any."""
    return targets(t) if t.data.kind == "numbers" and t.recipe.loss in ("mse", "l1", "huber", "gaussian", "quantile") else []


def vectors(t: Training) -> list[None]:
    """A table with classes or numbers as targets."""
    return targets(t) if columns(t) else []


def inputs(t: Training, change: Callable[[Tensor], Tensor], parts: Iterable[str] = ("train", "validation")) -> None:
    """Change the first input; an autoencoder's targets are its inputs."""
    for name in parts:
        batch = getattr(t.data, name)
        new = change(batch.inputs[0])
        same = t.data.kind == "inputs" and batch.targets is not None and batch.targets is batch.inputs[0]
        setattr(t.data, name, Batch((new, *batch.inputs[1:]), new if same else batch.targets))


def answers(t: Training, change: Callable[[Tensor], Tensor], parts: Iterable[str] = ("train", "validation")) -> None:
    """Change the targets."""
    for name in parts:
        batch = getattr(t.data, name)
        if batch.targets is not None:
            setattr(t.data, name, batch._replace(targets=change(batch.targets)))


def chosen(t: Training, indices: Tensor) -> None:
    """Train on these samples only."""
    batch = t.data.train
    t.data.train = Batch(tuple(x[indices] for x in batch.inputs), None if batch.targets is None else batch.targets[indices])


def column(x: Tensor, i: int, change: Callable[[Tensor], Tensor]) -> Tensor:
    """One column changed."""
    x = x.clone()
    x[:, i] = change(x[:, i])
    return x


@fault("data", "large_inputs", "scale the inputs to a deviation of 1", where=floats, code="x = x / 255",
       harmless="a norm behind the first layer undoes it")  # fmt: skip
def inputs_scaled(t: Training, _: int) -> Sites:
    factor = between(t, 30, 3000)
    inputs(t, lambda x: x * factor)


@fault("data", "tiny_inputs", "divide the inputs once", where=floats, code="x = x / 255",
       harmless="a norm behind the first layer undoes it")  # fmt: skip
def inputs_divided_twice(t: Training, _: int) -> Sites:
    factor = between(t, 255, 255**2)
    inputs(t, lambda x: x / factor)


@fault("data", "large_inputs", "subtract the mean from the inputs", where=floats, code="x = (x - mean) / std",
       also=("destroyed_inputs",))  # fmt: skip
def inputs_shifted(t: Training, _: int) -> Sites:
    offset = between(t, 5, 300) * t.data.train.inputs[0].std().item()
    inputs(t, lambda x: x + offset)


@fault("data", "large_inputs", "scale each column", where=columns, also=("placeholder",))
def column_in_other_units(t: Training, i: int) -> Sites:
    factor = between(t, 100, 30_000)
    inputs(t, lambda x: column(x, i, lambda c: c * factor))


@fault("data", "placeholder", "replace the number that stands for what is missing", where=columns, also=("large_inputs",),
       code="x = x.masked_fill(x == -9999, 0)")  # fmt: skip
def missing_as_minus_9999(t: Training, i: int) -> Sites:
    share = between(t, 0.01, 0.2)

    def gap(values: Tensor) -> Tensor:
        gone = shuffled(t, len(values))[: max(1, int(share * len(values)))]
        return values.index_fill(0, gone, -9999.0)

    inputs(t, lambda x: column(x, i, gap))


@fault("data", "nonfinite_data", "leave out samples that are not finite", where=floats, code="x = torch.nan_to_num(x)")
def sample_with_nan(t: Training, _: int) -> Sites:
    at = int(shuffled(t, len(t.data.train.inputs[0]))[0])
    value = t.pick((float("nan"), float("inf")))

    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[at].view(-1)[0] = value
        return x

    inputs(t, spoil, ("train",))


@fault("data", "nonfinite_data", "leave out samples without a target", where=numbers)
def target_that_is_nan(t: Training, _: None) -> Sites:
    missing = shuffled(t, len(t.data.train.targets))[: t.pick((1, 5, 20))]
    answers(t, lambda y: y.clone().index_fill_(0, missing, float("nan")), ("train",))


@fault("data", "ordered_data", "shuffle the training samples", where=classes, stage="training", code="DataLoader(…, shuffle=True)")
def sorted_by_class(t: Training, _: None) -> Sites:
    first = t.data.train.targets.reshape(len(t.data.train.targets), -1)[:, 0]
    chosen(t, first.argsort(stable=True))
    t.loop.shuffle = False


@fault("data", "unrelated_targets", "keep each sample with its target", where=targets)
def targets_shuffled(t: Training, _: None) -> Sites:
    answers(t, lambda y: y[shuffled(t, len(y))], ("train",))


@fault("data", "unrelated_targets", "clean the labels", where=targets, harmless="a net learns through some noise")
def targets_partly_wrong(t: Training, _: None) -> Sites:
    share = 0.4 + 0.55 * torch.rand((), generator=t.generator).item()

    def mixed(y: Tensor) -> Tensor:
        wrong = shuffled(t, len(y))[: int(share * len(y))]
        return y.index_copy(0, wrong, y[wrong.roll(1)])

    answers(t, mixed, ("train",))


@fault("data", "other_numbers", "number the classes once, for training and validation", where=classes)
def classes_numbered_anew(t: Training, _: None) -> Sites:
    order = shuffled(t, t.data.form.answers)
    answers(t, lambda y: torch.where(y >= 0, order[y.clamp(min=0)], y), ("train",))


@fault("data", "same_batches", "draw new samples for each batch")
def few_samples_repeated(t: Training, _: None) -> Sites:
    n = len(t.data.train.inputs[0])
    chosen(t, torch.arange(n) % int(between(t, 2, 24)))


@fault("data", "constant_data", "read the sample of the index", where=targets, code="return self.x[index], self.y[index]")
def always_the_first_input(t: Training, _: None) -> Sites:
    batch = t.data.train
    t.data.train = Batch(tuple(x[:1].expand_as(x).clone() for x in batch.inputs), batch.targets)


@fault("data", "constant_data", "scale before the numbers become integers", where=floats, also=("destroyed_inputs",),
       code="x = x / 255  # not x // 255")  # fmt: skip
def divided_as_integers(t: Training, _: int) -> Sites:
    most = t.data.train.inputs[0].abs().max().item()
    inputs(t, lambda x: (x / (1.01 * most)).trunc())


@fault("data", "constant_data", "read the target of the sample", where=targets)
def targets_all_alike(t: Training, _: None) -> Sites:
    answers(t, lambda y: y[:1].expand_as(y).clone(), ("train",))


@fault("data", "target_in_input", "leave out the column that holds the target", where=both(classes, columns))
def column_that_is_the_target(t: Training, i: int) -> Sites:
    known = t.data.train.targets.reshape(len(t.data.train.targets), -1)[:, 0].float()
    inputs(t, lambda x: column(x, i, lambda _: known), ("train",))


@fault("data", "other_units", "scale validation as training", where=floats)
def validation_in_other_units(t: Training, _: int) -> Sites:
    factor = t.pick((1 / 255, 16.0, 255.0, between(t, 5, 100)))
    inputs(t, lambda x: x * factor, ("validation",))


@fault("data", "other_units", "bring the columns of validation into the order of training", where=vectors)
def columns_in_another_order(t: Training, _: None) -> Sites:
    order = shuffled(t, t.data.train.inputs[0].shape[1])
    inputs(t, lambda x: x[:, order], ("train",))


@fault("data", "large_targets", "standardise the targets", where=numbers, code="y = (y - y.mean()) / y.std()",
       harmless="an optimizer that normalises its steps may get there")  # fmt: skip
def targets_in_dollars(t: Training, _: None) -> Sites:
    factor = between(t, 100, 1e6)
    answers(t, lambda y: y * factor)


@fault("data", "large_targets", "subtract the mean from the targets", where=numbers, code="y = y - y.mean()")
def targets_far_from_zero(t: Training, _: None) -> Sites:
    offset = between(t, 50, 5000)
    answers(t, lambda y: y + offset)


@fault("data", "labels_lost", "keep the labels", where=both(classes, when(lambda t: t.recipe.loss in ("cross_entropy", "nll"))))
def labels_ignored(t: Training, _: None) -> Sites:
    share = t.pick((0.7, 0.9, 0.97))

    def masked(y: Tensor) -> Tensor:
        lost = torch.rand(y.shape, generator=t.generator) < share
        lost.view(-1)[0] = False
        return y.masked_fill(lost, -100)

    answers(t, masked, ("train",))


@fault("data", "unrelated_targets", "transpose, do not view", also=("destroyed_inputs",), code="x = x.transpose(0, 1)",
       where=lambda t: targets(t) if t.data.train.inputs[0].ndim >= 2 and t.data.train.inputs[0].shape[1] > 1 else [])  # fmt: skip
def samples_viewed_as_places(t: Training, _: None) -> Sites:
    inputs(t, lambda x: x.transpose(0, 1).reshape(x.shape), ("train",))


# Batch by batch, in training alone.


def each_batch(t: Training, change: Callable[[Tensor], Tensor]) -> None:
    """Change the first input of training batches."""

    def prepared(training: Training, batch: Batch) -> Batch:
        return batch._replace(inputs=(change(batch.inputs[0]), *batch.inputs[1:]))

    t.loop.prepare.insert(0, prepared)


@fault("data", "strong_augmentation", "add less noise", where=floats, stage="training", also=("unrelated_targets",))
def noise_too_strong(t: Training, _: int) -> Sites:
    size = between(t, 4, 40) * t.data.train.inputs[0].std().item()
    each_batch(t, lambda x: x + size * torch.randn_like(x))


@fault("data", "strong_augmentation", "keep what the mask keeps", where=floats, stage="training", also=("unrelated_targets",),
       code="x = x * (torch.rand_like(x) > p)")  # fmt: skip
def inverted_random_mask(t: Training, _: int) -> Sites:
    p = t.pick((0.02, 0.05, 0.1))
    each_batch(t, lambda x: x * (torch.rand_like(x) < p))


@fault("data", "bad_batch", "leave out the samples that are unlike the others", where=floats, stage="training")
def one_corrupt_batch(t: Training, _: int) -> Sites:
    at, factor, calls = int(t.loop.steps * t.pick((0.2, 0.5, 0.7))), between(t, 1e3, 1e6), [0]

    def corrupt(x: Tensor) -> Tensor:
        calls[0] += 1
        return x * factor if calls[0] == at + 1 else x

    each_batch(t, corrupt)
