"""Causes in the code: what is not finite, what no optimizer holds, what stands before the loss."""

from __future__ import annotations

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.hypothesis import Cause, Evidence, Hypothesis, hypothesis
from lightning_hooks.declare.remedy import Remedy
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.rates import SOON, rate_too_high
from lightning_hooks.diagnostics.causes.weights import in_code, large_inputs


def fact(name: str, title: str, op: str, target: str, to: str | None = None, code: str = "", score: float = 0.7) -> Hypothesis:
    """What a rule states as a fact, with the remedy that follows: a kind whose alerts say what is wrong.

    Args:
        name: Of the hypothesis.
        title: What it supposes.
        op: Of the remedy.
        target: Of the remedy; ``{site}`` stands for the alert's site, ``{module}`` for its module.
        to: Of the remedy.
        code: Of the remedy.
        score: Where the rule's alerts may have other causes, less than 0.5.
    """

    def judge(alert: Alert, facts: Facts) -> Cause | None:
        module = facts.module_of(alert.site) or alert.site
        words = {"site": alert.site, "module": module, "self": in_code(alert.site), "of_module": in_code(module)}
        remedy = Remedy(op, target.format(**words), None, to, "", "", SOON, code.format(**words))
        return Cause(name, f"{title[:1].upper()}{title[1:]}: {alert.message}", score, (alert.message,), (), (remedy,))

    done = f"{op} {target}{f' {to}' if to else ''}".replace("{site}", "SITE").replace("{module}", "MODULE")
    return Hypothesis(name, title, (done,), judge)


# What is not finite.


@hypothesis("weights are not finite since the start", "initialise the parameter, or load it again")
def nonfinite_weights(_: Alert, facts: Facts) -> Cause | None:
    """Parameters that held NaN or infinity when training started: no step mends them."""
    bad = [name for name, tensor in facts.start.items() if tensor.nonfinite]
    if not bad:
        return None
    tensor, more = facts.start[bad[0]], f" and {len(bad) - 1} more parameters" * (len(bad) > 1)
    found = Evidence()
    found.add(True, 0.95, "it was so before the first step")
    text = f"{bad[0]}{more} held {tensor.nonfinite} numbers of {tensor.elements} that are NaN or infinite when training started: all further steps are lost."
    remedies = [
        Remedy(
            "initialise",
            name,
            None,
            "kaiming_uniform" if tensor.elements > 1 else None,
            "",
            "a finite loss",
            1,
            f"{in_code(name)}.data.nan_to_num_(0.0)",
        )
        for name in bad[:1]
    ]
    return found.cause("nonfinite_weights", text, *remedies)


@hypothesis("the data are not finite", "check the samples, replace what is not finite in the batch")
def nonfinite_data(_: Alert, facts: Facts) -> Cause | None:
    """The batch itself holds NaN or infinity."""
    step = facts.bad_step
    if step is None or step.source != "data":
        return None
    found = Evidence()
    found.add(True, 0.95, "the step was run again, and the batch was looked at")
    place = f"batch{step.name}"
    samples = f" in sample {', '.join(map(str, step.samples[:4]))}" if step.samples else ""
    return found.cause(
        "nonfinite_data", f"{place} has {step.value} in it{samples}.",
        Remedy("replace", place, step.value, "finite numbers", "", "a finite loss", 1, f"torch.nan_to_num({place})"),
    )  # fmt: skip


_SAFE = {
    "div": "x / y.clamp_min(1e-8)",
    "log": "torch.log(x.clamp_min(1e-8))",
    "sqrt": "torch.sqrt(x + 1e-8)",
    "rsqrt": "torch.rsqrt(x + 1e-8)",
    "exp": "torch.exp(x.clamp_max(50.0))",
}
"""Operations, and what holds where their argument is at its bound."""


@hypothesis("an operation gives NaN or infinity of finite numbers", "replace the operation by one that holds for such arguments")
def nonfinite_operation(_: Alert, facts: Facts) -> Cause | None:
    """The operation that running the step again has found."""
    step = facts.bad_step
    if step is None or step.source not in ("operation", "weights"):
        return None
    if step.source == "weights" and facts.start.get(step.name) is not None and facts.start[step.name].nonfinite:
        return None
    found = Evidence()
    found.add(
        True,
        0.7,
        "the step was run again: its batch and its weights were finite" if step.source == "operation" else "the step was run again",
    )
    if step.source == "weights":
        return found.cause("diverged_weights", f"{step.name} was {step.value} before the step.")
    where = step.module or "training_step"
    name = step.operation.split(" ")[0].removesuffix("_") or "the operation"
    code = _SAFE.get(name.removesuffix("_backward"), "")
    return found.cause(
        "nonfinite_operation", f"{step.operation} gives {step.value} of finite numbers.",
        Remedy("replace", f"{name} in {where}", None, f"{name} of arguments that it holds for", "", "a finite loss", 1, code),
    )  # fmt: skip


@hypothesis("half precision overflows", "set trainer.precision to bf16-mixed")
def half_overflow(_: Alert, facts: Facts) -> Cause | None:
    """Values beyond 65 504 in float16."""
    if "16" not in facts.precision or "bf16" in facts.precision:
        return None
    sites = {} if facts.features is None else facts.features.sites
    largest = max((max(abs(stats.min), abs(stats.max)) for stats in sites.values() if stats.count), default=0.0)
    found = Evidence()
    found.add(True, 0.35, f"precision is {facts.precision}")
    found.add(largest > 1e4, 0.25, f"an output is {largest:.3g}, and the largest number of float16 is 65504")
    remedy = Remedy(
        "set", "trainer.precision", facts.precision, "bf16-mixed", "", "finite outputs", 1, 'Trainer(precision="bf16-mixed")'
    )
    return found.cause("half_overflow", f"float16 holds no number above 65504 (precision={facts.precision}).", remedy)


# Wiring.


@hypothesis("parameters are in no optimizer", "add them to the optimizer")
def in_no_optimizer(_: Alert, facts: Facts) -> Cause | None:
    """Parameters that train and have a gradient, and that no optimizer holds."""
    setups = {} if facts.flow is None else facts.flow.setups
    left = [name for name, setup in setups.items() if setup.trains and setup.has_gradient and not setup.optimizers]
    if not left:
        return None
    modules = list(dict.fromkeys(name.rpartition(".")[0] for name in left))
    found = Evidence()
    found.add(True, 0.8, "they have a gradient, and no optimizer holds them")
    shown = ", ".join(left[:2]) + f" and {len(left) - 2} more" * (len(left) > 2)
    remedies = [
        Remedy(
            "add",
            shown if len(left) <= 2 else ", ".join(modules[:20]),
            None,
            "optimizer",
            "",
            "weights that change",
            SOON,
            f"optimizer.add_param_group({{'params': {in_code(modules[0])}.parameters()}})",
        )
    ]
    return found.cause("in_no_optimizer", f"{shown} {'is' if len(left) == 1 else 'are'} in no optimizer.", *remedies)


@hypothesis("an activation stands before a loss that expects logits", "remove the activation")
def activation_before_loss(_: Alert, facts: Facts) -> Cause | None:
    """A softmax, sigmoid, tanh or ReLU as the last module."""
    twice = "" if facts.flow is None else facts.flow.squashed_twice
    called = [] if facts.features is None else [name for name in facts.features.sites if name in facts.modules]
    last = twice or next((name for name in reversed(called) if not any(other.startswith(f"{name}.") for other in called)), "")
    kind = facts.modules.get(last, "")
    given = {} if facts.features is None else facts.features.outputs
    probable = any(stats.probabilities > 0.9 for stats in given.values())
    if not twice and not (kind in ("Softmax", "Sigmoid", "ReLU", "Tanh", "LogSoftmax", "Hardtanh", "ReLU6") and given):
        return None
    found = Evidence()
    found.add(bool(twice), 0.85, "the loss applies a softmax or sigmoid itself")
    found.add(not twice, 0.6, f"{last} ({kind}) is the last module before the loss")
    found.add(probable, 0.1, "what the loss is given are probabilities")
    remedy = Remedy(
        "remove",
        last,
        kind or None,
        None,
        "the loss takes logits",
        "a loss that falls further",
        SOON,
        f"{in_code(last)} = nn.Identity()",
    )
    return found.cause("activation_before_loss", f"{last} ({kind or 'a call'}) stands before a loss that expects logits.", remedy)


@hypothesis("a batch that is unlike the others", "check its samples")
def bad_batch(alert: Alert, facts: Facts) -> Cause | None:
    """Single steps that leap although nothing was changed before them."""
    if alert.batch is None:
        return None
    rate = facts.rate_at(alert.site)
    rose = rate is not None and bool(rate.settings.lr_initial) and rate.lr > 1.5 * (rate.settings.lr_initial or 0.0)
    found = Evidence()
    found.add(True, 0.3, f"one step leapt, at batch {alert.batch} of epoch {alert.epoch}")
    found.add(rose, -0.2, "the learning rate had risen")
    named = f" ({alert.of_samples.rstrip('.')})" if alert.samples else ""
    what = f"the samples of batch {alert.batch} of epoch {alert.epoch}"
    return found.cause(
        "bad_batch",
        f"Batch {alert.batch} of epoch {alert.epoch} is unlike the others{named}.",
        Remedy("check", what, effect="no leap"),
    )


@hypothesis("weights in half precision cannot hold small steps", "set trainer.precision to bf16-mixed")
def half_weights(_: Alert, facts: Facts) -> Cause | None:
    """Weights kept in bfloat16 or float16."""
    found = Evidence()
    found.add("true" in facts.precision, 0.7, f"precision is {facts.precision}: the weights themselves are rounded")
    remedy = Remedy(
        "set", "trainer.precision", facts.precision, "bf16-mixed", "", "weights that change", SOON, 'Trainer(precision="bf16-mixed")'
    )  # fmt: skip
    return found.cause("half_weights", f"The weights are kept in half precision (precision={facts.precision}).", remedy)


NONFINITE = (nonfinite_weights, nonfinite_data, nonfinite_operation, half_overflow, large_inputs, rate_too_high)
"""What makes values NaN or infinite."""


# What a rule states as a fact.

NEVER_ZEROED = fact(
    "never_zeroed", "gradients are not zeroed between steps", "call", "optimizer.zero_grad() before manual_backward()",
    code="optimizer.zero_grad()",
)  # fmt: skip
ONE_LAYER_SHARED = fact(
    "one_layer_shared", "one layer stands in several places", "replace", "{site}", "layers of their own",
    "nn.Sequential(*(make_layer() for _ in range(n)))",
)  # fmt: skip
NOT_REGISTERED = fact(
    "not_registered", "the model does not know these modules", "replace", "{site}", "an nn.ModuleList or nn.ModuleDict",
    "{self} = nn.ModuleList(…)",
)  # fmt: skip
LEFT_IN_EVAL_MODE = fact(
    "left_in_eval_mode", "a part that trains is in eval mode", "call", "train() of {module}", code="{of_module}.train()"
)  # fmt: skip
WRONG_DIMENSION = fact("wrong_dimension", "a softmax is along the wrong dimension", "set", "{site}.dim", "-1", "softmax(x, dim=-1)")
CLIPS_IN_VAIN = fact(
    "clips_in_vain", "gradients are clipped where it has no effect", "set", "trainer.gradient_clip_val", "1.0",
    "Trainer(gradient_clip_val=1.0)",
)  # fmt: skip
CUT_PATH = fact(
    "cut_path", "no gradient reaches the parameter", "remove", "what cuts the path from {site} to the loss (detach, no_grad, argmax, "
    "a branch that forward does not use)",
)  # fmt: skip
