"""Take the screenshots of README and docs again: digits with planted faults in TensorBoard, and the demo's health report.

python -m tests.trackers.screenshots [--images FOLDER] [--runs FOLDER] [--only NAME ...]
"""

from __future__ import annotations

import argparse
import importlib.util
import logging
import runpy
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import TensorBoardLogger
from torch.utils.data import DataLoader

from lightning_hooks import monitors
from lightning_hooks.demo import run as run_demo
from tests.support.browser import chromium
from tests.support.health_tab import Tab, tensorboard_with_tab
from tests.support.tensorboard_server import Browser, tensorboard, wait_for

ROOT = Path(__file__).parents[2]
EPOCHS = 10
FAULT = "vanishing"
"""The run that is looked at closely."""


def digits() -> Any:
    """The demo, as a module."""
    spec = importlib.util.spec_from_file_location("digits", ROOT / "examples" / "digits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["digits"] = module
    spec.loader.exec_module(module)
    return module


def train(demo: Any, folder: Path, name: str, learning_rate: float = 3e-3, **options: Any) -> None:
    """Train the demo's net, with a fault or healthy."""
    pl.seed_everything(0, verbose=False)
    train_set, val_set = demo.load_data()
    net = demo.DigitsNet(learning_rate=learning_rate, epochs=EPOCHS)
    if name in demo.FAULTS:
        demo.FAULTS[name].plant(net, train_set.tensors[0])
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        gradient_clip_val=1.5,
        callbacks=monitors(every_n_steps=1, summary=False, **options),
        logger=TensorBoardLogger(folder, name=name, version=""),
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
    )
    trainer.fit(net, DataLoader(train_set, 64, shuffle=True), DataLoader(val_set, len(val_set)))


def scalars(browser: Browser, address: str) -> None:
    """The groups, of one run."""
    browser.open(f"{address}#scalars&_smoothingWeight=0")
    browser.shows("features", "gradient_clip", "gradient_flow")
    assert all(browser.click(group) for group in ("epoch", "features", "gradient_clip"))  # two folded, one opened
    wait_for(lambda: browser.lines() >= 1, "curves")


def runs(browser: Browser, address: str) -> None:
    """Four runs together."""
    tags = "alerts/(dead|vanishing|exploding)|head.relu/dead|conv1.weight/update|clip/rate"
    browser.open(f"{address}#scalars&_smoothingWeight=0&tagFilter={tags.replace('|', '%7C')}")
    browser.shows("gradient_clip/rate")
    assert browser.click("Ignore outliers in chart scaling")
    wait_for(lambda: browser.lines() >= 6, "curves")


def images(browser: Browser, address: str) -> None:
    """The picture of the gradient's flow."""
    browser.open(f"{address}#images&tagFilter=flow/figures/gradient%20flow$")
    browser.shows("gradient_flow/figures/gradient flow")
    wait_for(lambda: browser.pictures() >= 1, "a picture")
    assert browser.click("Show actual image size")


def text(browser: Browser, address: str) -> None:
    """The alerts."""
    browser.open(f"{address}#text")
    browser.shows("alerts", "vanishing", "Consequences")


SHOTS: dict[str, tuple[Callable[[Browser, str], None], str, tuple[int, int]]] = {
    "tensorboard": (runs, "digits", (1480, 720)),
    "tensorboard-scalars": (scalars, "runs", (1280, 760)),
    "tensorboard-figures": (images, "runs", (1280, 760)),
    "tensorboard-alerts": (text, "runs", (1280, 660)),
}
"""Name to what opens the page, of which log directory, and the window."""
HEALTH = "health-tab"
SAMPLE = "report-sample"
"""The picture of the guide about samples."""
REPORTS = {"report-light": (900, 844, False), "report-phone-dark": (390, 844, True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--runs", type=Path, help="where the trainings are, or are put; a temporary folder by default")
    parser.add_argument("--only", nargs="*", help="of these pictures")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = args.runs or Path(name)
        if not (args.only and set(args.only) <= {*REPORTS, SAMPLE}) and (not folder.is_dir() or not any(folder.iterdir())):
            demo = digits()
            for run in ("healthy", "vanishing", "dying-relu", "exploding"):
                train(demo, folder / "digits", run)
            train(demo, folder / "runs", FAULT, learning_rate=3e-4, figures=True, histograms=True)  # slow enough that it lasts
        take(folder, args.images, args.only)


def take(folder: Path, pictures: Path, only: list[str] | None) -> None:
    """Take the pictures."""
    pictures.mkdir(parents=True, exist_ok=True)
    for name, (visit, logs, (width, height)) in SHOTS.items():
        if only and name not in only:
            continue
        with chromium(width, height) as driver, tensorboard(folder / logs) as address:
            browser = Browser(driver)
            visit(browser, address)
            settle(browser)
            browser.screenshot(pictures / f"{name}.png")
    if not only or HEALTH in only:
        with chromium(1280, 900) as driver, tensorboard_with_tab(folder / "digits") as address:
            tab = Tab(driver, address)
            tab.open()
            tab.shows("4 runs", "Dead units")
            driver.switch_to.default_content()
            Browser(driver).screenshot(pictures / f"{HEALTH}-runs.png")
            tab.open(f"run={FAULT}")
            tab.shows("Alerts, root causes first")
            tab.settled()
            driver.find_element("partial link text", "with its curve").click()
            wait_for(lambda: driver.find_elements("css selector", ".chosen .chart"), "the alert's curve")
            tab.settled()
            driver.switch_to.default_content()
            Browser(driver).screenshot(pictures / f"{HEALTH}.png")
    chosen = {name: size for name, size in REPORTS.items() if not only or name in only}
    report = run_demo(folder / "demo")[0].resolve().as_uri() if chosen else ""
    for name, (width, height, dark) in chosen.items():
        with chromium(width, height, dark) as driver:
            driver.get(report)
            Browser(driver).screenshot(pictures / f"{name}.png")
    if not only or SAMPLE in only:
        with chromium(900, 620) as driver:
            driver.get(planted_sample(folder / "sample").resolve().as_uri())
            Browser(driver).screenshot(pictures / f"{SAMPLE}.png")
    for path in sorted(pictures.glob("*.png")):
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


def planted_sample(folder: Path) -> Path:
    """Train the net of the guide "which sample broke my run"; return its health report."""
    text = (ROOT / "docs" / "guides" / "which_sample.md").read_text(encoding="utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "train.py"
    script.write_text(text.partition("```python\n")[2].partition("```")[0].replace("runs/which_sample", folder.as_posix()))
    runpy.run_path(str(script))
    return folder / "lightning_hooks" / "report.html"


def settle(browser: Browser) -> None:
    """Wait until charts have moved to where they belong."""
    import time

    time.sleep(3)
    assert browser.text()


if __name__ == "__main__":
    main()
