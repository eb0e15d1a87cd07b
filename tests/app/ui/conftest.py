"""A real server for the tests of the page, and a real browser in front of it.

The browser is the Chromium (or Chrome) that the machine has. Without one the tests that need it are skipped with a
sentence; where CI is set to true that is a failure.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.paths import Home
from tests.app.ui.desk import Desk
from tests.app.ui.serving import Served, serving

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A service without a worker, in a data folder of its own."""
    with Desk(Home(tmp_path)) as made:
        yield made


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The page with the real starter, for all tests that leave it usable."""
    with serving(tmp_path_factory.mktemp("page")) as page:
        yield page


@pytest.fixture(scope="session")
def chromium_path() -> str:
    """The browser's program."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    lacking = "Chromium is not installed" if program is None else ""
    if importlib.util.find_spec("playwright") is None:
        lacking = "the Python package playwright is not installed"
    if lacking or program is None:
        sentence = f"The page was not tried in a browser, because {lacking}."
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(sentence)
        pytest.skip(sentence)
    return program


@pytest.fixture(scope="module")
def chromium(chromium_path: str) -> Iterator[Any]:
    """A headless browser for one module: while it is there, the main thread's event loop is taken."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]  # containers run tests as root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def new_tab(chromium: Any, served: Served) -> Iterator[Callable[..., Any]]:
    """Opens tabs: with `beside` in the same browser profile as that tab, else in a fresh one."""
    from tests.app.ui.tab import Tab

    contexts: list[Any] = []

    def make(beside: Tab | None = None, url: str = "", **settings: Any) -> Tab:
        if beside is not None:
            return Tab(beside.page.context.new_page(), beside.url)
        contexts.append(chromium.new_context(viewport={"width": 1280, "height": 900}, **settings))
        return Tab(contexts[-1].new_page(), url or served.url)

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def tab(new_tab: Callable[..., Any]) -> Any:
    """A fresh browser with the page open."""
    return new_tab().open()
