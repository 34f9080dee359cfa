"""A bad step in words: what gave the first value that is not finite, where, why, and the code that keeps it finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch

from lightning_hooks.declare.cause import Remedy
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep, Failure, Place


class Explanation(NamedTuple):
    """Why an operation was not finite."""

    of: str  # completes "log of …"
    why: str
    remedies: tuple[Remedy, ...] = ()


class Points(NamedTuple):
    """The points of an argument at which an operation is not finite, by the counts of an argument."""

    argument: str
    value: tuple[str, ...]
    slope: tuple[str, ...]  # where only its gradient is not
    code: str


_FROM_0, _WITHIN_1 = "torch.{}(x.clamp_min(1e-8))", "torch.{}(x.clamp(-1 + 1e-6, 1 - 1e-6))"
# Operations that are not finite at some points.
POINTS = {
    **dict.fromkeys(("log", "log2", "log10", "rsqrt", "lgamma", "digamma"), Points("self", ("zero", "negative"), (), _FROM_0)),
    "sqrt": Points("self", ("negative",), ("zero",), _FROM_0),
    "div": Points("other", ("zero",), (), "x / y.clamp_min(1e-8)"),
    "reciprocal": Points("self", ("zero",), (), "1 / x.clamp_min(1e-8)"),
    **dict.fromkeys(("acos", "asin"), Points("self", ("beyond",), ("one",), _WITHIN_1)),
    **dict.fromkeys(("atanh", "erfinv"), Points("self", ("beyond", "one"), (), _WITHIN_1)),
    "logit": Points("self", ("outside", "zero", "one"), (), "torch.logit(x, eps=1e-6)"),
    "binary_cross_entropy": Points("self", ("outside",), (), "F.binary_cross_entropy_with_logits(logits, target)"),
}
_WORDS = {
    "zero": ("0", "0"),
    "negative": ("a negative number", "negative"),
    "one": ("±1", "±1"),
    "beyond": ("a number beyond ±1", "beyond ±1"),
    "outside": ("a number outside [0, 1]", "outside [0, 1]"),
}
_NAMES = {"div": "division", "to": "cast"}
# Operations that overflow, and how much further than ``exp`` they do.
_GROWS = {"exp": 1.0, "expm1": 1.0, "exp2": math.log2(math.e), "sinh": 1.0, "cosh": 1.0}
# Operations that are finite for all finite numbers but those that are too large.
_OVERFLOWS = {
    *("add", "sub", "mul", "square", "sum", "mean", "dot", "mm", "mv", "bmm", "addmm", "addmv", "baddbmm", "matmul"),
    *("convolution", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
}
_OF_MATRICES = tuple(f"linalg_{name}" for name in ("cholesky", "eig", "inv", "ldl", "lu", "qr", "slogdet", "solve", "svd"))


def operation_of(failure: Failure) -> str:
    """The operation's name, without the mark of one that writes in place, and of a backward pass."""
    return failure.place.operation.rstrip("_").removesuffix("_backward")


def name_of(failure: Failure) -> str:
    """The operation as a sentence names it."""
    name = operation_of(failure)
    return _NAMES.get(name, name.removeprefix("linalg_").removesuffix("_ex")) or "an operation"


def place_of(place: Place) -> str:
    """Where an operation was called: ``Log.forward, net.py:12``."""
    function = place.function if "<" not in place.function else ""
    return ", ".join(filter(None, (function or place.module or "training_step", place.where)))


def overflows(failure: Failure) -> bool:
    """Whether only numbers that are too large make the operation fail."""
    return failure.source == "operation" and operation_of(failure) in _OVERFLOWS and _of_constant(failure) is None


def explained(step: BadStep) -> Explanation | None:
    """Why the operation of a bad step was not finite, by its arguments; None where they do not say it."""
    failure = step.failure
    if failure.source not in ("operation", "error"):
        return None
    name = operation_of(failure)
    if failure.source == "error" and name != "binary_cross_entropy" and "LinAlgError" not in failure.value.partition(":")[0]:
        return None
    judge = next((judge for names, judge in _JUDGES if name in names), _of_matrix if name.startswith(_OF_MATRICES) else _of_size)
    return _of_constant(failure) or judge(step, name) or _of_size(step)


def _replaced(failure: Failure, code: str, what: str = "", to: str = "") -> Remedy:
    """Replace an operation by a line of code; or something next to it by something else, with the line."""
    target = f"{what or name_of(failure)} in {failure.place.module or 'training_step'}"
    return Remedy("replace", target, None, to or code, "", "a finite loss", 1, code if to else "")


def _counted(count: int, of: int, things: str) -> str:
    return f"{count} of {of} {things} {'is' if count == 1 else 'are'}"


def _of_points(step: BadStep, name: str) -> Explanation | None:
    points, failure = POINTS[name], step.failure
    argument = failure.place.argument(points.argument)
    if argument is None:
        return Explanation("0", "The divisor is 0 in the code.") if failure.place.settings.get("other") == 0 else None
    last = "zero" if failure.value == "NaN" and failure.phase == "forward" else ""  # the log of 0 is infinite, of less NaN
    value = sorted(points.value, key=lambda one: one == last)
    found = next((one for one in (*value, *points.slope) if argument.counts.get(one)), "")
    if not found or (found in points.slope and failure.phase == "forward"):
        return None
    of, are = _WORDS[found]
    why = f"{_counted(argument.counts[found], argument.elements, 'divisors' if name == 'div' else 'inputs')} {are}"
    if found in ("negative", "beyond", "outside"):
        why += f" (they go from {argument.low:.3g} to {argument.high:.3g})"
    if failure.phase == "backward":
        why += (
            ", where its slope is infinite"
            if found in points.slope
            else "; the gradient is not finite even where torch.where or a mask leaves the value out"
        )
    signed = name == "div" and argument.counts.get("negative")
    code = "x / torch.where(y.abs() < 1e-8, 1e-8, y)" if signed else points.code.format(name)
    remedies = [_replaced(failure, code)]
    if name == "log":  # a bound lets no gradient through
        remedies.append(_replaced(failure, "torch.log(F.softplus(x))", "the rectifier before the log", "a softplus"))
    return Explanation(of, f"{why}.", tuple(remedies))


def _of_power(step: BadStep, _: str) -> Explanation | None:
    place, backward = step.failure.place, step.failure.phase == "backward"
    base, exponent, exponents = place.argument("self"), place.settings.get("exponent"), place.argument("exponent")
    if base is None:
        return None
    root = base.low < 0 and (exponent is None or exponent % 1) and (backward or step.failure.value == "NaN")
    found, lowest = "negative" if root else "zero", exponent if exponents is None else exponents.low
    count = base.counts.get(found, 0)
    if not count or lowest is None or (not root and not lowest < (1 if backward else 0)):
        return None
    why = f"{_counted(count, base.elements, 'bases')} {_WORDS[found][1]}"
    why += "" if exponent is None else f", and the exponent is {exponent:g}"
    return Explanation(_WORDS[found][0], f"{why}.", (_replaced(step.failure, "x.clamp_min(1e-8) ** exponent"),))


def _of_growth(step: BadStep, name: str) -> Explanation | None:
    argument = step.failure.place.argument("self")
    if argument is None or math.isnan(argument.high):
        return None
    both = name.endswith("h")
    largest = max(argument.high, -argument.low) if both else argument.high
    limit = math.log(_largest(argument.dtype)) * _GROWS[name]
    if largest < limit:
        return None
    bound = f"{0.9 * limit:.0f}.0"
    code = f"torch.{name}(x.clamp({f'-{bound}, {bound}' if both else f'max={bound}'}))"
    return Explanation(
        of=f"{largest:.4g}",
        why=f"The largest input is {largest:.4g}; above {limit:.1f} {name} passes the largest {argument.dtype}.",
        remedies=(_replaced(step.failure, code),),
    )


def _of_rows(step: BadStep, name: str) -> Explanation | None:
    settings, failure = step.failure.place.settings, step.failure
    if not settings.get("empty"):
        return None
    why = f"{_counted(settings['empty'], settings['slices'], 'rows')} -inf throughout"
    lowest = _replaced(
        failure,
        code="scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
        what=f"-inf before the {name}",
        to="the lowest finite number",
    )
    if settings.get("queries"):
        keys = _replaced(failure, "mask[:, None, :]", "the mask", "one of keys")
        return Explanation(
            "rows of -inf", f"{why}, the others not masked: the mask is of queries in place of keys.", (keys, lowest)
        )
    inverted = _replaced(failure, "~mask", "the mask", "one that leaves a key to each query")
    few = bool(step.samples) and not step.first  # a mask that is always wrong is so in the first batch
    return Explanation("rows of -inf", f"{why}: a mask leaves them no key.", (lowest, inverted) if few else (inverted, lowest))


def _of_deviation(step: BadStep, name: str) -> Explanation | None:
    if step.failure.place.settings.get("size") != 1:
        return None
    return Explanation(
        of="a single value",
        why="It divides by 0, the number of values less one, as in a last batch of one sample.",
        remedies=(
            Remedy("set", "dataloader.drop_last", False, True, "", "a finite loss", 50, "DataLoader(…, drop_last=True)"),
            _replaced(step.failure, f"x.{name.removesuffix('_mean')}(0, correction=0)"),
        ),
    )


def _of_labels(step: BadStep, _: str) -> Explanation | None:
    place = step.failure.place
    given, target = place.argument("self"), place.argument("target")
    if place.settings.get("used") == 0 and target is not None:
        index = place.settings.get("ignore_index", -100)
        why = f"All {target.elements} labels are ignore_index ({index}): it is the mean of nothing."
        code = f'F.cross_entropy(logits, target, reduction="sum") / (target != {index}).sum().clamp_min(1)'
        return Explanation("no label", why, (_replaced(step.failure, code),))
    if given is None or not given.counts.get("-inf"):
        return None
    remedy = _replaced(
        step.failure,
        code="mask.scatter(1, target[:, None], False)",
        what="the mask of the classes",
        to="one that leaves the class of the label",
    )
    return Explanation("-inf", "The logit of a label's class is -inf: the class is masked.", (remedy,))


def _of_alignment(step: BadStep, _: str) -> Explanation | None:
    settings = step.failure.place.settings
    if "steps" not in settings:
        return None
    labels, repeats = settings["labels"], settings["repeats"]
    more = f", one more for each of {repeats} repeated labels" * bool(repeats)
    return Explanation(
        of="targets that do not fit",
        why=f"Sequence {settings['row']} of the batch has {settings['steps']} input steps, too few for {labels} labels, which need "
        f"{labels + repeats}{more}.",
        remedies=(
            Remedy("set", "zero_infinity of ctc_loss", False, True, "", "a finite loss", 1),
            _replaced(step.failure, "", "inputs that are too short", f"inputs of at least {labels + repeats} steps"),
        ),
    )


def _of_matrix(step: BadStep, name: str) -> Explanation | None:
    if "eig" in name or "svd" in name:
        code = "A + torch.diag(1e-6 * torch.arange(A.shape[-1], dtype=A.dtype))"
        of, why = "equal eigenvalues", "Two eigenvalues or singular values are equal: it has no gradient there."
    else:
        of, code = "a singular matrix", "A + 1e-6 * torch.eye(A.shape[-1])"
        why = f"A matrix is singular{', or not positive definite' * ('cholesky' in name)}."
    return Explanation(of, why, (_replaced(step.failure, code, f"the matrix before {name_of(step.failure)}", "one that is not"),))


def _of_normalisation(step: BadStep, _: str) -> Explanation | None:
    place = step.failure.place
    if place.settings.get("eps") != 0 or not place.module:
        return None
    return Explanation(
        of="equal values",
        why="Values that it normalises are equal, and its eps is 0.",
        remedies=(Remedy("set", f"{place.module}.eps", 0.0, 1e-5, "", "a finite loss", 1),),
    )


def _of_nothing(step: BadStep, _: str) -> Explanation | None:
    argument = step.failure.place.argument("self")
    if argument is None or argument.elements:
        return None
    return Explanation("nothing", "Its input has no values.", (_replaced(step.failure, "x.sum() / max(x.numel(), 1)"),))


def _of_constant(failure: Failure) -> Explanation | None:
    bad = [value for value in failure.place.settings.values() if isinstance(value, float) and not math.isfinite(value)]
    return Explanation(f"{bad[0]}", f"It is given {bad[0]} in the code.") if bad else None


def _of_size(step: BadStep, _: str = "") -> Explanation | None:
    """An overflow: of the dtype that numbers are cast to, or of an operation that is finite for all that are small enough."""
    failure = step.failure
    arguments = [one for one in failure.place.arguments if not math.isnan(one.low)]
    to = failure.place.settings.get("dtype") or next((one.dtype for one in arguments if "float" in one.dtype), "float32")
    half = to == "float16"
    finite = all(math.isfinite(one.low) and math.isfinite(one.high) for one in arguments)  # NaN then is infinity less infinity
    grew = half or (failure.phase == "forward" and (finite or failure.value != "NaN"))
    if not arguments or not grew or operation_of(failure) not in (*_OVERFLOWS, "to"):
        return None
    sizes = [f"{max(abs(one.low), abs(one.high)):.3g}" for one in arguments[:2]]
    be = "is" if len(sizes) == 1 else "are"
    return Explanation(
        of="numbers that are too large",
        why=f"The largest of its inputs {be} {' and '.join(sizes)}; {to} ends at {_largest(to):.4g}.",
        remedies=(_replaced(failure, "x.to(torch.bfloat16)", "float16", "bfloat16"),) if half else (),
    )


def _largest(dtype: str) -> float:
    kind = getattr(torch, dtype, torch.float32)
    return torch.finfo(kind).max if kind.is_floating_point else math.inf


_JUDGES: tuple[tuple[tuple[str, ...], Callable[[BadStep, str], Explanation | None]], ...] = (
    (tuple(POINTS), _of_points),
    (("pow",), _of_power),
    (tuple(_GROWS), _of_growth),
    (("softmax", "log_softmax", "logsumexp"), _of_rows),
    (("std", "var", "std_mean", "var_mean"), _of_deviation),
    (("nll_loss", "nll_loss2d"), _of_labels),
    (("ctc_loss",), _of_alignment),
    (("layer_norm", "batch_norm", "group_norm", "rms_norm"), _of_normalisation),
    (("mean",), _of_nothing),
)


class Statement(NamedTuple):
    """What an alert says of a bad step."""

    title: str  # a few words: Log of 0
    what: str  # a sentence: log of 0 gives -inf in Log.forward, net.py:12.
    why: str = ""  # a sentence: 1 of 8 inputs is 0.; empty where the first says it all


def state(step: BadStep) -> Statement:
    """What an alert says of a bad step."""
    failure = step.failure
    name, where = name_of(failure), place_of(failure.place)
    if failure.source in ("data", "weights"):
        first = f"The first operation with it is {name} in {where}."
        if failure.source == "data":
            return Statement(f"{failure.value} in batch{failure.name}", f"batch{failure.name} has {failure.value} in it.", first)
        return Statement(
            title=f"{failure.value} in {failure.name}",
            what=f"{failure.name} was {failure.value} before the step, and no step makes it finite again.",
            why=first,
        )
    found = explained(step)
    why = "" if found is None else found.why
    if failure.source == "error":
        error = failure.value.partition(":")[0].lstrip("_")  # its text may hold values of the data
        name = name if failure.place.operation else "the code"
        return Statement(f"{error} in {name}", f"{name} raises {error} in {where}.", why)
    if failure.phase == "forward":
        title = f"{name} {'by' if name == 'division' else 'of'} {found.of}" if found is not None else f"{failure.value} from {name}"
        return Statement(title[:1].upper() + title[1:], f"{title if found else name} gives {failure.value} in {where}.", why)
    title = f"gradient of {name}{f' at {found.of}' if found is not None else ''}"
    return Statement(f"G{title[1:]}", f"the {title} is {failure.value} in {where}.", why)
