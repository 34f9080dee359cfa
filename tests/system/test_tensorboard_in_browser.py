"""What a person sees: a real TensorBoard server, and headless Chromium looking at it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from lightning_hooks import monitors
from tests.support.browser import chromium
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.tensorboard_server import Browser, tensorboard, wait_for

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
EVIL = "<img src=x onerror=window&#46broken=1>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    with chromium(1280, 900) as driver:
        yield from _page(tmp_path_factory, Browser(driver))


def _page(tmp_path_factory: pytest.TempPathFactory, browser: Browser) -> Iterator[tuple[Browser, str]]:
    folder = tmp_path_factory.mktemp("browser")
    torch.manual_seed(0)
    net = mlp(depth=30)
    net[0].bias.data.fill_(-50.0)  # so that the rectifier behind it is dead
    ours = monitors(every_n_steps=1, summary=False, figures=3, histograms="net.[0-4]", logged="all")
    logger = TensorBoardLogger(folder, name="run", version=0)
    trainer(ours, max_epochs=3, logger=logger, gradient_clip_val=0.1).fit(Classifier(net), loader())
    with tensorboard(folder) as address:
        yield browser, address


def test_scalars_are_in_three_groups(page: tuple[Browser, str]) -> None:
    browser, address = page
    browser.open(f"{address}#scalars")
    browser.shows("features", "gradient_clip", "gradient_flow")


def test_pictures_are_shown(page: tuple[Browser, str]) -> None:
    browser, address = page
    browser.open(f"{address}#images")
    browser.shows("features/figures/rms by epoch")
    wait_for(lambda: browser.pictures() >= 1, "a picture")


def test_alerts_and_sites_are_tables(page: tuple[Browser, str]) -> None:
    browser, address = page
    browser.open(f"{address}#text")
    browser.shows("alerts", "dead", "net.1", "what was seen, the likely cause, what to try:")
    assert browser.run("return all.filter(e => e.tagName === 'TD' && seen(e)).length") > 10


def test_histograms_are_drawn(page: tuple[Browser, str]) -> None:
    browser, address = page
    browser.open(f"{address}#histograms")
    browser.shows("features/net.0/histogram")
    wait_for(lambda: browser.run("return all.filter(e => e.tagName === 'path' && seen(e)).length") > 3, "histograms")


def test_hostile_names_are_shown_and_not_run(page: tuple[Browser, str], tmp_path: Path) -> None:
    browser, _ = page
    net = nn.Sequential()
    net.add_module(EVIL, nn.Linear(8, 3))
    logger = TensorBoardLogger(tmp_path, name="<b>run</b>", version=0)
    trainer(monitors(every_n_steps=1, summary=False), max_epochs=2, logger=logger).fit(Classifier(net), loader())
    with tensorboard(tmp_path) as address:
        browser.open(f"{address}#scalars")
        browser.shows("gradient_flow")
        assert browser.run("return window.broken === undefined && !all.some(e => e.tagName === 'IMG' && e.hasAttribute('onerror'))")
