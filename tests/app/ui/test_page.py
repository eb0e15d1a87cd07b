"""The whole page: built without a complaint of Gradio's, its endpoints listed, its labels on one line."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from app.paths import Home
from app.ui.context import Context
from app.ui.live import Live
from app.ui.page import build
from tests.app.ui.desk import Desk
from tests.app.ui.tab import PATIENCE, Tab

LISTED = Path(__file__).parents[3] / "app" / "ui" / "README.md"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, list[str]]:
    """The page, and what was complained of while it was built."""
    home = Home(tmp_path_factory.mktemp("page"))
    with Desk(home) as desk, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        context = Context(desk, home, uploads=home.root)
        page = build(context, Live(context))
    return page, [str(one.message) for one in told if one.category is UserWarning]  # as Gradio complains


def test_the_page_is_built_without_warnings(built: tuple[Any, list[str]]) -> None:
    assert built[1] == []


def test_the_endpoints_for_programs_are_those_that_are_listed(built: tuple[Any, list[str]]) -> None:
    rows = re.findall(r"^\| (`/.*?) \|", LISTED.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for row in rows for name in re.findall(r"`(/\w+)`", row)]
    assert sorted(listed) == sorted(built[0].get_api_info()["named_endpoints"])


@pytest.mark.parametrize("width", [390, 1280])
def test_labels_stay_on_one_line(width: int, new_tab: Callable[..., Tab]) -> None:
    tab = new_tab()
    tab.page.set_viewport_size({"width": width, "height": 844})
    tab.open()
    tab.field("Model").click()
    tab.page.get_by_role("option", name="Wan 2.2 T2V A14B").click()  # has a field for every setting
    tab.page.get_by_role("button", name="More").click()
    tab.field("Guidance, later steps").wait_for(timeout=PATIENCE)
    labels = [one for one in tab.page.locator(".kt-request [data-testid=block-info]").all() if one.is_visible()]
    heights = {one.inner_text(): round((one.bounding_box() or {"height": 0})["height"]) for one in labels}
    assert {"Model", "Guidance, later steps", "Shift"} <= heights.keys()
    assert len(set(heights.values())) == 1, heights


def test_the_foot_ends_with_a_link(new_tab: Callable[..., Tab]) -> None:
    foot = new_tab().open().page.locator("footer")
    foot.get_by_text("Use via API").wait_for()
    assert foot.inner_text().strip() == "Use via API"
