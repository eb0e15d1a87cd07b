"""Readouts on the Accelerate tab: run a benchmark, see what came out, and hold two plans side by side.

What is measured goes on without the page; every open tab sees the same. Frames of two plans are looked at in a slider,
one frame at a time, straight from the files that the worker wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr
import numpy as np
import numpy.typing as npt

from app.errors import KinetileError, UsageError
from app.measuring import MeasureAsk, Measuring, subject_of
from app.plain import to_data
from app.request import AccelPreferences, GenerationRequest, parse_request
from app.ui.context import QUICK, Context, told
from app.ui.endpoints import add_endpoints
from app.ui.live import data_uri
from app.ui.readouts_view import (
    MEANING,
    beside_html,
    compared_html,
    panel_html,
    progress_words,
    results_html,
    sides_html,
)
from app.ui.rows import HEARD, actions, read_data, script

AUTOMATIC, SWITCHED = "Automatic", "As switched above"
PLAIN = {"Plain PyTorch, fp32": "float32", "Plain PyTorch, bf16": "bfloat16"}
REFERENCE = next(iter(PLAIN))
"""For clips of a benchmark, where the form has none: without a prompt there is no guidance."""


@dataclass
class Readouts:
    """The part's components, and the functions behind them."""

    context: Context
    model: Any
    state: Any = None
    """Set by `build`: number and state of the measurement as the page shows it, None where it can't tell."""
    pair: Any = None
    """Set by `build`: the number of the comparison whose pictures the page shows."""

    def build(self) -> list[Any]:
        """Make the components and their events; returns the outputs of `show`."""

        def progress(_: Any = None) -> dict[str, Any]:  # the browser always sends something
            return self.progress()

        gr.HTML(f'<h2 class="kt-heading">Readouts</h2><p class="kt-quiet">{MEANING}</p>', apply_default_css=False)
        moving = {"server_functions": [progress], "elem_id": "kt-measure"}
        panel = actions(panel_html(Measuring()), script("readouts.js"), **moving)
        results = gr.HTML("", apply_default_css=False, elem_id="kt-readouts")
        gr.HTML('<h3 class="kt-subheading">Two plans, one seed</h3>', apply_default_css=False)
        with gr.Row(elem_classes=["kt-filters"]):
            choices = [AUTOMATIC, SWITCHED, *PLAIN]
            first = gr.Dropdown(choices, value=REFERENCE, label="Left", filterable=False, elem_id="kt-left")
            second = gr.Dropdown(choices, value=AUTOMATIC, label="Right", filterable=False, elem_id="kt-right")
            compare = gr.Button("Compare on the clip in Create", elem_id="kt-compare")
        beside = actions("", script("readouts.js"), server_functions=[progress], elem_id="kt-comparing")
        compared = gr.HTML("", apply_default_css=False, elem_id="kt-compared")
        with gr.Column(visible=False) as pictures:
            frame = gr.Slider(1, 2, 1, step=1, label="Frame", elem_id="kt-frame")
            sides = gr.HTML("", js_on_load=script("slider.js"), apply_default_css=False, elem_id="kt-sides")
            slider = gr.ImageSlider(show_label=False, interactive=False, elem_id="kt-slider", max_height=640)
        self.state = gr.State(None)
        self.pair = pair = gr.State(0)
        shown = [panel, results, beside, compare, self.state, compared, pictures, frame, pair]
        for bar in (panel, beside):
            bar.click(told(self.act), [self.model, *self.context.form.components], shown, **HEARD)
            bar.apply(self.show, [self.model, pair], shown, **HEARD)
        self.model.change(self.show, [self.model, pair], shown, **HEARD)
        compare.click(told(self.side_by_side), [first, second, *self.context.form.components], shown, **HEARD)
        for changed in (pair.change, frame.release):
            # pictures inside the page itself: Gradio would put copies of its own into the folder of uploads
            changed(self.look, [frame], [sides, slider], postprocess=False, **QUICK)
        self.add_endpoints()
        return shown

    # -- events --

    def progress(self) -> dict[str, Any]:
        """How far the measurement is, for the browser's own timer."""
        try:
            now = self.context.service.measuring()
        except KinetileError:
            return {"over": True, "number": 0}
        percent = round(now.fraction * 100)
        return {"over": now.is_over, "number": now.number, "words": progress_words(now), "percent": percent}

    def show(self, model: str, pair: int = 0) -> list[Any]:
        """Everything as it stands. A measurement's end is heard twice, by its bar and by the page: of a comparison that
        is shown already (`pair`) the frame that somebody looks at stays."""
        try:
            state = self.context.service.measuring()
            data = self.context.service.readouts()
        except KinetileError as error:
            return [panel_html(Measuring(state="failed", error=str(error))), *[gr.skip()] * 3, None, *[gr.skip()] * 4]
        return [panel_html(state), results_html(data, model), *_beside(state), *self._compared(state, pair)]

    def act(self, model: str, event: gr.EventData, *values: Any) -> list[Any]:
        """A button of the panel. What is measured is the form's clip, where that is of this model."""
        match read_data(event).get("do"):
            case "quick" | "full" as pace:
                asked = self.context.form.read(*values)
                request = asked if asked.model == model else GenerationRequest(model=model)
                self.context.service.measure(bench_of(request, pace == "quick"))
            case "cancel":
                self.context.service.stop_measuring()
        return self._going_on()

    def side_by_side(self, first: str, second: str, *values: Any) -> list[Any]:
        """Make the form's clip under both plans."""
        request = self.context.form.read(*values)
        service = self.context.service
        plans = tuple(plan_of(name, service.preferences()) for name in (first, second))
        service.measure(comparison_of(request, plans, (first, second)))
        return self._going_on()

    def _going_on(self) -> list[Any]:
        state = self.context.service.measuring()
        return [panel_html(state), gr.skip(), *_beside(state), *[gr.skip()] * 4]

    def look(self, number: float) -> list[Any]:
        """That frame of both clips: whose is on which side, and the slider's data."""
        result = self.context.service.measuring().result or {}
        pair = frame_of(result.get("frames", ()), int(number))
        if pair is None:
            return [gr.skip(), gr.skip()]
        return [sides_html(result), [{"url": data_uri(picture)} for picture in pair]]

    def _compared(self, state: Measuring, pair: int) -> list[Any]:
        result = state.result or {}
        if state.state != "done" or "clips" not in result or state.number == pair:
            return [gr.skip()] * 4
        count = frames_in(result["frames"])
        slider = gr.update(maximum=max(2, count), value=1)
        return [compared_html(result), gr.update(visible=count > 0), slider, state.number]

    # -- endpoints --

    def add_endpoints(self) -> None:
        """Register the endpoints on the page that is being built."""

        def benchmark(request: dict[str, Any] | None = None, quick: bool = True) -> int:
            """Measure every backend at the calls of a clip's model (fields as for /generate; {} is the starter's usual
            clip), then clips. Returns the measurement's number at once."""
            return self.context.service.measure(bench_of(parse_request(request or {}, "request"), quick))

        def compare_plans(
            request: dict[str, Any], left: dict[str, Any] | None = None, right: dict[str, Any] | None = None
        ) -> int:
            """Make a clip under two plans (fields of /preferences; {} is automatic) with one seed. Returns the
            measurement's number at once."""
            sides = {"left": left, "right": right}
            plans = tuple(parse_request({"accel": wishes or {}}, side).accel for side, wishes in sides.items())
            asked = parse_request(request, "request")
            return self.context.service.measure(comparison_of(asked, plans, ("left", "right")))

        def measuring() -> dict[str, Any]:
            """How the newest measurement stands: state, how far it is, and its result once it is done."""
            return to_data(self.context.service.measuring())

        def measuring_stop() -> None:
            """Stop the measurement that is going on."""
            self.context.service.stop_measuring()

        def readouts() -> dict[str, Any]:
            """What was measured on this machine, in the form that can be shared, and what is stale, and why."""
            return self.context.service.readouts()

        add_endpoints(benchmark, compare_plans, measuring, measuring_stop, readouts)


def _beside(state: Measuring) -> list[Any]:
    """How it stands where two plans are compared, the button there, which waits while anything is measured, and what
    the page shows by that."""
    return [beside_html(state), gr.update(interactive=state.is_over), (state.number, state.state)]


def bench_of(request: GenerationRequest, quick: bool) -> MeasureAsk:
    """A benchmark of the request's model at its size. Raises UsageError."""
    plain = request.model_copy(update={"accel": AccelPreferences()})
    return MeasureAsk("bench", subject_of(plain), quick)


def comparison_of(request: GenerationRequest, plans: Sequence[AccelPreferences], names: Sequence[str]) -> MeasureAsk:
    """One clip of a request under these plans. Raises UsageError."""
    if len(plans) != 2 or plans[0] == plans[1]:
        raise UsageError("Choose two different plans to compare.")
    plain = request.model_copy(update={"accel": AccelPreferences()})
    return MeasureAsk("compare", subject_of(plain), quick=True, plans=tuple(plans), names=tuple(names))


def plan_of(name: str, switched: AccelPreferences) -> AccelPreferences:
    """The preferences behind a choice of the page. Raises UsageError."""
    if name == AUTOMATIC:
        return AccelPreferences()
    if name == SWITCHED:
        return switched
    if name in PLAIN:
        plain: dict[str, Any] = {"attention": "sdpa", "linear": "stock", "text_encoder_linear": "stock", "vae": "stock"}
        return AccelPreferences(**plain, dtype=PLAIN[name], compile="no")
    raise UsageError(f"{name[:40]!r} is no plan; reload the page.")


def frames_in(files: Sequence[str]) -> int:
    """How many frames both clips have; 0 when one is not there."""
    found = frame_of(files, 1)
    return 0 if found is None else len(np.load(files[0], mmap_mode="r"))


def frame_of(files: Sequence[str], number: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]] | None:
    """Frame `number` (from 1) of both clips, None when they are not there any more."""
    if len(files) != 2:
        return None
    try:
        clips = [np.load(path, mmap_mode="r") for path in files]
    except (OSError, ValueError):
        return None
    at = max(0, min(number, len(clips[0])) - 1)
    return np.array(clips[0][at]), np.array(clips[1][at])
