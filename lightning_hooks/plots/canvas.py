"""The sheet a figure is drawn on: its style, safe text, the axes of layers and of epochs, and the marks of alerts."""

from __future__ import annotations

import itertools
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from threading import RLock
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from lightning_hooks.declare.alert import Alert
from lightning_hooks.trackers.console import shared_prefix, shortened

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.figure

    Axes: TypeAlias = matplotlib.axes.Axes
    Figure: TypeAlias = matplotlib.figure.Figure
else:  # matplotlib is imported where something is drawn
    Axes = Figure = Any

T = TypeVar("T", float, np.ndarray)


MOST_LABELS = 80  # of layers along an axis; of more, every second, fifth, tenth, … is named


def round_numbers() -> Iterator[int]:
    """1, 2, 5, 10, 20, 50, …: steps that people count in."""
    return (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))


# Okabe and Ito (2008): eight colours that can be distinguished with any colour vision.
BLUE, SKY, GREEN, ORANGE, VERMILLION, PURPLE = "#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7"
INK, GREY, PALE, MISSING = "#1b1f24", "#6b7280", "#eef0f3", "#d7dae0"

CHARACTER = 6.0  # about the width of a character of the legend, in pixels

SMALLEST, LARGEST = 1e-200, 1e300  # matplotlib's log axes need room beyond their extremes

MARKS: dict[str, dict[str, Any]] = {
    "critical": {"marker": "X", "color": VERMILLION, "s": 62},
    "warning": {"marker": "^", "color": ORANGE, "s": 48},
    "info": {"marker": "o", "color": SKY, "s": 22},
}

MINUS = "\N{MINUS SIGN}"

# What a user's own matplotlib settings must not change: that names are shown as they are, and dark text on white.
STYLE: Any = {
    "text.usetex": False, "text.parse_math": False, "font.family": ["DejaVu Sans"], "font.size": 9.0, "text.color": INK,
    "axes.titlesize": 12.0, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlepad": 10.0,
    "axes.labelsize": 9.5, "axes.labelcolor": INK, "axes.edgecolor": GREY, "axes.linewidth": 0.8, "axes.facecolor": "white",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True, "axes.unicode_minus": True, "axes.grid": False,
    "xtick.color": GREY, "xtick.labelcolor": INK, "xtick.labelsize": 8.0, "xtick.direction": "out", "xtick.minor.visible": False,
    "ytick.color": GREY, "ytick.labelcolor": INK, "ytick.labelsize": 8.0, "ytick.direction": "out", "ytick.minor.visible": False,
    "grid.color": PALE, "grid.linewidth": 0.8, "grid.linestyle": "-",
    "legend.frameon": False, "legend.fontsize": 8.5, "lines.linewidth": 1.6, "hatch.linewidth": 0.5, "hatch.color": "#b6bbc4",
}  # fmt: skip


_STYLING = RLock()  # matplotlib's settings are those of the process: pictures of ours are drawn one at a time


@contextmanager
def style() -> Iterator[None]:
    """Draw in the house style.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    try:
        from matplotlib import rc_context
    except ImportError as error:
        raise ImportError("lightning_hooks.plots needs matplotlib: pip install matplotlib.") from error
    with _STYLING, rc_context(STYLE):
        yield


def sheet(width: float, height: float) -> Figure:
    """An empty figure, in inches, without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="constrained", facecolor="white")


def single(width: float, height: float) -> tuple[Figure, Axes]:
    """An empty figure, in inches, with one pair of axes."""
    figure = sheet(width, height)
    return figure, figure.add_subplot()


def table(axes: Axes, values: np.ndarray, most: tuple[int, int], **colours: Any) -> Any:
    """Draw a number in each cell of rows and columns, the first row at the top, with gaps between at most so many of both.

    What is masked is hatched.
    """
    rows, columns = values.shape
    gap = 0.4 if rows <= most[0] and columns <= most[1] else 0.0
    axes.set_facecolor(MISSING)
    axes.patch.set_hatch("////")
    mesh = axes.pcolormesh(
        np.arange(columns + 1) - 0.5,
        np.arange(rows + 1) - 0.5,
        values,
        edgecolors="white" if gap else "face",
        linewidth=gap,
        rasterized=True,
        **colours,
    )
    axes.set_ylim(rows - 0.5, -0.5)
    axes.spines[:].set_visible(False)
    return mesh


def color_bar(figure: Figure, mesh: Any, axes: Any, label: str, **options: Any) -> None:
    """The scale of the colours, next to the axes."""
    bar = figure.colorbar(mesh, ax=axes, **{"aspect": 22, "pad": 0.015, "fraction": 0.06, "anchor": (0, 1), **options})
    bar.outline.set_visible(False)
    bar.ax.minorticks_off()
    bar.set_label(label)


def mark_alerts(axes: Axes, points: Sequence[tuple[float, float, str]], size: float = 1.0, edge: float = 0.6) -> None:
    """Mark points that have an alert: where, and its severity; at the foot of the axes those without a height."""
    for severity, look in MARKS.items():
        for foot in (False, True):
            found = [(x, 0.035 if foot else y) for x, y, of in points if of == severity and foot == (not np.isfinite(y))]
            if found:
                x, height = zip(*found, strict=True)
                axes.scatter(
                    x, height, s=look["s"] * size, marker=look["marker"], color=look["color"], ec="white", lw=edge,
                    zorder=6, transform=axes.get_xaxis_transform() if foot else axes.transData, clip_on=False,
                )  # fmt: skip


def within(values: T, low: Any, high: Any) -> T:
    """The numbers between two bounds that are nearest to some values; NaN stays NaN."""
    found: T = np.minimum(np.maximum(values, low), high)
    return found


def positive(values: Any) -> Any:
    """What a log axis can show."""
    return np.isfinite(values) & (np.asarray(values) > 0)


def heading(axes: Axes, title: str, line: str = "", width: float = 6.0) -> None:
    """A title and a line of text below it, broken to a width in inches."""
    wrapped = textwrap.wrap(plain(line), max(int(width * 100 / CHARACTER), 24)) if line else []
    axes.set_title(plain(title) + "\n" * len(wrapped))
    if wrapped:
        text = axes.annotate(
            "\n".join(wrapped), (0, 1), (0, 7), xycoords="axes fraction", textcoords="offset points", color=GREY, fontsize=9
        )
        text.set_in_layout(False)  # the title keeps its room; its width must not squeeze the axes


def nothing(title: str, line: str) -> Figure:
    """A figure that says why there is nothing to see."""
    figure, axes = single(6.4, 2.0)
    axes.set_axis_off()
    heading(axes, title)
    axes.text(0, 0.9, plain(line), color=GREY, va="top", wrap=True)
    return figure


def plain(text: str) -> str:
    """Text that every font can show: control characters escaped, characters that the font lacks replaced by a box."""
    known, escape = _characters(), "unicode_escape"
    shown = ((char, "□" if unicodedata.category(char)[0] != "C" else char.encode(escape).decode()) for char in text)
    return "".join(char if char == "\n" or ord(char) in known else instead for char, instead in shown)


@cache
def _characters() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return frozenset(code for code in get_font(findfont(FontProperties(family="DejaVu Sans"))).get_charmap() if code >= ord(" "))


def name_layers(axes: Axes, names: Sequence[str], which: Literal["x", "y"], what: str) -> None:
    """Write layers' names along an axis, without what all begin with; some of them, where there is no room for all."""
    prefix = shared_prefix(names)
    step = next(n for n in round_numbers() if len(names) / n <= MOST_LABELS)
    texts = [plain(shortened(name[len(prefix) :])).replace("\n", "\\n") for name in names[::step]]
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_ticks(range(0, len(names), step), texts)
    look: dict[str, Any] = {"parse_math": False, "fontsize": 8 if len(names) <= 40 else 7 if which == "x" else 6.5}
    if which == "x" and len(names) > 8:
        look["rotation"] = 90
    elif which == "x" and max(map(len, texts)) > 12:
        look |= {"rotation": 25, "ha": "right", "rotation_mode": "anchor"}
    for label in axis.get_ticklabels():
        label.set(**look)
    text = f"{what} in {prefix.rstrip('.')}" if prefix else what
    text += ", in the model's order" * (which == "x") + f" (1 in {step} is named)" * (step > 1)
    axis.set_label_text(plain(text))


def name_epochs(axes: Axes, epochs: Sequence[int], most: int = 12, unit: str = "epoch") -> None:
    """Write epochs (or steps) below their columns, which are at 0, 1, 2, …; only some where there are many."""
    step = next(n for n in round_numbers() if len(epochs) / n <= most)
    columns = range(0, len(epochs), step)
    axes.set_xticks(list(columns), [str(epochs[column]) for column in columns])
    axes.set_xlabel(unit)


def decades(axes: Axes, values: np.ndarray) -> None:
    """A log axis that spans the positive ones among values, whole decades of it where they are few, with ticks like ``1e-3``."""
    from matplotlib.ticker import LogLocator

    values = values[positive(values)]
    if not values.size:
        axes.yaxis.set_ticks([])
        return
    low, high = np.log10(within(np.array([values.min(), values.max()]), SMALLEST, LARGEST))
    margin = max(0.06 * (high - low), 0.15)
    low, high = low - margin, high + margin
    if high - low < 2:
        low, high = np.floor(low), np.ceil(high)
    axes.set_yscale("log")
    axes.set_ylim(10.0**low, 10.0**high)
    axes.yaxis.set_major_locator(LogLocator(numticks=11))
    axes.yaxis.minorticks_off()
    axes.yaxis.set_major_formatter(signed_power)


def signed_power(value: float, _: object) -> str:
    """A power of ten or its negative, as the formatter of an axis: ``1e-3``, as people write it in code, and in any font."""
    return f"{MINUS if value < 0 else ''}1e{round(np.log10(abs(value)))}" if value else "0"


def signed(value: float, _: object) -> str:
    """A number or its negative, as the formatter of an axis."""
    return f"{MINUS if value < 0 else ''}{abs(value):.3g}"


def alert_handles(alerts: Iterable[Alert]) -> list[Any]:
    """Legend entries for alerts: one per severity, with its kinds and at how many sites each."""
    from matplotlib.lines import Line2D

    sites = dict.fromkeys((alert.severity, alert.kind, alert.site) for alert in alerts)
    handles = []
    for severity, look in MARKS.items():
        kinds = Counter(kind for of, kind, _ in sites if of == severity)
        if kinds:
            text = plain(f"{severity}: " + ", ".join(f"{kind} ({count})" for kind, count in kinds.items()))
            marker = {"marker": look["marker"], "color": look["color"], "ms": look["s"] ** 0.5, "mec": "white", "mew": 0.6}
            handles.append(Line2D([], [], ls="", label=text, **marker))
    return handles


def legend(figure: Figure, handles: Sequence[Any]) -> None:
    """A legend below everything, in as many columns as there is room for, so that it takes nothing from the picture's width."""
    if not handles:
        return
    room = figure.get_figwidth() * figure.dpi - 20
    for handle in handles:
        handle.set_label(textwrap.fill(str(handle.get_label()), int(room / CHARACTER) - 8))
    widest = max(len(line) for handle in handles for line in str(handle.get_label()).splitlines()) * CHARACTER + 62
    figure.legend(handles=list(handles), loc="outside lower left", ncols=max(1, int(room / widest)))
