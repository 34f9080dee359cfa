"""What a person sees of the Health tab: a real TensorBoard in this process, and headless Chromium looking at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.page import MOST_NOTEBOOK_BYTES, framed, health_page
from tests.support.browser import chromium
from tests.support.health_tab import Tab, tensorboard_with_tab
from tests.support.made_reports import HOSTILE, features, flow, layer_names
from tests.support.runs import make_run  # noqa: F401  a fixture
from tests.support.tensorboard_server import wait_for

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")
DEAD = "dead at model.encoder.layers.0.attn.out_proj"
NAMES = layer_names(9)


def test_the_tab_lists_runs_and_leads_to_an_alert(make_run: Any, tmp_path: Path) -> None:  # noqa: F811
    make_run("a")
    make_run("b", healthy=True)
    with chromium(1280, 900) as driver, tensorboard_with_tab(tmp_path / "logs") as address:
        tab = Tab(driver, address)
        tab.open()
        tab.shows("2 runs: 1 warning, 1 healthy", "5 epochs, no rule broken", "Dead units at model.encoder.layers.0.attn.out_proj")
        driver.find_element("partial link text", "Vanishing gradients").click()
        tab.shows("What to try", "Alerts, root causes first", "Clipping", "rms of model.embed")
        assert tab.outer() == f"#health&run=a&alert={quote('vanishing at model.embed')}"
        marks = driver.execute_script("return document.querySelectorAll('.chosen .chart .at.warning').length")
        assert marks == 1
        canvas = driver.find_element("css selector", ".heat canvas")
        canvas.send_keys("\ue014")  # an arrow key
        assert "model.embed, epoch" in driver.find_element("css selector", ".readout").text
        tab.open(f"run=a&alert={quote(DEAD)}")
        tab.shows("dead_fraction of model.encoder.layers.0.attn.out_proj")
        tab.open("a=a&b=b")
        tab.shows("Two runs compared", "Only in A")
        assert [entry for entry in driver.get_log("browser") if entry["level"] == "SEVERE" and "/health/" in entry["message"]] == []


def test_the_users_metrics_are_drawn_next_to_the_loss(make_run: Any, tmp_path: Path) -> None:  # noqa: F811
    for name in ("a", "b"):
        file = make_run(name, healthy=True) / FOLDER / REPORTS
        for epoch in range(5):
            numbers = {"train_acc": 0.1 * epoch, "val_acc": 0.12 * epoch, "val_loss": 1.0 - 0.1 * epoch}
            append(file, line("epoch", {"epoch": epoch, "seconds": 1.0, "loss": 1.0, "metrics": numbers}))
    with chromium(1280, 900) as driver, tensorboard_with_tab(tmp_path / "logs") as address:
        tab = Tab(driver, address)
        tab.open("run=a")
        tab.shows("Loss and learning rate", "acc", "train_acc", "val_acc", "val_loss")
        tab.open("a=a&b=b")
        tab.shows("Loss and learning rate", "acc: train_acc", "acc: val_acc", "Loss: val_loss")


def test_a_run_that_is_being_written_is_followed(make_run: Any, tmp_path: Path) -> None:  # noqa: F811
    file = make_run("live", healthy=True, epochs=2, end=None) / FOLDER / REPORTS
    with chromium(1280, 900) as driver, tensorboard_with_tab(tmp_path / "logs") as address:
        tab = Tab(driver, address)
        tab.open()
        tab.shows("running", "2 of 5 epochs")
        append(file, report_line("gradient_flow", "every leaf", flow(2, NAMES), 0.01))
        tab.shows("3 of 5 epochs", "Vanishing gradients")
        tab.open("run=live")
        tab.shows("Vanishing gradients")
        driver.execute_script("document.querySelector('details').open = true; window.scrollTo(0, 300)")
        append(file, report_line("features", "every leaf", features(3, NAMES), 0.01) + line("end", {"how": "finished"}))
        tab.shows("4 of 5 epochs", "finished")
        assert driver.execute_script("return window.scrollY") == 300, "a new window leaves the reader where they are"


def test_hostile_names_are_text(make_run: Any, tmp_path: Path) -> None:  # noqa: F811
    evil = "<img src=x onerror=window.broken=1>"
    make_run(evil, names=[*HOSTILE, evil])
    make_run("other", names=[*HOSTILE, evil], healthy=True)
    with chromium(1280, 900) as driver, tensorboard_with_tab(tmp_path / "logs") as address:
        tab = Tab(driver, address)
        for place, text in (
            ("", evil),
            (f"run={quote(evil)}", "Alerts, root causes first"),
            (f"a={quote(evil)}&b=other", "Two runs compared"),
        ):
            tab.open(place)
            tab.shows(text)
            assert driver.execute_script("return window.broken === undefined && window.parent.broken === undefined")
            assert driver.find_elements("css selector", "main img, main script") == []
        tab.open(f"run={quote('<b>nothing</b>')}")
        tab.shows("There is no such run", "all runs")


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1600, False)])
def test_nothing_is_wider_than_the_screen(make_run: Any, tmp_path: Path, width: int, dark: bool) -> None:  # noqa: F811
    make_run("a" * 100, names=layer_names(60))
    make_run("b", names=layer_names(60), healthy=True)
    with chromium(width, 900, dark) as driver, tensorboard_with_tab(tmp_path / "logs") as address:
        tab = Tab(driver, address)
        for place in ("", f"run={'a' * 100}", f"a={'a' * 100}&b=b"):
            tab.open(place)
            tab.shows("runs")
            tab.settled()
            wide = driver.execute_script("return document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert wide <= 0, place


def test_the_page_in_the_frame_of_a_notebook(make_run: Any, tmp_path: Path) -> None:  # noqa: F811
    run = read_run(make_run("a", names=[*NAMES, "</script><script>window.broken=1</script>"]))
    page = tmp_path / "page.html"
    page.write_text(framed(health_page(run, MOST_NOTEBOOK_BYTES), "Health"), encoding="utf-8")
    with chromium(1000, 800) as driver:
        driver.get(page.as_uri())
        driver.switch_to.frame(driver.find_element("css selector", "iframe"))
        wait_for(lambda: "Alerts, root causes first" in driver.execute_script("return document.body.innerText"), "the page")
        wait_for(lambda: driver.find_elements("css selector", ".heat canvas"), "a heat map")
        driver.find_element("partial link text", "Link to this alert").click()
        wait_for(lambda: driver.find_elements("css selector", ".chosen .chart"), "the alert's curve")
        assert driver.execute_script("return window.broken === undefined")
        assert [json.dumps(entry) for entry in driver.get_log("browser") if entry["level"] == "SEVERE"] == []
