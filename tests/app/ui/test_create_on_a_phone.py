"""Create in a real browser that is as narrow as a phone, and what is seen of a server that was stopped."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.app.ui.serving import serving
from tests.app.ui.tab import PATIENCE, Tab

PHONE = {"width": 390, "height": 844}
LONG = {"Width": 256, "Height": 160, "Frames": 25, "Steps": 400}
NewTab = Callable[..., Tab]


@pytest.fixture
def phone(new_tab: NewTab) -> Tab:
    """The page as a phone shows it, for a person who wants nothing to move."""
    tab = new_tab(reduced_motion="reduce")
    tab.page.set_viewport_size(PHONE)
    return tab.open()


def test_no_label_is_seen_through_the_bar_with_generate(phone: Tab) -> None:
    phone.page.set_viewport_size(PHONE | {"height": 480})  # so that most labels begin below it
    covered = """() => {
        const bar = document.querySelector('.kt-go').getBoundingClientRect(), seen = [];
        for (const label of document.querySelectorAll('.kt-request [data-testid=block-info]')) {
            if (!label.offsetParent) continue;
            scrollTo(0, 0);
            scrollBy(0, label.getBoundingClientRect().top - bar.top - 4);
            const box = label.getBoundingClientRect(), y = box.top + box.height / 2;
            if (y < bar.top || y > bar.bottom) continue;
            const top = document.elementFromPoint(box.left + 4, y);
            seen.push([label.textContent.trim(), !!top.closest('.kt-go')]);
        }
        return seen;
    }"""
    found = phone.page.evaluate(covered)
    assert len(found) >= 3, found
    assert all(hidden for _, hidden in found), found


def test_settings_that_are_used_again_are_seen(phone: Tab) -> None:
    phone.fill(Prompt="seen again", Width=64, Height=64, Frames=5, Steps=1).generate().expect_clip("seen again")
    form = phone.page.locator(".kt-request")
    for tab, opened in (("Create", ""), ("Queue and history", "#kt-history .kt-card"), ("Presets", ".kt-preset")):
        phone.show(tab)
        if opened:
            phone.page.locator(opened).first.click()
        use = phone.page.locator("button:not([aria-disabled])", has_text="Use these settings").locator("visible=true")
        use.wait_for(timeout=PATIENCE)
        phone.page.evaluate("scrollTo(0, document.body.scrollHeight)")
        use.click()
        phone.page.wait_for_function("() => document.querySelector('.kt-request').offsetParent !== null")
        phone.page.wait_for_function(
            "() => Math.abs(document.querySelector('.kt-request').getBoundingClientRect().top) < 200"
        )
        assert form.is_visible()


def test_the_stage_comes_into_view_when_generate_is_pressed(phone: Tab) -> None:
    phone.page.evaluate("scrollTo(0, 0)")
    bar = phone.page.locator(".kt-go").bounding_box()["y"]
    assert phone.stage("cancel").bounding_box()["y"] > bar
    phone.fill(Prompt="seen on a phone", **LONG).generate().expect_running()
    try:
        phone.page.wait_for_function(
            """() => document.querySelector('.ks-cancel').getBoundingClientRect().bottom
                <= document.querySelector('.kt-go').getBoundingClientRect().top"""
        )
        tab = phone.page.locator("#tab-accelerate-button")
        assert phone.page.locator("#tab-queue-button[data-count]").count() == 1
        assert tab.is_visible()
        edge: Any = tab.bounding_box()
        assert edge["x"] + edge["width"] <= PHONE["width"]
    finally:
        phone.stage("cancel").click()
        phone.page.wait_for_function("() => !window.kinetile.running()", timeout=PATIENCE)


def test_a_server_that_was_stopped_is_told_of_whole(new_tab: NewTab, tmp_path: Path) -> None:
    with serving(tmp_path) as short_lived:
        tab = new_tab(url=short_lived.url).open()
        short_lived.end()
        said = tab.stage("now")
        said.get_by_text("No answer from Kinetile.").wait_for(timeout=PATIENCE)
        for width in (1280, 390):
            tab.page.set_viewport_size({"width": width, "height": 844})
            room = said.evaluate("node => [node.scrollWidth - node.clientWidth, node.scrollHeight - node.clientHeight]")
            assert max(room) <= 0, (width, room)


def test_nothing_covers_a_tabs_name_or_scrolls_sideways(phone: Tab) -> None:
    bottom, top, right, width = phone.page.evaluate("""() => {
        const button = document.getElementById('tab-queue-button'), letters = document.createRange();
        button.dataset.count = '12 held';
        const badge = getComputedStyle(button, '::after'), box = button.getBoundingClientRect();
        letters.selectNodeContents(button);
        const ends = [...button.parentElement.children].map((one) => one.getBoundingClientRect().right);
        const bottom = parseFloat(badge.top) + parseFloat(badge.height), top = letters.getBoundingClientRect().top;
        const found = [bottom, top - box.top, Math.max(...ends), innerWidth];
        delete button.dataset.count;
        return found;
    }""")
    assert bottom <= top, "the badge lies on the letters"
    assert right <= width
    phone.show("Presets").page.get_by_role("button", name="Paste a share code").wait_for()
    styles = phone.page.evaluate(
        "() => [...document.querySelectorAll('.kt-tools')].map((node) => getComputedStyle(node).overflowX)"
    )
    assert styles
    assert set(styles) == {"visible"}
