"""The page in a real browser: on a phone and on a screen, by day and by night."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.page import compare_page
from tests.support.browser import chromium, opened
from tests.support.made_reports import HOSTILE, layer_names

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
        return opened(browsers[width, dark][1], path)

    yield show
    for entered, _ in browsers.values():
        entered.__exit__(None, None, None)


@pytest.fixture
def pages(make_run):
    run = read_run(make_run(names=layer_names(30), epochs=6, silent=("a.b",), broken=lambda epoch: epoch == 5))
    hostile = read_run(make_run("<b>run", names=[*HOSTILE, "\u202egnp.exe"], epochs=6))
    return {"report": health_page(run), "hostile": health_page(hostile), "compare": compare_page(compare(run, hostile))}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1000])
@pytest.mark.parametrize("what", ["report", "hostile", "compare"])
def test_it_is_readable(shown, pages, tmp_path, what, width, dark):
    browser = shown(pages[what], tmp_path, width, dark)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    first = browser.find_element("css selector", ".verdict")
    assert first.rect["y"] < 150  # the verdict is what one sees without scrolling
    assert browser.execute_script(LOADED) == 0
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in paper[4:-1].split(",")) < 150) == dark
    texts = browser.execute_script(CONTRAST, TEXTS)
    assert len(texts) > 40
    assert [text for text in texts if text[0] < 4.5] == []  # WCAG AA


def test_everything_is_drawn(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 1000, False)
    sizes = browser.execute_script("return [...document.images].map(i => [i.naturalWidth, i.naturalHeight])")
    assert sizes[0] == [6, 30]
    assert len(sizes) >= 5
    curves = "polyline:not(.dot, .bar)"  # the others are marks: lines of no length with round ends
    assert browser.execute_script(f'return [...document.querySelectorAll("{curves}")].every(l => l.getBBox().width > 0)')
    image = pytest.importorskip("PIL.Image")
    picture = image.open(io.BytesIO(browser.get_screenshot_as_png())).convert("RGB")
    assert len(picture.getcolors(1 << 24)) > 200


def test_what_is_folded_opens_without_a_script(shown, pages, tmp_path):
    browser = shown(pages["report"], tmp_path, 360, True)
    details = browser.find_element("css selector", "#gradients ~ .card details")
    assert details.get_attribute("open") is None
    details.find_element("css selector", "summary").click()
    assert details.get_attribute("open") is not None
    assert details.find_element("css selector", ".row:not(.axis) .name").is_displayed()
