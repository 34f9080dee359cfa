"""A run's file stays within bounds, and says what it said."""

import dataclasses

import numpy as np

from lightning_hooks.run_report import judge, read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, Memory, append, line, report_line
from tests.support.made_reports import FIT, alert, clips, features, flow, layer_names

NAMES = layer_names(30)


def alerts_of(epoch):
    """One root cause whose site moves, and its consequences; none at the end of each ten epochs."""
    if epoch % 10 > 6:
        return ()
    root = alert("vanishing", NAMES[20 - epoch % 5], epoch)
    follows = [dataclasses.replace(alert("vanishing", name, epoch, "info"), cause=root.name) for name in NAMES[:10]]
    return (root, *follows)


def epoch_of(epoch, memory=None, tables=True):
    """The lines of one epoch of three monitors."""
    made = (
        ("features", features(epoch, NAMES, order=tuple(NAMES), initial_gains=dict.fromkeys(NAMES, 1.4142))),
        ("gradient_flow", flow(epoch, NAMES, alerts=alerts_of(epoch))),
        ("gradient_clip", clips(epoch)),
    )
    lines = [report_line(prefix, "", report, 0.5, memory, tables) for prefix, report in made]
    return "".join([*lines, line("epoch", {"epoch": epoch, "seconds": 1.0})])


def simulate(folder, epochs, whole=lambda epoch: True):
    """Write a fit as a recorder does; returns the file."""
    file, memory = folder / FOLDER / REPORTS, Memory()
    append(file, line("fit", FIT))
    for epoch in range(epochs):
        append(file, epoch_of(epoch, memory, whole(epoch)))
    return file


def alerts_in(run, epoch):
    (recorded,) = run.of("gradient_flow")
    return [(alert.kind, alert.site, alert.severity, alert.cause) for alert in recorded.alerts[epoch]]


def test_what_has_not_changed_is_left_out_and_read_again(tmp_path):
    file = simulate(tmp_path / "short", 12)
    append(tmp_path / "long" / FOLDER / REPORTS, "".join([line("fit", FIT), *map(epoch_of, range(12))]))
    short, long = read_run(file), read_run(tmp_path / "long")
    assert file.stat().st_size < 0.55 * (tmp_path / "long" / FOLDER / REPORTS).stat().st_size
    for one, other in zip(short.monitors, long.monitors, strict=True):
        last, expected = (dataclasses.replace(recorded.last, alerts=()).to_dict() for recorded in (one, other))
        assert repr(last) == repr(expected)
        assert one.epochs == other.epochs
        for epoch, tables in other.columns.items():
            for table, (names, stats) in tables.items():
                assert one.columns[epoch][table][0] == names
                for stat, values in stats.items():
                    np.testing.assert_array_equal(one.columns[epoch][table][1][stat], values)
    for epoch in range(12):
        assert (
            alerts_in(short, epoch) == alerts_in(long, epoch) == [(a.kind, a.site, a.severity, a.cause) for a in alerts_of(epoch)]
        )
    assert judge(short).headline == judge(long).headline


def test_reports_without_tables_keep_their_alerts(tmp_path):
    run = read_run(simulate(tmp_path, 40, lambda epoch: not epoch % 8))
    assert run.epochs == [*run.timing] == list(range(40))
    for epoch in range(40):
        assert alerts_in(run, epoch) == [(a.kind, a.site, a.severity, a.cause) for a in alerts_of(epoch)]
    for recorded in run.monitors:
        assert [*recorded.columns] == [0, 8, 16, 24, 32]
        assert recorded.last.epoch == 32
    (recorded,) = run.of("gradient_flow")
    sparse = recorded.series("modules", "rms")
    expected = [[flow(epoch, NAMES).modules[name].rms for epoch in sparse.epochs] for name in NAMES]
    np.testing.assert_allclose(sparse.values, expected, rtol=1e-4)
