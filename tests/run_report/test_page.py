"""The page: whole, escaped, small, and true to the numbers."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path

import jinja2
import pytest

from lightning_hooks import diagnostics
from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.page import compare_page, environment, health_markdown
from lightning_hooks.run_report.sections import SECTIONS
from lightning_hooks.run_report.text import DASH, number, percent, seconds
from lightning_hooks.trackers.console import visible
from tests.support.made_reports import FIT, HOSTILE, alert, flow, layer_names

ALLOWED = {
    *("html", "head", "meta", "title", "style", "body", "main", "header", "nav", "section", "footer", "h1", "h2", "h3", "div"),
    *("span", "p", "small", "b", "i", "s", "u", "a", "code", "br", "bdi", "ul", "li", "details", "summary", "figure", "img"),
    *("figcaption", "table", "thead", "tbody", "tr", "th", "td", "svg", "line", "polyline", "polygon", "rect", "em", "g"),
}
VOID = {"meta", "br", "img", "link", "hr"}
SPOOF = "\u202egnp.exe"  # would be shown as exe.png


class Page(HTMLParser):
    """What a browser would make of a page: its elements, attributes, texts; it must be well-formed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, element, attributes):
        self.elements.append((element, dict(attributes)))
        if element not in VOID:
            self.open.append(element)

    def handle_endtag(self, element):
        assert self.open.pop() == element

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)


@pytest.fixture
def page(make_run):
    def make(**kwargs):
        return Page(health_page(read_run(make_run(**kwargs))))

    return make


def test_the_verdict_comes_first(page):
    found = page()
    body = found.text
    headline = "Dead units at model.encoder.layers.0.attn.out_proj, since epoch 3"
    assert 0 < body.index("Net") < body.index(headline) < body.index("What to try") < body.rindex("Gradient flow")
    headings = [element for element, _ in found.elements if element in ("h1", "h2")]
    assert headings == ["h1", *["h2"] * 8]
    for title in ("Alerts", "Gradient flow", "Outputs", "Over the epochs", "Clipping", "Coverage", "Cost"):
        assert title in found.texts


def test_links_lead_to_sections(page):
    elements = page().elements
    targets = {attributes["id"] for _, attributes in elements if "id" in attributes}
    links = [attributes["href"] for element, attributes in elements if element == "a"]
    assert {f"#{target}" for target in targets} == set(links)
    assert len(targets) == 8


def test_what_is_silent_has_a_section(page):
    assert "Never called in a sampled batch (2)" in page(silent=("a.b", "c")).text


def test_parameters_without_a_gradient_are_in_page_and_markdown(make_run):
    folder, report = make_run(names=["a", "b"], epochs=1, healthy=True), flow(1, ["a", "b"], alerts=())
    lost = {name: dataclasses.replace(stats, steps=0, missing_steps=4) for name, stats in report.parameters.items()}
    last = dataclasses.replace(report, parameters=lost)
    append(folder / FOLDER / REPORTS, report_line("gradient_flow", "every leaf", last, 0.0))
    run = read_run(folder)
    assert f"Parameters without a gradient ({len(lost)})" in Page(health_page(run)).text
    assert f"- Parameters without a gradient: {', '.join(lost)}\n" in health_markdown(run)


@pytest.mark.parametrize("healthy", [True, False])
def test_hostile_names_stay_text(page, healthy):
    names = [*HOSTILE, SPOOF, '" onload="alert(1)', "</style><script>", "]]>"]
    found = page(names=names, name="<img src=x onerror=alert(2)>", healthy=healthy, end="exception")
    for name in names:
        assert visible(name) in found.text
    assert "<img src=x onerror=alert(2)>" in found.text
    assert "ValueError: <b>bad</b>" in found.text
    assert "\\u202egnp.exe" in found.text
    assert_harmless(found)


def assert_harmless(found):
    assert {element for element, _ in found.elements} <= ALLOWED
    for element, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on")]
        assert attributes.get("href", "#").startswith("#")
        assert attributes.get("src", "data:image/png;base64,").startswith("data:image/png;base64,")
        if element != "meta":
            assert "url(" not in attributes.get("style", "")


def test_nothing_can_be_loaded_or_run(make_run):
    text = health_page(read_run(make_run()))
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert f'content="{policy}"' in text
    assert not re.search(r"https?://|//[a-z]|@import|url\(", text)
    assert "<script" not in text


def test_gradients_are_drawn_where_they_are(make_run):
    run = read_run(make_run(names=["a", "b"], epochs=1))
    report = run.of("gradient_flow")[0].last
    text = health_page(run)
    for name, stats in report.modules.items():
        assert re.search(rf'class="name">{name}</span>.{{0,200}}class="n">{re.escape(number(stats.rms))}</span>', text, re.DOTALL)
    dots = [float(left) for left in re.findall(r'<b style="left:([\d.]+)%"', text)]
    assert dots[0] < dots[1]


@pytest.mark.slow
@pytest.mark.parametrize(("n", "epochs"), [(500, 20), (4000, 3)])
def test_a_large_run_stays_below_2_mb(make_run, n, epochs):
    text = health_page(read_run(make_run(names=layer_names(n), epochs=epochs)))
    assert len(text.encode()) < 2_000_000
    Page(text)


def test_a_page_that_would_be_too_large_draws_less(make_run, monkeypatch):
    run = read_run(make_run(names=layer_names(200), epochs=3))
    whole = len(health_page(run).encode())
    monkeypatch.setattr("lightning_hooks.run_report.page.MOST_BYTES", whole // 2)
    smaller = health_page(run)
    assert len(smaller.encode()) <= whole // 2
    assert "of 200 modules are drawn" in smaller


@pytest.mark.parametrize("kwargs", [{"broken": lambda epoch: True}, {"names": []}, {"names": ["a"], "epochs": 1}, {"epochs": 0}])
def test_odd_runs_have_a_page(page, kwargs):
    assert_harmless(page(**kwargs))


def test_a_run_of_one_monitor_has_a_page(tmp_path):
    file = tmp_path / FOLDER / REPORTS
    append(file, line("fit", FIT))
    assert "No report" in Page(health_page(read_run(file))).text


def test_two_runs_with_hostile_names_side_by_side(make_run):
    names = [*HOSTILE, SPOOF]
    a, b = read_run(make_run("<b>A", names=names)), read_run(make_run("B&lt;", names=names[:-1], broken=lambda epoch: epoch > 2))
    found = Page(compare_page(compare(a, b)))
    assert "logs/<b>A" in found.text
    assert "\\u202egnp.exe" in found.text
    assert_harmless(found)


def test_markup_is_escaped_by_construction():
    template = environment(html=True).from_string(
        '{% macro bold(text) %}<b>{{ text }}</b>{% endmacro %}<p class="{{ x }}">{{ bold(x) }}'
    )
    written = template.render(x="<i>&\"'\x00\u202e")
    hidden = "&lt;i&gt;&amp;&#34;&#39;\\x00\\u202e"
    assert written == f'<p class="{hidden}"><b>{hidden}</b>'
    with pytest.raises(jinja2.UndefinedError):  # a misspelt name is an error, not an empty place
        environment(html=True).from_string("{{ view.nmae }}").render(view={"name": "x"})
    assert visible("a\x00\u202e\ud800\u00e9\u65e5") == "a\\x00\\u202e\\ud800\u00e9\u65e5"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (1234567, "1234567"),
        (0.000123456, "0.000123"),
        (-2.0, "-2"),
        (float("nan"), "NaN"),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_shares_and_durations_are_short():
    assert [percent(value) for value in (0.0, 0.0123, 0.5, 1.0, None)] == [
        "0 %",
        "1.23 %",
        "50 %",
        "100 %",
        DASH,
    ]
    assert [seconds(value) for value in (0.0123, 5.0, 300.0, 9000.0, float("nan"))] == ["12.3 ms", "5 s", "5 min", "2.5 h", DASH]


def test_alerts_that_are_only_infos_are_folded(page):
    dead, quiet = alert("dead", "a.relu", 0, "critical"), alert("silent", "b.unused", 0, "info")
    follows = dataclasses.replace(alert("zero", "a.fc", 0, "info"), cause="dead at a.relu")
    both = page(names=["a.relu", "b.unused"], alerts=(dead, quiet, follows))
    assert "2 infos, 1 of which follow from the above" in both.texts
    alone = page(names=["a.relu", "b.unused"], name="alone", alerts=(quiet,))
    assert "1 info" in alone.texts
    unfolded = [sum("open" in found for element, found in made.elements if element == "details") for made in (both, alone)]
    assert unfolded[1] == unfolded[0] + 1  # where there is nothing else to see


def test_a_run_that_raised_is_marked_as_failed(page):
    found = page(healthy=True, end="exception")
    (verdict,) = [attributes["class"] for _, attributes in found.elements if "verdict" in attributes.get("class", "").split()]
    assert verdict.split() == ["card", "verdict", "failed"]
    assert ("span", "mark failed") in [(element, attributes.get("class")) for element, attributes in found.elements]
    assert "Training ended with ValueError: <b>bad</b>" in found.text


def test_a_section_is_found_by_the_name_of_its_file():
    files = sorted(path.parent.name for path in Path(diagnostics.__file__).parent.glob("*/section.py"))
    assert files == ["clipping_events", "metrics"]
    assert [section.title for section in SECTIONS] == ["Clipping", "Metrics"]
