"""A JupyterLab for all lessons, and a headless Chromium for each; both gone afterwards."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_server import ROOT, Lab, make_quick, serve

from spin_core.lab.lessons import workspace

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that takes ``notebook`` runs once for each lesson."""
    if "notebook" in metafunc.fixturenames:
        metafunc.parametrize("notebook", [path.name for path in NOTEBOOKS],
                             ids=[path.stem for path in NOTEBOOKS])


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Serves a student's copy of the lessons, which run the quick profile and leave their figures beside them."""
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").symlink_to(ROOT / "notebooks")
    folder = workspace.prepare(home)
    for path in folder.glob("*.ipynb"):
        make_quick(path)
    with serve(home, folder) as running:
        yield running


@pytest.fixture
def browser(tmp_path: Path):
    """A headless Chromium that keeps the page's console."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if not (chromium and driver):
        missing = "Chromium" if not chromium else "chromedriver"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{missing} is not installed (Debian: apt-get install chromium chromium-driver)")
        pytest.skip(f"{missing} is not installed (Debian: apt-get install chromium chromium-driver)")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                 "--disable-background-networking", "--disable-component-update", "--disable-sync",
                 "--disable-dev-shm-usage", "--window-size=1200,1400",
                 f"--user-data-dir={tmp_path / 'profile'}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    page = webdriver.Chrome(options=options, service=Service(driver))
    try:
        page.set_page_load_timeout(180)
        page.set_script_timeout(120)
        yield page
    finally:
        page.quit()
