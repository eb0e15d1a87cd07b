"""Create: the request on the left, the stage with preview and player on the right.

The request is read from the form when Generate is pressed; what runs afterwards never looks at the page again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr

from app.errors import KinetileError, UsageError, on_page
from app.models import all_families, family_for, sources
from app.models.base import Family, notes_of
from app.presets import encode_code
from app.request import parse_request
from app.ui import brought, create_endpoints, create_form
from app.ui.carried import of_the_switches, taken_over, whose
from app.ui.context import (
    PRIVATE,
    QUICK,
    Context,
    TabParts,
    bytes_text,
    escaped,
    plural,
    sentences_html,
    time_text,
    told,
)
from app.ui.form import FIXED, NAMES, PICTURES, RANDOM, REUSE, values_of
from app.ui.live import Live
from app.ui.many import MANY, question_html
from app.ui.mistakes import as_value, before_queueing, look, sentence
from app.ui.queue_view import name_of
from app.ui.rows import HEARD, read_data, read_number
from app.ui.saved import restored
from app.ui.sizes import CUSTOM, choice_of, size_of
from app.ui.starter_words import is_shown

ASSETS = Path(__file__).parent / "assets"
STORE = "kinetile-form"
"""Where the browser keeps what was typed."""

_SAVE = f"""(...values) => {{
  if (!(window.kinetile || {{}}).restored) return values[values.length - 1];
  return Object.fromEntries({list(NAMES)}.map((name, i) => [name, values[i]]));
}}"""
_ASKED = "(...values) => { window.kinetile.asked = JSON.stringify(values); return values; }"
_CLEARED = """(...values) => {
  const notice = values.pop();
  return JSON.stringify(values) === (window.kinetile || {}).asked ? notice : '';
}"""
_RESTORED = "() => { window.kinetile = Object.assign(window.kinetile || {}, {restored: true}); }"
_SEED = f"""(mode, seed) => {{
  if (mode === '{RANDOM}') return '';
  return mode === '{REUSE}' && (window.kinetile || {{}}).seed ? window.kinetile.seed : seed;
}}"""


_SEED_TYPED = f"""(seed) => {{
  const way = (mode) => document.querySelector(`.kt-seeds input[value=${{mode}}]`);
  if (seed.trim() && way('{RANDOM}').checked) way('{FIXED}').click();
}}"""
"""A number that is typed or pasted is meant."""


def build(context: Context, live: Live) -> TabParts:
    """The tab's components and events, inside the `gr.Tab` that is open. Sets the context's form and version."""
    with gr.Row(elem_classes=["kt-create"], equal_height=False):
        with gr.Column(elem_classes=["kt-request"], scale=0, min_width=300):
            parts = create_form.build(context)
        with gr.Column(elem_classes=["kt-right"], scale=1, min_width=300):
            stage = _stage(context, live)
    context.version = stage
    store = gr.BrowserState(None, storage_key=STORE, secret=STORE)
    _connect(context, parts, stage, store)
    create_endpoints.add(context)
    brought.add_endpoints_for(context)
    return TabParts()


def _stage(context: Context, live: Live) -> Any:
    """Preview, player, progress and recent clips."""

    def poll(seen: dict[str, Any]) -> dict[str, Any]:
        return live.poll(seen if isinstance(seen, dict) else {})

    def cancel(what: dict[str, Any]) -> dict[str, Any]:
        try:
            context.service.cancel([_number(what)])
        except KinetileError as error:
            return {"error": on_page(error)}
        return {}

    def share(what: dict[str, Any]) -> dict[str, Any]:
        try:
            return {"code": encode_code(context.service.get([_number(what)])[0].spec.request)}
        except KinetileError as error:
            return {"error": on_page(error)}

    return gr.HTML(
        "",
        html_template=(ASSETS / "stage.html").read_text(encoding="utf-8"),
        js_on_load=(ASSETS / "stage.js").read_text(encoding="utf-8"),
        server_functions=[poll, cancel, share],
        apply_default_css=False,
        elem_id="kt-stage",
    )


def _connect(context: Context, parts: dict[str, Any], stage: Any, store: Any) -> None:
    """What happens when something is changed or pressed."""
    fields = context.form.components
    changes = [field.change for field in fields]
    advised = [parts[name] for name in ("tokens", "length", "aspect", "quality", "mistakes")]

    def advise(*values: Any) -> list[Any]:
        return _advice(context, values)

    def form_estimate(*values: Any) -> Any:
        return _estimate(context, values)

    def submit(*values: Any) -> Any:
        return _submit(context, values)

    def agree(event: gr.EventData, *values: Any) -> Any:
        return _submit(context, values, agreed=read_number(read_data(event), "count"))

    def still(queued: Sequence[int], notice: str) -> Any:
        return _still(context, queued) if queued and notice else gr.skip()

    page = context.page
    estimating = {**PRIVATE, "trigger_mode": "multiple", "concurrency_limit": 4}
    # The answer to what was typed last must be the last to arrive. Gradio does that for one event per trigger only: two
    # with always_last on the same trigger wake each other for ever. So this is the one, and the estimate follows it.
    fetched = parts["model_field"].seen.change  # what a model is may be known only now
    gr.on([page.load, fetched, *changes], advise, fields, advised, **QUICK, trigger_mode="always_last").then(
        form_estimate, fields, [parts["estimate"]], **estimating
    )
    stage.change(form_estimate, fields, [parts["estimate"]], **estimating)
    stage.change(still, [parts["queued"], parts["notice"]], [parts["notice"]], **QUICK)
    gr.on(changes, None, [*fields, store], [store], js=_SAVE, **PRIVATE)

    # It spoke of what stood there before. What only looks like a change, on a busy machine long after, leaves it.
    gr.on(changes, None, [*fields, parts["notice"]], [parts["notice"]], js=_CLEARED, **PRIVATE)

    size = [parts["width"], parts["height"]]
    by_choice = [parts["model"], parts["aspect"], parts["quality"]]
    gr.on([parts["aspect"].input, parts["quality"].input], told(_sized), by_choice, size, **HEARD)
    parts["model"].input(told(_defaults_of), [parts["model"], *fields], fields, **HEARD)
    by_model = [parts[name] for name in ("scheduler", "shift", "guidance_2", "image", "last_image", "loras", "words")]
    brings = [parts[name] for name in ("model", "image", "last_image", "loras")]
    gr.on([parts["model"].change, fetched], told(_possible), brings, by_model, **HEARD)
    parts["model_field"].connect()
    parts["seed_mode"].input(None, [parts["seed_mode"], parts["seed"]], [parts["seed"]], js=_SEED, **PRIVATE)
    parts["seed"].change(None, [parts["seed"]], None, js=_SEED_TYPED, **PRIVATE)  # `input` is not told of a paste

    answered = [parts[name] for name in ("notice", "mistakes", "queued")]
    for pressed, queue in ((parts["generate"].click, submit), (parts["notice"].click, agree)):
        pressed(queue, fields, answered, js=_ASKED, **QUICK).then(
            None, [parts["notice"]], None, js="(notice) => window.kinetile && window.kinetile.follow(notice)", **PRIVATE
        )

    def reuse(event: gr.EventData) -> list[Any]:
        (job,) = context.service.get([_number(event._data)])
        filled = context.form.fill(taken_over(job.spec, context.service.preferences()))
        return [*filled, whose(name_of(job), job.ended)]

    stage.select(told(reuse), None, [*fields, parts["source"]], **HEARD)
    # from then on they are the person's own
    gr.on([parts["generate"].click, parts["model"].input], None, None, [parts["source"]], js="() => ''", **PRIVATE)

    page.load(restored, [store], fields, **QUICK).then(None, None, None, js=_RESTORED, **PRIVATE)


def _number(data: Any) -> int:
    """The job that the browser means. Raises UsageError."""
    try:
        return int(data["job"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UsageError("That clip is not known; reload the page.") from None


def _sized(model: str, aspect: str, quality: str) -> list[Any]:
    """Width and height for aspect and quality; "Custom" leaves them as they are."""
    family = _known(model)
    if family is None or (aspect == CUSTOM and quality == CUSTOM):
        return [gr.skip(), gr.skip()]
    own = choice_of(family, family.defaults.width, family.defaults.height)
    aspect = own[0] if aspect == CUSTOM else aspect
    return list(size_of(family, aspect, "Standard" if quality == CUSTOM else quality))


def _defaults_of(model: str, *values: Any) -> list[Any]:
    """Another model: its own sizes and steps; the words, the seed and pictures that it can use stay. What is no model
    changes nothing.
    """
    family = _known(model)
    if family is None:
        return [gr.skip()] * len(NAMES)
    kept = dict(zip(NAMES, values, strict=True))
    fresh = values_of(parse_request({"model": model}, "Create"))
    words = ("prompt", "negative_prompt", "seed_mode", "seed", "count", "gpus")
    if kept["negative_prompt"] in {family.defaults.negative_prompt for family in all_families()}:
        kept["negative_prompt"] = fresh["negative_prompt"]  # nobody's own words
    stays = {*words, *(name for name in PICTURES if name in family.takes)}
    return [kept[name] if name in stays else fresh[name] for name in NAMES]


def _possible(model: str, *brought_along: str) -> list[Any]:
    """What can be chosen of scheduler, shift and second guidance, which of pictures and LoRAs can be given, and whether
    the words are shown that only the starter is bound to.
    """
    family = _known(model)
    if family is None:
        return [gr.skip()] * 7
    return [
        gr.update(choices=list(family.schedulers)),
        gr.update(visible="shift" in family.takes),
        gr.update(visible=family.defaults.guidance_2 is not None),
        *brought.possible(family, *brought_along),
        gr.update(visible=is_shown(family.name)),
    ]


def _known(model: str) -> Family | None:
    """The family of what the box of the models holds; None for what is no model, which its field says."""
    try:
        return family_for(model)
    except UsageError:
        return None


def _advice(context: Context, values: tuple[Any, ...]) -> list[Any]:
    """What the model makes of the form: the prompt's tokens, the length and what is adjusted; aspect and quality; and
    what is wrong.
    """
    named = dict(zip(NAMES, values, strict=True))
    family = _known(named["model"])
    choice = choice_of(family, named["width"], named["height"]) if family else (gr.skip(), gr.skip())
    made, wrong = look(context, values)
    if made is None or wrong:
        about_prompt = "" if str(named["prompt"] or "").strip() else gr.skip()
        return [about_prompt, "", *choice, as_value(wrong)]
    request, use = made.request, made.prompt_tokens
    # the model's own end mark is no token of a person who wrote nothing
    tokens = f"{use.total:,} of {use.limit:,} tokens" if use is not None and request.prompt.strip() else ""
    notes = "".join(f'<p class="kt-hint">{escaped(note)}</p>' for note in notes_of(request))
    told = [*((item.field, item.reason) for item in made.adjustments), *made.notes.items()]
    of_prompt = [reason for field, reason in told if field == "prompt"]
    others = [reason for field, reason in told if field != "prompt"]
    frames, fps = int(request.frames or 0), float(request.fps or 1)
    length = f"{request.width}×{request.height} · {frames} frames = {frames / fps:.1f} s at {fps:g} fps"
    return [
        f'<p class="kt-hint kt-right-hint">{escaped(tokens)}</p>{notes}{sentences_html(of_prompt)}',
        f'<p class="kt-hint">{escaped(length)}</p>{sentences_html(others)}',
        *choice,
        as_value({}),
    ]


def _estimate(context: Context, values: tuple[Any, ...]) -> str:
    """Minutes, memory, and whether what Generate would queue fits, before anything is pressed."""
    made, wrong = look(context, values)
    if made is None or wrong:
        return ""
    request, switches = made.request, ""
    if sources.why_not_here(family_for(request.model)):
        return ""  # which is told at the model
    try:
        if asked := of_the_switches(request, context.service.preferences()):
            switches = f'<p class="kt-hint">{escaped(asked)}</p>'
        found = context.service.estimate(context.wished(request))
    except KinetileError as error:
        told = "" if isinstance(error, UsageError) else f'<p class="kt-hint">{escaped(on_page(error))}</p>'
        return told + switches
    free = f" of {bytes_text(found.memory_free)} free" if found.memory_free else ""
    words = [time_text(found, int(request.count)), bytes_text(found.memory) + free]
    if found.fits:
        return f'<p class="kt-hint">{escaped(" · ".join([*words, "fits"]))}</p>{switches}'
    return f'<p class="kt-hint">{escaped(" · ".join(words))}</p>{switches}{sentences_html(found.blocked, "bad")}'


def _submit(context: Context, values: tuple[Any, ...], agreed: int = 0) -> tuple[str, str, tuple[int, ...]]:
    """Queue what the form asks for: the notice, what is wrong where, and the jobs. Nothing typed is lost. agreed: as
    many clips as the person was asked about and said yes to.
    """
    wrong = before_queueing(context, values)
    if wrong:
        return _refused(sentence(wrong)), as_value(wrong, asked=True), ()
    try:
        specs = context.specs(context.form.read(*values))
        if len(specs) > max(MANY, agreed):
            return question_html(context, specs), as_value({}), ()
        jobs = context.service.submit(specs)
    except KinetileError as error:
        return _refused(on_page(error)), as_value({}), ()
    ids = tuple(job.id for job in jobs) if len(jobs) > 1 else ()
    return _queued(len(ids)), as_value({}), ids


def _refused(words: str) -> str:
    return f'<p class="kt-problem" role="alert">{escaped(words)}</p>'


def _queued(count: int) -> str:
    verb = "is" if count == 1 else "are"
    return f'<p class="kt-hint">{plural(count, "clip")} {verb} in the queue.</p>' if count else ""


def _still(context: Context, queued: Sequence[int]) -> str:
    """How many of the clips that were asked for last are not made yet."""
    now = context.service.snapshot()
    there = {job.id for job in (*now.waiting, *([now.running] if now.running else []))}
    return _queued(len(there & set(queued)))
