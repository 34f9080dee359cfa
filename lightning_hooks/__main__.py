"""``lightning-hooks``, or ``python -m lightning_hooks``: makes reports, compares runs, verifies a cure."""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from lightning_hooks.alerts.explain import explain
from lightning_hooks.run_report.blocks import markdown
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.health import health_of
from lightning_hooks.run_report.lines import write_whole
from lightning_hooks.run_report.page import document, verdict_lines, write_health
from lightning_hooks.run_report.recorded import UNREADABLE
from lightning_hooks.run_report.run import Run, read_run
from lightning_hooks.run_report.verdict import judge
from lightning_hooks.run_report.verify import lines as verification_lines
from lightning_hooks.run_report.verify import verify
from lightning_hooks.sinks.tab.answers import serve
from lightning_hooks.trackers.console import show, visible

# --fail-on to the statuses with which report returns 1.
FAILS = {"warning": ("warning", "critical", "failed"), "critical": ("critical", "failed")}

# The sections of a comparison that compare prints; the page has curves too.
PRINTED = ("set-up", "differences", "alerts")

OF_RUNS = ("report", "compare", "verify")  # the commands that read the files of runs
Done = tuple[Iterable[str], int]  # what a command prints, and what it returns
Command = Callable[[argparse.Namespace], Done]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Returns:
        0; 1 where ``report --fail-on`` says so, ``verify`` finds no cure or a replay does not reproduce; 2 if what is
        named cannot be read or is not known, or nothing can be printed; 130 after Ctrl-C.

    Args:
        arguments: Those after the command's name; None for ``sys.argv``.
    """
    options = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # names may hold what a terminal cannot show
    try:
        lines, code = COMMANDS[options.command](options)
        _print(lines)
    except (OSError, ValueError) as error:
        show(map(visible, f"error: {error}".splitlines()), sys.stderr)
        return 2
    except UNREADABLE as error:
        if options.command not in OF_RUNS:
            raise
        show([visible(f"error: the run's file holds what no run writes: {type(error).__name__}: {error}")], sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return code


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        try:
            print(visible(line), flush=True)  # noqa: T201  a command prints
        except OSError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes once more what is left when it ends
            if isinstance(error, BrokenPipeError):  # as of head, which has read enough
                return
            raise


# Of each command: what it does, and its arguments.
ARGUMENTS: dict[str, tuple[str, dict[str, dict[str, Any]]]] = {
    "report": (
        "write report.html and report.md of a run, and print its verdict",
        {
            "run": {"type": Path, "help": "the log directory of the run, such as lightning_logs/version_0"},
            "--output": {"type": Path, "help": "the folder to write to (default: the folder of the run's reports)"},
            "--json": {"action": "store_true", "help": "print the health of the run as JSON, and write nothing"},
            "--fail-on": {"choices": FAILS, "help": "exit with code 1 if the run ends with a problem of at least this severity"},
        },
    ),
    "compare": (
        "compare two runs: set-up, losses, and layer by layer",
        {
            "run_a": {"type": Path, "help": "the log directory of the first run"},
            "run_b": {"type": Path, "help": "the log directory of the second run"},
            "--output": {
                "type": Path,
                "help": "the HTML file to write (default: compare.html in the folder of the second run's reports)",
            },
        },
    ),
    "verify": (
        "check whether a second run has cured the alerts of the first, and learns (exit code 0 if so)",
        {
            "run_a": {"type": Path, "help": "the log directory of the run with the problem"},
            "run_b": {"type": Path, "help": "the log directory of the run after a change"},
            "--json": {"action": "store_true", "help": "print the result as JSON"},
        },
    ),
    "explain": (
        "explain a kind of alert: what it means, when it is raised, and what to try",
        {"name": {"help": "the name of the kind or the cause, such as dead or offset_bias"}},
    ),
    "demo": (
        "train a small CNN with a planted fault (10 s), and print the path of its report",
        {
            "--healthy": {"action": "store_true", "help": "train without the fault"},
            "--output": {"type": Path, "default": Path("runs/demo"), "help": "the folder for the logs (default: runs/demo)"},
        },
    ),
    "replay": (
        "run the bad step of a capsule again, and show which operation failed on which samples",
        {
            "capsule": {"type": Path, "help": "the folder of the capsule, in lightning_hooks/capsules of the log directory"},
            "--model": {"required": True, "help": "a function that returns the model, as package.module:factory"},
            "--data": {
                "help": "the data set, or a function that returns it, as package.module:name; for a capsule without its batch"
            },
        },
    ),
    "serve": (
        "show the runs of a log directory in a browser, also during training",
        {
            "logdir": {"type": Path, "help": "the log directory, such as lightning_logs"},
            "--port": {"type": int, "default": 6007, "help": "the port on the loopback address (default: 6007)"},
        },
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-hooks", description="Show and compare training runs that lightning_hooks has observed."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    for command, (does, arguments) in ARGUMENTS.items():
        made = commands.add_parser(command, help=does)
        for name, how in arguments.items():
            made.add_argument(name, **how)
    return parser


def _read(path: Path) -> Run:
    run = read_run(path)
    if run.damaged:
        lines = f"{run.damaged} line{'s' * (run.damaged > 1)}"
        show([visible(f"note: {lines} of {path} could not be read, and are left out.")], sys.stderr)
    return run


def _report(options: argparse.Namespace) -> Done:
    run = _read(options.run)
    code = int(options.fail_on is not None and judge(run).status in FAILS[options.fail_on])
    if options.json:
        return health_of(run).text().splitlines(), code
    lines = verdict_lines(run)
    try:
        return [*lines, "", *(f"Written: {path}" for path in write_health(run, options.output))], code
    except OSError as error:
        where = options.output or run.path
        show([visible(f"error: the report cannot be written to {where}: {error}; name another folder with --output.")], sys.stderr)
        return lines, 2


def _compare(options: argparse.Namespace) -> Done:
    a, b = _read(options.run_a), _read(options.run_b)
    page = compare(a, b)
    path = write_whole(options.output or b.path / "compare.html", document(page, markdown(page)))
    printed = [section for section in page["sections"] if section["id"] in PRINTED]
    text = re.sub(r"\\([\W_])", r"\1", markdown({**page, "sections": printed}))  # names as they are: a terminal shows no markup
    return [*unescape(text).splitlines(), "", f"Written: {path}"], 0


def _verify(options: argparse.Namespace) -> Done:
    found = verify(_read(options.run_a), _read(options.run_b))
    lines = json.dumps(found, allow_nan=False, indent=1).splitlines() if options.json else verification_lines(found)
    return lines, int(found["outcome"] != "cured")


def _made_by(source: str, option: str) -> Any:
    """What ``package.module:name`` names, called if it is a function or a class; the working directory is looked in first.

    Args:
        source: The name.
        option: The option that it is given to, for messages.

    Raises:
        ValueError: If it is no such name, or cannot be imported.
    """
    module, _, name = source.partition(":")
    if not (module and name):
        raise ValueError(f"{option} must be package.module:name; got {source!r}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{option} {source} cannot be imported: {error}.") from None
    finally:
        sys.path.pop(0)
    from torch import nn

    return found() if callable(found) and not isinstance(found, nn.Module) else found


def _replay(options: argparse.Namespace) -> Done:
    from lightning_hooks.replay.capsule import read_capsule
    from lightning_hooks.replay.command import replay

    capsule = read_capsule(options.capsule)
    data = None if options.data is None else _made_by(options.data, "--data")
    return replay(capsule, _made_by(options.model, "--model"), data)


def _demo(options: argparse.Namespace) -> Done:
    from lightning_hooks import demo  # it imports Lightning, which the other commands do not need

    return demo.lines(options.output, options.healthy), 0


COMMANDS: dict[str, Command] = {
    "report": _report,
    "compare": _compare,
    "verify": _verify,
    "explain": lambda options: (explain(options.name), 0),
    "demo": _demo,
    "replay": _replay,
    "serve": lambda options: (serve(options.logdir, options.port), 0),
}

if __name__ == "__main__":
    sys.exit(main())
