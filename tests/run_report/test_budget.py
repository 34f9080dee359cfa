"""A run's file stays within bounds, and says what it said."""

import dataclasses

import numpy as np

from lightning_hooks.run_report import judge, read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, Memory, append, line, report_line, thin
from tests.support.made_reports import FIT, alert, clips, features, flow, layer_names

NAMES = layer_names(30)


def alerts_of(epoch):
    """One root cause whose site moves, and its consequences; none at the end of each ten epochs."""
    if epoch % 10 > 6:
        return ()
    root = alert("vanishing", NAMES[20 - epoch % 5], epoch)
    follows = [dataclasses.replace(alert("vanishing", name, epoch, "info"), cause=root.name) for name in NAMES[:10]]
    return (root, *follows)


def epoch_of(epoch, memory=None, names=NAMES):
    """The lines of one epoch of three monitors."""
    made = (
        ("features", features(epoch, names, order=tuple(names), initial_gains=dict.fromkeys(names, 1.4142))),
        ("gradient_flow", flow(epoch, names, alerts=alerts_of(epoch))),
        ("gradient_clip", clips(epoch)),
    )
    lines = [report_line(prefix, "", report, 0.5, memory) for prefix, report in made]
    return "".join([*lines, line("epoch", {"epoch": epoch, "seconds": 1.0})])


def simulate(folder, epochs, most, names=NAMES, start=0):
    """Write a fit as a recorder does; returns the file and its largest size."""
    file, memory, largest = folder / FOLDER / REPORTS, Memory(), 0
    append(file, line("fit", {**FIT, "epoch": start}))
    for epoch in range(start, epochs):
        append(file, epoch_of(epoch, memory, names))
        largest = max(largest, file.stat().st_size)
        if thin(file, most):
            memory.forget_fields()
    return file, largest


def alerts_in(run, epoch):
    (recorded,) = run.of("gradient_flow")
    return [(alert.kind, alert.site, alert.severity, alert.cause) for alert in recorded.alerts[epoch]]


def test_what_has_not_changed_is_left_out_and_read_again(tmp_path):
    file, _ = simulate(tmp_path / "short", 12, 10**9)
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


def test_a_long_run_keeps_its_size_its_alerts_and_evenly_spread_tables(tmp_path):
    most = 500_000
    file, largest = simulate(tmp_path, 150, most)
    assert largest < 1.1 * most
    run = read_run(file)
    assert run.epochs == list(range(150))
    assert len(run.timing) == 150
    for epoch in range(150):
        assert alerts_in(run, epoch) == [(a.kind, a.site, a.severity, a.cause) for a in alerts_of(epoch)]
    for recorded in run.monitors:
        kept = list(recorded.columns)
        assert (kept[0], kept[-1]) == (0, 149)
        assert len(kept) > 5
        assert recorded.last.epoch == 149
    (recorded,) = run.of("gradient_flow")
    sparse = recorded.series("modules", "rms")
    expected = [[flow(epoch, NAMES).modules[name].rms for epoch in sparse.epochs] for name in NAMES]
    np.testing.assert_allclose(sparse.values, expected, rtol=1e-4)
    assert np.diff(sparse.epochs).max() <= 16


def test_a_file_holds_no_more_windows_than_a_reader_keeps(tmp_path):
    """Short windows: size and lines stay as they are, however many there are; alerts are kept of all of them."""
    file, memory, sizes, written = tmp_path / FOLDER / REPORTS, Memory(), [], 0
    append(file, line("fit", FIT))
    for window in range(1, 241):
        report = features(0, NAMES[:5], step=10 * window, window=window, alerts=alerts_of(0) if window == 77 else ())
        append(file, report_line("features", "", report, 0.5, memory) + line("epoch", {"epoch": 0, "at": 10 * window}))
        written += 1
        if written > 40 and thin(file, windows=20):
            written = 20
            memory.forget_fields()
        sizes.append(file.stat().st_size)
    assert max(sizes[120:]) < 1.3 * max(sizes[:120])
    run = read_run(file)
    (recorded,) = run.monitors
    assert (run.unit, recorded.epochs[0], recorded.epochs[-1]) == ("step", 10, 2400)
    assert 10 <= len(recorded.columns) <= 60
    assert len(recorded.epochs) <= 3 * 40
    assert [alert.site for alert in recorded.alerts[770]] == [alert.site for alert in alerts_of(0)]
    assert recorded.alerts[780] == ()
    assert list(recorded.last.sites) == NAMES[:5]
