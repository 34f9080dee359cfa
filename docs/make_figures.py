"""Make the figures of the pages about alerts again, from trainings of the fault zoo: an affected run and a healthy one.

    python -m docs.make_figures                # all
    python -m docs.make_figures dead spike     # of some kinds

The pictures are kept in docs/figures, since the trainings take minutes and the documentation is built in seconds.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from lightning_hooks import plots
from lightning_hooks.callbacks import AttentionMonitor, FeatureStatsMonitor, GradientClipMonitor, GradientFlowMonitor, RouterMonitor
from lightning_hooks.diagnostics.routers.collector import find_routers
from lightning_hooks.plots.canvas import BLUE, ORANGE, heading, name_layers, sheet, style
from tests.evidence.faults.catalogue import CASES
from tests.evidence.faults.training import build, train
from tests.evidence.faults.zoo import FAULTS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDER = Path(__file__).parent / "figures"
SEED = 0


class Run(NamedTuple):
    """What a picture can show of a training: reports, oldest first, and the loss of each step."""

    features: Sequence[Any]
    gradients: Sequence[Any]
    clips: Sequence[Any]
    losses: Sequence[float]
    attention: Sequence[Any]
    routers: Sequence[Any]


def heat(reports: str, stat: str, **options: Any) -> Callable[[Run], Figure]:
    """A heat map of a statistic, layers by epochs."""
    return lambda run: plots.heatmap(getattr(run, reports), stat, **options)


def heads(stat: str) -> Callable[[Run], Figure]:
    """A statistic of every attention head in the last window, layers by heads."""
    return lambda run: plots.attention_heads(run.attention[-1], stat)


def loss(run: Run) -> Figure:
    """The training loss of each step."""
    with style():
        figure = sheet(5.6, 3.0)
        axes = figure.add_subplot()
        heading(axes, "Training loss", "by optimizer step")
        axes.plot(run.losses, color=BLUE, lw=1.2)
        axes.set_xlabel("step")
        axes.set_ylim(bottom=0)
    return figure


def bars(title: str, line: str, values: Callable[[Run], dict[str, float]]) -> Callable[[Run], Figure]:
    """A bar for each name."""

    def draw(run: Run) -> Figure:
        found = values(run)
        with style():
            figure = sheet(5.6, 1.6 + 0.22 * len(found))
            axes = figure.add_subplot()
            heading(axes, title, line)
            axes.barh(range(len(found)), list(found.values()), color=ORANGE)
            name_layers(axes, list(found), "y", "")
            axes.invert_yaxis()
            for place, value in enumerate(found.values()):
                axes.text(value, place, f" {value:.3g}", va="center", fontsize=8)
        return figure

    return draw


def _calls(run: Run) -> dict[str, float]:
    report = run.features[-1]
    return {**{site: stats.calls for site, stats in report.sites.items()}, **dict.fromkeys(report.silent, 0)}


def _inputs(run: Run) -> dict[str, float]:
    return {stage: stats.rms for stage, stats in run.features[-1].inputs.items() if stage in ("training", "validation")}


def _distances(run: Run) -> dict[str, float]:
    return {
        f"window {place}": stats.distance for place, one in enumerate(run.gradients) for stats in one.model_setup.copies.values()
    }


def _ratios(run: Run) -> dict[str, float]:
    return {site: stats.ratio for site, stats in run.features[-1].representations.items()}


def _logits(run: Run) -> dict[str, float]:
    (stats,) = run.features[-1].outputs.values()
    return {"smallest": stats.min_logit, "largest": stats.max_logit, "share of zeros": stats.zero_fraction}


def _along(run: Run) -> dict[str, float]:
    return {site: max(use.over_batch, use.against_mask) / use.calls for site, use in run.features[-1].softmax.items()}


def _dropped(run: Run) -> dict[str, float]:
    return {site: use.p * (use.in_validation + use.in_eval_mode > 0) for site, use in run.features[-1].dropout.items()}


def _stream(run: Run) -> dict[str, float]:
    return {block: stats.rms for block, stats in run.features[-1].residual.items()}


def _outliers(run: Run) -> dict[str, float]:
    return {block: stats.channel_ratio for block, stats in run.features[-1].residual.items()}


def _precision(run: Run) -> dict[str, float]:
    precision = run.features[-1].precision
    share = 0.0 if precision is None else precision.full_share
    return {"float32": share, "bfloat16": 1 - share}


PICTURES: dict[str, tuple[str, str, Callable[[Run], Figure]]] = {
    "step_too_long": ("lr_times_1000_sgd", "the loss of each step", loss),
    "dead": ("negative_bias", "dead_fraction", heat("features", "dead_fraction")),
    "saturated": ("unnormalised_tanh", "saturated_fraction", heat("features", "saturated_fraction")),
    "constant": ("black_images", "std", heat("features", "std", relative=False)),
    "nonfinite": ("nan_in_one_batch", "nonfinite_fraction", heat("features", "nonfinite_fraction")),
    "silent": ("unused_branch", "calls", bars("Calls", "of each module in the last epoch's sampled batches", _calls)),
    "poor_init": (
        "init_divided_by_10",
        "initial",
        bars("Initial weights", "gain: RMS times the root of the fan-in", lambda run: dict(run.features[0].initial_gains)),
    ),
    "shared": ("shared_weights", "loss", loss),
    "validation_shift": ("validation_not_normalised", "inputs", bars("The model's input", "root mean square", _inputs)),
    "representation_collapse": ("views_collapse", "ratio", bars("Samples against one another", "between / within", _ratios)),
    "output_range": ("rectified_logits", "outputs", bars("Logits", "as the cross entropy gets them", _logits)),
    "softmax_dim": ("softmax_over_batch", "along", bars("Softmax", "share of calls along the wrong dimension", _along)),
    "dropout_in_eval": ("dropout_everywhere", "dropped", bars("Dropout in evaluation", "share that is dropped", _dropped)),
    "precision_not_applied": ("autocast_off", "full_precision", bars("Weights", "share of each precision", _precision)),
    "attention_logits": ("large_queries_and_keys", "max_logit_by_head", heads("max_logit")),
    "attention_collapse": ("wrong_scale", "entropy_by_head", heads("entropy")),
    "masked_rows": ("inverted_written_mask", "masked_rows_by_head", heads("masked_rows")),
    "activation_outliers": (
        "one_bias_of_20000",
        "residual",
        bars("Largest channel", "its RMS over that of the median one, behind each block", _outliers),
    ),
    "residual_growth": ("shortcut_doubled", "residual", bars("Residual stream", "RMS behind each block", _stream)),
    "vanishing": ("deep_sigmoid", "gradient_flow", lambda run: plots.gradient_flow(run.gradients[-1])),
    "exploding": ("exploding_rnn", "gradient_flow", lambda run: plots.gradient_flow(run.gradients[0])),
    "zero": ("zero_init", "zero_fraction", heat("gradients", "zero_fraction", of="parameter")),
    "missing": ("detach_in_the_middle", "missing_steps", heat("gradients", "missing_steps", of="parameter")),
    "update_too_small": ("lr_divided_by_1e6", "update_ratios", lambda run: plots.update_ratios(run.gradients[-1])),
    "update_too_large": ("double_lr_group", "update_ratios", lambda run: plots.update_ratios(run.gradients[0])),
    "not_updated": ("encoder_written_back", "update_ratios", lambda run: plots.update_ratios(run.gradients[-1])),
    "updates_lost": ("bfloat16_small_steps", "loss", loss),
    "update_spike": ("one_large_step", "loss", loss),
    "weights_growing": ("penalty_with_wrong_sign", "weight_norm", heat("gradients", "weight_norm", of="parameter")),
    "router_collapse": ("router_starts_collapsed", "expert_load", lambda run: plots.expert_load(run.routers)),
    "dead_experts": ("experts_out_of_reach", "expert_load", lambda run: plots.expert_load(run.routers)),
    "second_moment_stale": ("loss_divided_too_often", "update_ratios", lambda run: plots.update_ratios(run.gradients[-1])),
    "lr_zero": ("scheduler_at_every_batch", "loss", loss),
    "optimizer_settings": ("betas_in_wrong_order", "loss", loss),
    "module_copy": (
        "teacher_stands_still",
        "distance",
        bars("The teacher", "distance from the student, over its norm", _distances),
    ),
    "not_optimized": ("not_in_optimizer", "update_ratios", lambda run: plots.update_ratios(run.gradients[-1])),
    "double_softmax": ("softmax_before_cross_entropy", "loss", loss),
    "eval_mode": ("body_in_eval_mode", "loss", loss),
    "frozen_statistics": (
        "frozen_body_follows",
        "statistics",
        bars(
            "Running statistics",
            "movement since the start, in standard deviations",
            lambda run: run.gradients[-1].model_setup.updating,
        ),
    ),
    "settings": ("dropout_keeps_nothing", "loss", loss),
    "unregistered": ("blocks_in_a_list", "update_ratios", lambda run: plots.update_ratios(run.gradients[-1])),
    "labels_ignored": ("ignored_class", "loss", loss),
    "target_leak": ("target_in_the_table", "loss", loss),
    "batch_repeated": ("buffer_not_filled", "loss", loss),
    "loss_nonfinite": ("exp_in_the_loss", "loss", loss),
    "loss_spike": ("lr_jolt", "loss", loss),
    "loss_diverging": ("lr_grows", "loss", loss),
    "always_clipped": ("clip_threshold_tiny", "clip_history", lambda run: plots.clip_history(run.clips)),
    "clip_ineffective": ("clip_in_training_step", "clip_history", lambda run: plots.clip_history(run.clips)),
    "steps_skipped": ("fp16_overflow", "clip_history", lambda run: plots.clip_history(run.clips)),
    "spike": ("huge_batch", "loss", loss),
    "not_zeroed": ("no_zero_grad", "clip_history", lambda run: plots.clip_history(run.clips)),
}
"""Kind to a fault of the zoo, the name of the picture's caption, and the picture."""


def run_of(fault: str, planted: bool) -> Run:
    """Train, with the fault or without."""
    built = build(CASES[fault], SEED, planted)
    quiet: dict[str, Any] = {"summary": False, "on_alert": [].append}
    features, gradients = FeatureStatsMonitor(**quiet), GradientFlowMonitor(**quiet)
    clips, attention = GradientClipMonitor(**quiet), AttentionMonitor(**quiet)
    routers = [RouterMonitor(**quiet)] if find_routers(built.module) else []
    train(built, [features, gradients, clips, attention, *routers])
    losses = [float(value) for value in built.module.losses]  # type: ignore[union-attr]
    return Run(
        features.history, gradients.history, clips.history, losses, attention.history, [*routers[0].history] if routers else []
    )


def save(figure: Figure, path: Path) -> None:
    """Save as a small PNG."""
    from PIL import Image

    buffer = BytesIO()
    figure.savefig(buffer, dpi=120)
    with Image.open(buffer) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)


def expected() -> dict[str, list[str]]:
    """Each fault of the zoo, and the kinds of alert that are right for it."""
    return {name: list(build(case, SEED).expected.kinds) for name, case in FAULTS.items()}


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", help="kinds of alerts; none makes all")
    chosen = parser.parse_args().kinds or [*PICTURES]
    torch.set_num_threads(1)
    path = FOLDER / "zoo.json"
    made = json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else {}
    for kind in chosen:
        fault, plot, draw = PICTURES[kind]
        files = {}
        for label, planted in (("affected", True), ("healthy", False)):
            files[label] = f"../figures/{kind}-{label}.png"
            save(draw(run_of(fault, planted)), FOLDER / f"{kind}-{label}.png")
        case = CASES[fault]
        made[kind] = {"fault": fault, "family": case.family, "story": case.story, "plot": plot, "files": files}
        print(kind, *(f"{(FOLDER / name).resolve().stat().st_size / 1000:.0f} kB" for name in files.values()))
    written = {"expected": expected(), "figures": {kind: made[kind] for kind in PICTURES if kind in made}}
    path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
