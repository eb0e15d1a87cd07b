"""Pictures of every tab, light and dark, narrow to wide, to be looked at: `python -m tests.app.ui.screenshots FOLDER`.

Makes a few clips with the real starter first, so that there is something to see.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.app.ui.serving import serving
from tests.app.ui.tab import Tab

CLIPS = (
    ("A red rocket flies up over a night city", 7),
    ("A white boat sails to the right over the sea at sunset", 3),
    ("A big yellow balloon floats up in a sunny meadow", 5),
)
CHOSEN = {"queue": CLIPS[-1][0], "presets": "Lift-off"}
"""What is chosen on a tab, so that its details are seen."""
SIZES = {390: 844, 1280: 900, 1920: 1080}
TABS = {"create": "Create", "queue": "Queue", "presets": "Presets", "models": "Models", "accelerate": "Accelerate"}


def main(folder: Path) -> None:
    """Write `TAB-LOOK-WIDTH.png` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home, serving(Path(home)) as served, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        make_clips(Tab(browser.new_page(), served.url).open())
        for look in ("light", "dark"):
            for width, height in SIZES.items():
                shape = {"width": width, "height": height}
                page = browser.new_context(viewport=shape, color_scheme=look, reduced_motion="reduce").new_page()
                picture_all(Tab(page, served.url), folder, f"{look}-{width}")
                page.context.close()
        browser.close()


def make_clips(tab: Tab) -> None:
    """As a person makes them."""
    for prompt, seed in CLIPS:
        tab.fill(Prompt=prompt).choose_seed("Fixed", str(seed)).generate().expect_clip(prompt)


def picture_all(tab: Tab, folder: Path, ending: str) -> None:
    """Every tab of one browser; the form shows what the newest clip was made with."""
    tab.open()
    tab.page.wait_for_timeout(1500)
    if tab.page.get_by_role("button", name="Use these settings").is_enabled():
        tab.page.get_by_role("button", name="Use these settings").click()
    for name, label in TABS.items():
        tab.show(label)
        if name in CHOSEN:
            tab.page.get_by_text(CHOSEN[name]).locator("visible=true").first.click()
        tab.page.wait_for_timeout(1500)
        tab.page.screenshot(path=folder / f"{name}-{ending}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
