"""The whole page: the tabs put together, nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from app.ui import accelerate, create, models, presets, queue
from app.ui.context import QUICK, Context
from app.ui.live import Live
from app.ui.theme import VARIABLES, theme

ASSETS = Path(__file__).parent / "assets"
TABS = (
    ("queue", "Queue and history", queue),
    ("presets", "Presets", presets),
    ("models", "Models", models),
    ("accelerate", "Accelerate", accelerate),
)
_HEADER = '<h1 class="kt-name-of-app">Kinetile</h1><span id="kt-header-machine"></span>'


class Page(gr.Blocks):
    """Gradio's page, but what a program sends that the page itself never would is one sentence and no traceback."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *more: Any, **named: Any) -> Any:
        """What arrives, as the components take it. Raises gr.Error."""
        try:
            return await super().preprocess_data(block_fn, inputs, *more, **named)
        except gr.Error:
            raise
        except Exception as error:
            wanted = f"{len(block_fn.inputs)} values of the right kind are wanted, {len(inputs)} came"
            raise gr.Error(f"That can't be read: {wanted}.", print_exception=False) from error


def build(context: Context, live: Live) -> Page:
    """The page for one service. What it needs at launch is in `looks`."""
    with Page(title="Kinetile", analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)) as page:
        context.page = page
        gr.HTML(_HEADER, apply_default_css=False, elem_id="kt-header")
        with gr.Tabs(selected="create", elem_id="kt-tabs") as context.tabs:
            loads: list[Any] = []
            outside: list[Any] = []
            with gr.Tab("Create", id="create", elem_id="tab-create"):
                loads += create.build(context, live).on_load
            for name, title, module in TABS:
                with gr.Tab(title, id=name, elem_id=f"tab-{name}"):
                    parts = module.build(context)
                    loads, outside = loads + parts.on_load, outside + parts.outside
        for make in outside:
            make()
        for function, outputs in loads:
            page.load(function, None, outputs, **QUICK)
    return page


def looks() -> dict[str, Any]:
    """Theme, styles and scripts, for `launch`: all from this folder."""
    styles = [VARIABLES, *(path.read_text(encoding="utf-8") for path in sorted(ASSETS.glob("*.css")))]
    return {
        "theme": theme(),
        "css": "\n".join(styles),
        "js": (ASSETS / "page.js").read_text(encoding="utf-8"),
        "head": '<meta name="color-scheme" content="light dark"><meta name="viewport" '
        'content="width=device-width, initial-scale=1">',
    }
