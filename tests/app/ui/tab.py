"""One tab of a real browser with the page in it, and what a person does there."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Page, expect

PATIENCE = 90_000
"""Milliseconds that a clip may take on a busy machine."""


class Tab:
    """The page as a person sees it. `requests` holds every address that the browser asked for."""

    def __init__(self, page: Page, url: str) -> None:
        self.page, self.url = page, url
        self.requests: list[str] = []
        self.errors: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(30_000)

    def open(self) -> Tab:
        """Go there and wait until the form is as the browser kept it."""
        self.page.goto(self.url)
        self.page.wait_for_function("() => window.kinetile && window.kinetile.restored && window.kinetile.running")
        return self

    def field(self, label: str) -> Any:
        """An input of the form by its label."""
        return self.page.locator(".kt-request").get_by_label(label, exact=True)

    def fill(self, **values: object) -> Tab:
        """Fill fields; labels are written with _ for spaces."""
        for label, value in values.items():
            self.field(label.replace("_", " ")).fill(str(value))
        return self

    def expect_value(self, label: str, value: str) -> Tab:
        """Wait until a field of the form holds that: what the server sends reaches the fields one after the other."""
        expect(self.field(label)).to_have_value(value, timeout=PATIENCE)
        return self

    def choose_seed(self, mode: str, seed: str | None = None) -> Tab:
        """Random, Fixed or Reuse."""
        self.page.get_by_role("radio", name=mode).check()
        if seed is not None:
            self.field("Seed number").fill(seed)
        return self

    def show(self, tab: str) -> Tab:
        """Open another tab of the page."""
        self.page.get_by_role("tab", name=tab).click()
        return self

    def bring(self, code: str) -> Tab:
        """Paste a share code and take over what it asks for."""
        self.show("Presets").page.get_by_role("button", name="Paste a share code").click()
        self.page.get_by_label("Share code or text of a preset").fill(code)
        self.page.get_by_role("button", name="Read it").click()
        self.page.get_by_text("it is not kept yet").wait_for()
        self.page.locator('#kt-preset button[data-do="apply"]:not([aria-disabled])').click()
        return self

    def generate(self) -> Tab:
        """Press Generate."""
        self.page.locator("#kt-generate").click()
        return self

    def stage(self, part: str = "stage") -> Any:
        """A part of the stage."""
        return self.page.locator(f"#kt-stage .ks-{part}")

    def expect_running(self) -> Tab:
        """Wait until a clip is being made."""
        self.page.wait_for_function("() => window.kinetile.running()", timeout=PATIENCE)
        return self

    def expect_clip(self, prompt: str) -> Tab:
        """Wait until the stage shows the clip of that prompt and nothing runs."""
        self.page.wait_for_function(
            """(prompt) => !window.kinetile.running()
                && document.querySelector('#kt-stage .ks-picture').dataset.show === 'clip'
                && document.querySelector('#kt-stage .ks-title').textContent === prompt""",
            arg=prompt,
            timeout=PATIENCE,
        )
        return self
