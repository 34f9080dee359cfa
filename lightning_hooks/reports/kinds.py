"""The kinds of alerts: what each is called and what to try, in one table."""

from __future__ import annotations

from typing import Literal

from lightning_hooks.reports.feature_kinds import OF_FEATURES
from lightning_hooks.reports.kind import Kind
from lightning_hooks.reports.output_kinds import OF_OUTPUTS

Severity = Literal["info", "warning", "critical"]

SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")
"""From what is worth knowing to what ends a training."""


def gravity(severity: str) -> int:
    """A sort key for severities: 0 for critical, 1 for warning, 2 for info, 3 for what is none of these."""
    return len(SEVERITIES) - 1 - SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


KINDS: dict[str, Kind] = {
    **OF_FEATURES,
    **OF_OUTPUTS,
    "vanishing": Kind(
        "Vanishing gradients",
        (
            "Try ReLU or GELU",
            "Use He initialisation",
            "Add normalisation layers or residual connections",
        ),
    ),
    "exploding": Kind(
        "Exploding gradients",
        (
            "Try a lower learning rate",
            "Set gradient_clip_val=1.0 if nothing clips yet",
            "Use a smaller initialisation or normalisation layers",
        ),
    ),
    "zero": Kind(
        "Gradients that are exactly zero",
        ("Check the layers after it: dead units, masks, a multiplication by zero",),
        "share",
    ),
    "missing": Kind(
        "Parameters without a gradient",
        (
            "Use it in forward",
            "Remove what breaks the path to the loss",
            "Freeze it with requires_grad_(False) if it is not to learn",
        ),
        "nothing",
    ),
    "update_too_small": Kind(
        "Updates too small to learn from",
        (
            "Raise the learning rate",
            "Find out why the gradients are so small",
        ),
    ),
    "not_updated": Kind(
        "Weights that do not change",
        (
            "Find code that writes weights: an average copied back, a parametrization, a step of your own",
            "Raise its learning rate, or keep the weights in float32",
            "Freeze it with requires_grad_(False) if it is not to learn",
        ),
        "nothing",
    ),
    "update_too_large": Kind(
        "Updates as large as the weights",
        (
            "Try a lower learning rate, a warm-up, or less weight decay",
            "Check its parameter group if only this weight is named",
        ),
    ),
    "not_optimized": Kind(
        "Parameters that no optimizer holds",
        (
            "Give it to an optimizer (optimizer.add_param_group)",
            "Freeze it with requires_grad_(False) if it is not to learn",
        ),
        "nothing",
    ),
    "updates_lost": Kind(
        "Updates lost in rounding",
        (
            "Keep the weights in float32: precision='bf16-mixed'",
            "Raise the learning rate",
            "Use an optimizer that rounds at random or adds up what is lost (Kahan summation)",
        ),
        "share",
    ),
    "update_spike": Kind(
        "An update much larger than usual",
        (
            "Check the data of this window",
            "Set gradient_clip_val to limit such a step",
        ),
    ),
    "weights_growing": Kind(
        "Weights that grow fast",
        (
            "Try a lower learning rate",
            "Add weight decay, or a normalisation layer",
        ),
    ),
    "second_moment_stale": Kind(
        "Second moments below eps",
        (
            "Scale the loss up if it is divided more than once",
            "Try a smaller eps, such as 1e-15",
        ),
        "share",
    ),
    "lr_zero": Kind(
        "A learning rate next to zero",
        (
            "Step the scheduler as often as it was made for (interval='epoch' or 'step')",
            "Make the schedule as long as the training: T_max, total_steps, num_training_steps",
        ),
    ),
    "optimizer_settings": Kind(
        "Unusual settings of an optimizer",
        ("Check the arguments of the optimizer",),
    ),
    "double_softmax": Kind(
        "A softmax before a loss that applies one",
        ("Remove it before the loss, or use nll_loss of log_softmax, or binary_cross_entropy",),
        "nothing",
    ),
    "eval_mode": Kind(
        "Training in eval mode",
        (
            "Call train() on it before training",
            "Freeze it with requires_grad_(False) if it is not to learn",
        ),
        "nothing",
    ),
    "frozen_statistics": Kind(
        "Batch norm that changes in a frozen part",
        (
            "Call eval() on the frozen part in on_train_epoch_start",
            "Set track_running_stats=False on its batch norms, as Lightning's BaseFinetuning does",
        ),
    ),
    "settings": Kind(
        "An unusual setting of a module or optimizer",
        ("Set it as the diagnosis says", "Where it is on purpose, mute this with rules=['-settings']"),
    ),
    "unregistered": Kind(
        "Modules that the model does not know",
        (
            "Put them in an nn.ModuleList or nn.ModuleDict",
            "Freeze them with requires_grad_(False) if they are hidden on purpose",
        ),
        "nothing",
    ),
    "labels_ignored": Kind(
        "Batches without a label that counts",
        (
            "Check the labels of a batch as the loss receives them",
            "Leave out samples without a label",
        ),
        "share",
    ),
    "batch_repeated": Kind(
        "The same batch again and again",
        (
            "Split the data by torch.utils.data.get_worker_info() in an IterableDataset",
            "Draw with torch's generator, or seed each loader worker with torch.initial_seed()",
            "Compare two batches of the loader",
            "Where batches are repeated on purpose, mute this with rules=['-batch_repeated']",
        ),
        "share",
    ),
    "ranks_same_batch": Kind(
        "The same batch on all ranks",
        (
            "Leave use_distributed_sampler=True, or pass a DistributedSampler",
            "Split the data by rank in an IterableDataset",
        ),
        "nothing",
    ),
    "loss_nonfinite": Kind(
        "A loss that is NaN or infinite",
        (
            "Check that batch and the arguments of the loss (log of 0, division by 0, an empty mask)",
            "Set every_n_steps=1 to see which layer was first",
        ),
    ),
    "loss_spike": Kind(
        "A loss far above that before",
        (
            "Try a lower learning rate, a longer warm-up or gradient_clip_val=1.0",
            "Check the data of that batch",
            "Restart from a checkpoint before it if the loss does not come back",
        ),
    ),
    "loss_diverging": Kind(
        "A loss that rises again",
        (
            "Try a lower learning rate, and check what its scheduler does",
            "Check the sign and the weight of each term of the loss",
        ),
        "share",
    ),
    "loss_plateau": Kind(
        "A loss that stands still",
        (
            "Try a learning rate ten times larger, and one ten times smaller",
            "Check that labels belong to their inputs, on one batch that the model should learn by heart",
        ),
        "share",
    ),
    "overfitting": Kind(
        "Validation loss that rises",
        (
            "Stop here, with EarlyStopping, and keep the best checkpoint",
            "Use more data, augmentation, dropout or weight decay, or a smaller model",
        ),
        "share",
    ),
    "ranks_differ": Kind(
        "Ranks that no longer train one model",
        (
            "Call self.manual_backward(loss), not loss.backward(), and the model as this LightningModule holds it",
            "Unfreeze parameters before fit, under ddp_find_unused_parameters_true if they are used later only",
            "Change weights, gradients and optimizers on every rank alike, or broadcast what one rank loads",
        ),
        "share",
    ),
    "router_collapse": Kind(
        "A router that makes the same few choices",
        (
            "Add a loss for balance, or weigh it more (router_aux_loss_coef of transformers, from 0.01 on)",
            "Try a lower learning rate for the router, noise on its logits, or a z-loss",
            "Normalise what it reads",
        ),
    ),
    "dead_experts": Kind(
        "Experts that get no tokens",
        (
            "Add a loss for balance, or weigh it more (router_aux_loss_coef of transformers, from 0.01 on)",
            "Start the router from smaller weights, or with a lower learning rate",
            "Use fewer experts",
        ),
        "share",
    ),
    "always_clipped": Kind(
        "Clipping at nearly every step",
        ("Raise the clipping threshold above the usual norm, or lower the learning rate",),
        "share",
    ),
    "clip_ineffective": Kind(
        "Clipping without effect",
        ("Call self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm) there",),
    ),
    "steps_skipped": Kind(
        "Skipped optimizer steps",
        (
            "Try precision='bf16-mixed' or a lower learning rate",
            "Find the layer with the largest outputs",
        ),
        "share",
    ),
    "spike": Kind(
        "A gradient much larger than any before",
        (
            "Check the data of this batch",
            "Set gradient_clip_val to limit such a step",
        ),
    ),
    "not_zeroed": Kind(
        "Gradients that are cleared too late or too early",
        ("Call zero_grad() before manual_backward()",),
    ),
}


def title_of(kind: str) -> str:
    """What a kind is called: its title here, or the name of a user's own kind in plain words."""
    known = KINDS.get(kind)
    return known.title if known is not None else kind.replace("_", " ").capitalize()


def advice_for(kind: str) -> tuple[str, ...]:
    """What to try; empty for a kind that is not known here."""
    known = KINDS.get(kind)
    return () if known is None else known.advice


def page_of(kind: str) -> str:
    """The page of the documentation on a kind, such as ``alerts/dead``; empty for a kind that is not known here."""
    return f"alerts/{kind}" if kind in KINDS else ""


def inside_a_sentence(title: str) -> str:
    """A title for the middle of a sentence."""
    first, *_ = title.split(" ")
    return title if first[1:] != first[1:].lower() else title[:1].lower() + title[1:]  # NaN stays as it is
