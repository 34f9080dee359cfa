"""The page in a real browser: on a phone and on a screen, by day and by night."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.page import document
from tests.support.browser import chromium, opened
from tests.support.made_reports import HOSTILE, layer_names
from tests.support.pages import data_of
from tests.support.tensorboard_server import wait_for

CONTRAST = """
const linear = v => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
const luminance = color => {
  const [r, g, b] = color.match(/[\\d.]+/g).slice(0, 3).map(v => linear(v / 255));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = element => {
  for (let at = element; at; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    if (color !== 'rgba(0, 0, 0, 0)') return color;
  }
  return 'rgb(255, 255, 255)';
};
return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent && e.innerText.trim()).map(element => {
  const [one, other] = [luminance(getComputedStyle(element).color), luminance(behind(element))].sort((a, b) => b - a);
  return [(one + 0.05) / (other + 0.05), element.innerText.slice(0, 40), getComputedStyle(element).color, behind(element)];
});
"""
TEXTS = "h1, h2, h3, p, b, small, summary, .headline, .name, .n, .when, .pill, td, th, li, nav a, .ends span"
LOADED = "return performance.getEntriesByType('resource').filter(e => !e.name.startsWith('data:')).length"


@pytest.fixture(scope="module")
def shown():
    """A page in a browser of a size and a scheme; browsers are kept for the module."""
    browsers = {}

    def show(text: str, folder: Path, width: int, dark: bool):
        if (width, dark) not in browsers:
            entered = chromium(width, dark=dark)
            browsers[width, dark] = entered, entered.__enter__()
        path = folder / "page.html"
        path.write_text(text, encoding="utf-8")
        browser = browsers[width, dark][1]
        browser.get("about:blank")
        opened(browser, path)
        wait_for(lambda: browser.find_elements("css selector", "main h1"), "the page")
        wait_for(lambda: not browser.find_elements("css selector", "[aria-busy]"), "all parts")
        return browser

    yield show
    for entered, _ in browsers.values():
        entered.__exit__(None, None, None)


@pytest.fixture
def pages(make_run):
    run = read_run(make_run(names=layer_names(30), epochs=6, silent=("a.b",), broken=lambda epoch: epoch == 5))
    hostile = read_run(make_run("<b>run", names=[*HOSTILE, "\u202egnp.exe", "</script><script>window.broken=1</script>"], epochs=6))
    return {"report": health_page(run), "hostile": health_page(hostile), "compare": document(compare(run, hostile), "")}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
@pytest.mark.parametrize("what", ["report", "hostile", "compare"])
def test_it_is_readable(shown, pages, tmp_path, what, width, dark):
    browser = shown(pages[what], tmp_path, width, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    first = browser.find_element("css selector", ".verdict")
    assert first.rect["y"] < 150  # the verdict is what one sees without scrolling
    assert browser.execute_script(LOADED) == 0
    assert browser.execute_script("return window.broken === undefined && document.querySelectorAll('main script').length === 0")
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 150) == dark
    texts = browser.execute_script(CONTRAST, TEXTS)
    assert len(texts) > 40
    assert [text for text in texts if text[0] < 4.5] == []  # WCAG AA
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


PLACES = """return [...document.querySelectorAll(arguments[0])].map(row =>
  [row.querySelector('.name').innerText.trim(), row.querySelector('.track b').style.left])"""


def test_everything_is_drawn(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 1000, False)
    sizes = browser.execute_script("return [...document.querySelectorAll('canvas')].map(i => [i.width, i.height])")
    assert sizes[0] == [6, 30]
    assert len(sizes) >= 5
    curves = ".curve"
    assert browser.execute_script(f'return [...document.querySelectorAll("{curves}")].every(l => l.getBBox().width > 0)')
    heads = browser.execute_script("return [...document.querySelectorAll('h2')].map(head => head.innerText)")
    assert heads == [section["title"] for section in data_of(pages["report"])["page"]["sections"]]
    image = pytest.importorskip("PIL.Image")
    picture = image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    assert len(picture.getcolors(1 << 24)) > 200


def test_a_number_stands_where_its_scale_says(shown, tmp_path, make_run):
    run = read_run(make_run(names=layer_names(4), epochs=3))
    browser = shown(health_page(run), tmp_path, 1000, False)
    drawn = browser.execute_script(PLACES, "[id='section gradients'] ~ .card > .rows > .row:not(.axis)")
    sizes = {name: math.log10(stats.rms) for name, stats in run.of("gradient_flow")[0].last.modules.items()}
    largest = max(math.log10(stats.max) for stats in run.of("gradient_flow")[0].last.modules.values())
    low, high = math.floor(min(sizes.values())), math.ceil(largest)
    assert {name: float(left.removesuffix("%")) for name, left in drawn} == pytest.approx(
        {name: 100 * (size - low) / (high - low) for name, size in sizes.items()}, rel=1e-2
    )


def test_a_heat_map_is_read_by_keys_and_draws_a_curve(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 1000, False)
    canvas = browser.find_element("css selector", ".heat canvas")
    heat = data_of(pages["report"])["answers"]["heat?monitor=1&table=modules&stat=rms"]
    canvas.send_keys("\ue011\ue015")  # Home, an arrow down
    assert f"{heat['names'][1]}, epoch 0: " in browser.find_element("css selector", ".readout").text
    canvas.send_keys("\ue007")
    wait_for(lambda: f"rms of {heat['names'][1]}" in browser.execute_script("return document.body.innerText"), "the curve")


def test_a_link_leads_to_an_alert_or_a_section(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 360, True)
    browser.find_element("partial link text", "Link to this alert").click()
    wait_for(lambda: browser.find_elements("css selector", ".chosen .chart"), "the alert's curve")
    assert "#alert=" in browser.current_url
    browser.find_element("link text", "Gradient flow").click()
    wait_for(lambda: browser.current_url.endswith("#section=gradients"), "the address")
    top = "return document.getElementById('section gradients').getBoundingClientRect().top"
    wait_for(lambda: abs(browser.execute_script(top)) < 40, "the section")
    assert browser.execute_script("return document.activeElement.id") == "section gradients"


def test_what_is_folded_opens(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 360, True)
    details = browser.find_element("css selector", "[id='section gradients'] ~ .card details:last-of-type")
    assert details.get_attribute("open") is None
    details.find_element("css selector", "summary").click()
    assert details.get_attribute("open") is not None
    assert details.find_element("css selector", ".row:not(.axis) .name").is_displayed()


def test_without_a_script_the_report_can_be_read(pages, tmp_path):
    (tmp_path / "page.html").write_text(pages["report"], encoding="utf-8")
    with chromium(1000) as browser:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
        page = opened(browser, tmp_path / "page.html")
        assert "# Health report: Net" in page.find_element("css selector", "noscript").text
