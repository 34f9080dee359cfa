"""``python -m lightning_hooks``, and the files it writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lightning_hooks.__main__ import main
from lightning_hooks.__main__ import main as entry
from lightning_hooks.alerts import ALERT_KINDS
from lightning_hooks.alerts.explain import documented, formula, rules_that_raise, severities, thresholds_of
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.lines import FOLDER, write_whole
from lightning_hooks.run_report.page import health_markdown
from lightning_hooks.trackers.console import markdown_text
from tests.support.made_reports import HOSTILE

ROOT = Path(__file__).parents[2]


def test_report_makes_the_files_again(make_run, capsys):
    folder = make_run()
    assert main(["report", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("[warning] Dead units at model.encoder.layers.0.attn.out_proj, since epoch 3; 1 more problem.\n")
    assert "  [warning] vanishing gradients at model.embed, since epoch 0." in out
    assert sorted(path.name for path in (folder / FOLDER).iterdir()) == ["report.html", "report.md", "reports.jsonl"]
    assert f"Written: {folder / FOLDER / 'report.html'}" in out
    before = (folder / FOLDER / "report.html").read_text()
    main(["report", str(folder), "--output", str(folder / "elsewhere")])
    assert (folder / "elsewhere" / "report.html").read_text() == before


@pytest.mark.parametrize(
    ("made", "fail_on", "code"),
    [
        ({}, None, 0),
        ({}, "warning", 1),
        ({}, "critical", 0),
        ({"broken": lambda epoch: epoch > 2}, "critical", 1),
        ({"healthy": True}, "warning", 0),
        ({"healthy": True, "end": "exception"}, "critical", 1),
    ],
)
def test_report_fails_on_a_problem_at_the_end(made, fail_on, code, make_run, capsys):
    folder = make_run(**made)
    more = [] if fail_on is None else ["--fail-on", fail_on]
    assert main(["report", str(folder), *more]) == code
    assert "Written: " in capsys.readouterr().out
    assert main(["report", str(folder), "--json", *more]) == code


def test_what_cannot_be_read_is_an_error(tmp_path, make_run, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: no lightning_hooks/reports.jsonl in ")
    with pytest.raises(SystemExit):
        main([])


@pytest.mark.parametrize("command", ["report", "replay"])
def test_a_pipe_in_place_of_a_file_is_an_error(command, tmp_path, capsys):
    name = {"report": "lightning_hooks/reports.jsonl", "replay": "tensors.pt"}[command]
    (tmp_path / "lightning_hooks").mkdir()
    (tmp_path / "capsule.json").write_text('{"format": "lightning_hooks capsule", "version": 4}')
    os.mkfifo(tmp_path / name)
    assert entry([command, str(tmp_path), *["--model", "m:f"] * (command == "replay")]) == 2
    assert capsys.readouterr().err.startswith(
        f"error: no {name} in {tmp_path}. " if command == "report" else f"error: there is no file {tmp_path / name}"
    )


@pytest.mark.parametrize("kind", ALERT_KINDS)
def test_explain_prints_what_the_page_of_a_kind_has(kind, capsys):
    assert main(["explain", kind]) == 0
    printed = capsys.readouterr().out
    words, known = " ".join(printed.split()), KINDS[kind]
    assert printed.startswith(f"{kind}: {known.title}\n")
    assert known.meaning in words
    assert f"Severity: {severities(kind)}." in words
    assert "{" not in formula(kind) + severities(kind)
    assert formula(kind).splitlines()[-1] in printed
    for step in known.advice:
        assert f"\n  - {step}.\n" in printed
    for rule in rules_that_raise(kind):
        _, explained = documented(type(rule))
        for name, default in thresholds_of(rule).items():
            assert f"{name} = {default!r}: {explained[name]}" in words
    own = [line for line in printed.splitlines() if line.strip() not in map(str.strip, formula(kind).splitlines())]
    assert max(map(len, own)) <= 110


@pytest.mark.slow
def test_the_module_can_be_run_where_the_terminal_knows_ascii_only(make_run):
    folder = make_run(names=list(HOSTILE))
    command = [sys.executable, "-m", "lightning_hooks", "report", str(folder)]
    done = subprocess.run(command, cwd=ROOT, env={"PYTHONIOENCODING": "ascii"}, capture_output=True, text=True, check=True)
    assert "since epoch" in done.stdout
    assert "\x1b" not in done.stdout


def test_markdown_says_the_same(make_run):
    run = read_run(make_run())
    text = health_markdown(run)
    first, _, verdict, *_ = text.splitlines()
    assert first == "# Health report: Net · logs/run"
    assert verdict.startswith("**▲ Dead units at model.encoder.layers.0.attn.out\\_proj, since epoch 3")
    for part in (
        "## Alerts",
        "## Gradient flow",
        "## Outputs",
        "## Clipping",
        "## Coverage and cost",
        "**What to try:**",
    ):
        assert part in text
    assert "| 0-AdamW | 20 | 80 % |" in text


def test_markdown_of_hostile_names_has_no_markup(make_run):
    text = health_markdown(read_run(make_run(names=list(HOSTILE), name="<i>x")))
    assert "<" not in text.replace("<br>", "")
    for name in HOSTILE:
        if name.isprintable():
            assert markdown_text(name) in text
    for row in text.splitlines():
        if row.startswith("|"):
            assert row.endswith("|")


def test_a_file_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = write_whole(tmp_path / "new" / "page.html", "first \ud800")
    assert path.read_text() == "first \\ud800"

    def full(self, *args, **kwargs):
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "second")
    assert path.read_text() == "first \\ud800"
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
