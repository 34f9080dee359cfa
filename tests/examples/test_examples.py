"""The other examples: those in one process are run in this one, the others as a user runs them."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LOOPS = {"plain_loop", "fabric_loop", "hf_trainer", "accelerate_loop"}
TESTED = {"agent", "digits", "characters", "gan", "finetune", "ddp", "fsdp", "cli", *LOOPS}

NORMS = r"Gradient norm: ([\d.]+) and ([\d.]+) for the shards alone, ([\d.]+) for the whole, reported ([\d.]+)\."

pytestmark = pytest.mark.example
Run = Callable[..., str]


def epoch_rows(tag: str) -> list[float]:
    """The values of one tag in metrics.csv."""
    with Path("logs/version_0/metrics.csv").open() as file:
        return [float(row[tag]) for row in csv.DictReader(file) if row.get(tag)]


def number(pattern: str, printed: str) -> float:
    """The number that a pattern finds."""
    found = re.search(pattern, printed)
    assert found is not None, f"{pattern!r} is not in:\n{printed}"
    return float(found[1])


def test_every_example_has_a_test() -> None:
    assert {script.stem for script in EXAMPLES.glob("*.py")} <= TESTED


def test_characters_learns_and_writes(run_here: Run) -> None:
    printed = run_here("characters")
    assert number(r"Validation: ([\d.]+) bits per character", printed) < 4.2  # 4.7 for one who knows how frequent each is
    assert "It writes:\n    The " in printed
    assert len(epoch_rows("gradient_flow/model/norm_median")) == 2
    assert epoch_rows("gradient_clip/steps") == [30, 30]
    assert all(0 < value < 1 for value in epoch_rows("features/blocks.2.attention/rms"))
    assert "[" not in printed.split("Validation:")[0], "no alert in a healthy run"


def test_characters_with_a_learning_rate_far_too_high_raises_an_alert(run_here: Run) -> None:
    printed = run_here("characters", "--learning-rate", "0.3")
    assert "Updates as large as the weights at head.weight" in printed
    assert epoch_rows("gradient_flow/alerts/vanishing")[-1] >= 1


def test_characters_with_queries_and_keys_too_large_names_the_block(run_here: Run) -> None:
    printed = run_here("characters", "--large-queries", "12")
    assert "[warning] attention_collapse at blocks.1.attention/sdpa" in printed
    assert number(r"blocks.1.attention/sdpa: largest logit ([\d.]+)", printed) > 30
    assert number(r"blocks.0.attention/sdpa: largest logit ([\d.]+)", printed) < 10
    assert epoch_rows("attention/alerts/attention_collapse")[-1] >= 1


def test_gan_reports_its_optimizers_separately(run_here: Run) -> None:
    printed = run_here("gan")
    for net in ("discriminator", "generator"):
        assert re.search(rf"^{net}: \d+ of 28 steps were clipped to 1; ", printed, re.MULTILINE)
    for optimizer in ("0-Adam", "1-Adam"):
        assert epoch_rows(f"gradient_clip/{optimizer}/steps") == [28, 28, 28]
        assert max(epoch_rows(f"gradient_clip/{optimizer}/norm_after_max")) <= 1 + 1e-5
    assert epoch_rows("gradient_clip/0-Adam/norm_before") != epoch_rows("gradient_clip/1-Adam/norm_before")
    drawn = printed.split("It draws, after epoch 3")[1].splitlines()[1:9]
    assert all(len(line) == 5 * 16 + 4 * 3 for line in drawn)


def test_gan_clipped_hard(run_here: Run) -> None:
    run_here("gan", "--clip", "0.01")
    assert epoch_rows("gradient_clip/0-Adam/rate") == [1, 1, 1]
    assert epoch_rows("gradient_clip/alerts/always_clipped") == [2, 2, 2]


def test_finetune_follows_the_unfreezing(run_here: Run) -> None:
    printed = run_here("finetune")
    lines = [line for line in printed.splitlines() if line.startswith("Epoch")]
    for line in lines[:2]:
        assert re.search(r"backbone frozen: .* gradients at head.weight \([\d.]+\); no gradient at: backbone.conv1, ", line)
    for line in lines[2:]:
        assert re.search(r"backbone free: .* gradients at backbone.conv1.weight .*, head.weight .*; no gradient at: none.", line)
    assert "were unfrozen between steps 42 and 63" in printed
    assert "Alerts: 1." in printed
    assert len(epoch_rows("gradient_flow/backbone.conv1.weight/norm")) == 4


def test_finetune_finds_the_forgotten_detach(run_here: Run) -> None:
    printed = run_here("finetune", "--fault", "detached")
    text = " ".join(printed.split())
    assert "[warning] missing at backbone.conv2.weight and 3 more sites (epoch 2, step 63, " in text
    assert "it requires a gradient but had none" in text
    assert "no gradient comes back from head." in text
    missing = epoch_rows("gradient_flow/alerts/missing")  # logged from the first alert on, after the two frozen epochs
    assert len(missing) == 2
    assert min(missing) >= 1


def test_a_plain_loop_learns_with_three_lines_more(run_here: Run) -> None:
    printed = run_here("plain_loop")
    assert number(r"Loss ([\d.]+)\.", printed) < 3.2  # 3.9 for one who guesses
    assert re.search(r"In the last window \d+ of 20 steps were clipped\.", printed)
    assert Path("logs/lightning_hooks/report.html").exists()
    code = (EXAMPLES / "plain_loop.py").read_text()
    assert len(re.findall(r"^.*# \+$", code, re.MULTILINE)) == 3


def test_a_plain_loop_with_a_learning_rate_far_too_high_raises_an_alert(run_here: Run) -> None:
    assert "Open alerts: [" in run_here("plain_loop", "--learning-rate", "3.0")


def test_fabric_names_the_dead_layer(run_here: Run) -> None:
    assert "Alerts: none" in run_here("fabric_loop")
    assert "dead at 3" in run_here("fabric_loop", "--dead")
    assert len(list(Path("logs").rglob("report.html"))) == 2


def test_hugging_faces_trainer_is_observed(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    command = [sys.executable, str(EXAMPLES / "hf_trainer.py"), "--fast", "--log-dir", "logs", "--max-norm", "0.01"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert number(r"(\d+) of \d+ steps of the last epoch", done.stdout) == number(
        r"\d+ of (\d+) steps of the last epoch", done.stdout
    )
    assert "clipping at nearly every step" in done.stdout
    assert "Attention is seen at 2 sites." in done.stdout
    assert (tmp_path / "logs" / "lightning_hooks" / "report.html").exists()


def test_accelerate_counts_accumulated_steps(run_here: Run) -> None:
    pytest.importorskip("accelerate")
    assert "29 steps of 57 batches in an epoch" in run_here("accelerate_loop")
    assert Path("logs/lightning_hooks/report.html").exists()


def test_agent_repairs_the_training_by_what_health_json_says(run_here: Run) -> None:
    printed = run_here("agent")
    assert printed.startswith("As it is: warning. Updates as large as the weights")
    assert re.search(r"^    cause: The learning rate is 3; AdamW's usual range is 1e-05 to 0.01", printed, re.MULTILINE)
    assert "\nSet optimizer.lr to 0.003 (it is 3): torch.optim.AdamW(…, lr=0.003)\n    cured; loss " in printed
    assert number(r"cured; loss [\d.]+ before, ([\d.]+) now\.\n$", printed) < 0.5


def test_agent_fills_a_bias_that_holds_units_below_zero(run_here: Run) -> None:
    printed = run_here("agent", "--learning-rate", "0.003", "--bias", "-20")
    assert "    [critical] dead at net.1, from step " in printed
    assert "    cause: net.0.bias is -20 in all 64 units, since the start.\n" in printed
    assert "\nFill net.0.bias with 0: nn.init.zeros_(self.net[0].bias)\n    cured; loss " in printed


def test_agent_has_nothing_to_repair_in_health(run_here: Run) -> None:
    assert run_here("agent", "--learning-rate", "0.003").splitlines()[-1] == "There is nothing to repair."


@pytest.mark.ranks
@pytest.mark.parametrize(
    ("name", "site", "files"),
    [
        ("ddp", "net.4", ["features/net.4/std", "gradient_flow/total_norm"]),
        ("fsdp", "net.head", ["features/model/std_median", "gradient_flow/total_norm"]),
    ],
)
def test_two_processes_report_the_same_and_the_truth(
    name: str, site: str, files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--fast", "--log-dir", "logs"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == "", "the console should be quiet"
    assert "Both processes report the same." in done.stdout
    pattern = rf"Standard deviation at {site}: ([\d.]+) and ([\d.]+) for the halves alone, ([\d.]+) for all, reported ([\d.]+)\."
    found = re.search(pattern, done.stdout)
    assert found is not None, done.stdout
    first, second, true, reported = map(float, found.groups())
    assert first != second
    assert reported == true
    assert len(list(tmp_path.glob("logs/version_*"))) == 1, "one process logs"
    monkeypatch.chdir(tmp_path)
    for tag in files:
        assert epoch_rows(tag)
    if name == "fsdp":
        assert "Of 68170 weights the processes hold 34085 and 34085." in done.stdout
        one, other, whole, said = map(float, re.search(NORMS, done.stdout).groups())
        assert one < whole > other
        assert said == whole
