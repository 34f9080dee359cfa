"""The page: its data whole, its text harmless, small, and true to the numbers."""

from __future__ import annotations

import base64
import html
import re
from hashlib import sha256

import pytest

from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.data import whole
from lightning_hooks.run_report.page import health_markdown
from tests.support.made_reports import HOSTILE, layer_names
from tests.support.pages import data_of, texts

SPOOF = "\u202egnp.exe"  # would be shown as exe.png
SCRIPTS = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)


@pytest.fixture
def page(make_run):
    def make(**kwargs):
        return whole(read_run(make_run(**kwargs)), 0.0)

    return make


def test_the_verdict_and_the_sections(page):
    found = page()
    (verdict,) = found["verdicts"]
    assert verdict["headline"].startswith("Dead units at model.encoder.layers.0.attn.out_proj, since epoch 3")
    assert found["problems"][0]["advice"] == ("Try this",)
    assert [section["title"] for section in found["sections"]] == [
        *("Alerts, root causes first", "Gradient flow", "Outputs", "Over the epochs", "Clipping"),
        *("Model and set-up", "Coverage and cost"),
    ]


@pytest.mark.parametrize("healthy", [True, False])
def test_no_text_of_a_run_is_markup(make_run, healthy):
    names = [*HOSTILE, SPOOF, '" onload="alert(1)', "</style><script>", "</script><script>alert(3)</script>", "]]>", "<!--"]
    run = read_run(make_run(names=names, name="<img src=x onerror=alert(2)>", healthy=healthy, end="exception"))
    check_harmless(text := health_page(run))
    assert set(names) <= set(texts(data_of(text)))
    assert "\\u202egnp.exe" in text.partition("</noscript>")[0]


def check_harmless(text):
    """What is markup is ours: the data holds no ``<``, and the text in words is escaped."""
    ours = re.sub(r"<noscript><pre>.*?</pre></noscript>|<style>.*?</style>", "", text, flags=re.DOTALL)
    scripts = SCRIPTS.findall(ours)
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    assert re.findall(r"<(/?\w+)", SCRIPTS.sub("", ours)) == [
        *("html", "head", "meta", "meta", "meta", "meta", "title", "/title", "/head", "body", "/body", "/html")
    ]
    assert "<" not in re.search(r"<noscript><pre>(.*?)</pre></noscript>", text, re.DOTALL)[1]
    assert "<" not in re.search(r"<title>(.*?)</title>", text, re.DOTALL)[1]


def test_nothing_but_the_module_can_run_and_nothing_can_be_loaded(make_run):
    text = health_page(read_run(make_run()))
    module = SCRIPTS.findall(text)[1]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    digest = base64.b64encode(sha256(module.encode()).digest()).decode()
    assert policy == f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\(", text.replace("/^https?:/", ""))


def test_without_a_script_it_is_the_markdown(make_run):
    run = read_run(make_run())
    written = re.search(r"<noscript><pre>(.*?)</pre></noscript>", health_page(run), re.DOTALL)[1]
    assert html.unescape(written) == health_markdown(run)


@pytest.mark.slow
def test_a_hundred_layers_over_two_hundred_windows_are_less_than_1_mb(make_run):
    run = read_run(make_run(names=layer_names(100), epochs=200, broken=lambda epoch: epoch == 7))
    assert len(health_page(run).encode()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("n", "epochs"), [(500, 20), (4000, 3)])
def test_a_large_run_stays_below_2_mb(make_run, n, epochs):
    assert len(health_page(read_run(make_run(names=layer_names(n), epochs=epochs))).encode()) < 2_000_000
