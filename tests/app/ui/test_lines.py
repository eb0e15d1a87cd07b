"""Why something was not done is told at its place alone, and gone with the next action."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.errors import CannotRunError
from app.ui.lines import Lines


def test_an_error_is_told_at_its_place_and_goes_with_the_next_action() -> None:
    with gr.Blocks():
        lines = Lines()
        for place in ("above", "below"):
            lines.place(place)
        outputs = [gr.State(), gr.State()]

    def act(works: bool) -> list[Any]:
        if not works:
            raise CannotRunError("The disk <is> full (on the command line: --home DIR).")
        return ["a", "b"]

    heard = lines.at("below", act, outputs, lambda: {outputs[1]: "told"})
    first, second, above, below = heard(False)
    assert (first, second, above) == (gr.skip(), "told", "")
    assert below == '<p class="kt-problem" role="alert">The disk &lt;is&gt; full.</p>'
    assert heard(True) == ["a", "b", "", ""]
    assert len(lines.components) == 2
