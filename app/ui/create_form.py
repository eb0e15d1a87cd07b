"""The fields of Create, as they stand one below the other."""

from __future__ import annotations

from typing import Any

import gradio as gr

from app.request import GenerationRequest
from app.ui import brought
from app.ui.carried import carried_field
from app.ui.context import Context
from app.ui.form import FIXED, NAMES, RANDOM, REUSE, values_of
from app.ui.mistakes import mistakes_field, place_for
from app.ui.model_field import ModelField
from app.ui.rows import actions
from app.ui.sizes import ASPECTS, CUSTOM, QUALITIES, choice_of
from app.ui.starter_words import words_field


def build(context: Context) -> dict[str, Any]:
    """The fields; those of the request go into `context.form`, all of them are returned by name."""
    defaults = values_of(GenerationRequest(model=context.families[0].name))
    field = ModelField(context)
    made: dict[str, Any] = {"source": gr.HTML("", elem_id="kt-source", apply_default_css=False)}
    field.build(defaults["model"])
    made |= {"model": field.box, "model_field": field}
    made |= _words(defaults)
    made |= brought.picture_fields(context, defaults)
    made |= _size(context, defaults)
    made |= _course(defaults)
    made |= _seeds()
    made |= _more(context, defaults)
    made["carried"] = carried_field(defaults["carried"])
    place_for("carried")
    made |= _go()
    made["mistakes"] = mistakes_field()
    made["queued"] = gr.State(())
    context.form.by_name, context.form.source = {name: made[name] for name in NAMES}, made["source"]
    return made


def _words(defaults: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    made["prompt"] = gr.Textbox(
        label="Prompt", lines=3, max_lines=8, placeholder="a yellow rocket flies over a green hill", elem_id="kt-prompt"
    )
    made["tokens"] = gr.HTML("", elem_id="kt-tokens", apply_default_css=False)
    place_for("prompt")
    made["words"] = words_field(defaults["model"])
    made["negative_prompt"] = gr.Textbox(label="Negative prompt", lines=1, max_lines=4, elem_id="kt-negative-prompt")
    place_for("negative_prompt")
    return made


def _size(context: Context, defaults: dict[str, Any]) -> dict[str, Any]:
    aspect, quality = choice_of(context.families[0], defaults["width"], defaults["height"])
    made: dict[str, Any] = {}
    with gr.Row(elem_classes=["kt-fields", "kt-size"]):
        made["aspect"] = gr.Dropdown([*ASPECTS, CUSTOM], value=aspect, label="Aspect", min_width=80, filterable=False)
        made["quality"] = gr.Dropdown(
            [*QUALITIES, CUSTOM], value=quality, label="Quality", min_width=80, filterable=False
        )
        made["width"] = gr.Number(defaults["width"], label="Width", min_width=70, elem_id="kt-width")
        made["height"] = gr.Number(defaults["height"], label="Height", min_width=70, elem_id="kt-height")
    place_for("width", "height")
    return made


def _course(defaults: dict[str, Any]) -> dict[str, Any]:
    """How long the clip is, and how it is denoised."""
    made: dict[str, Any] = {}
    with gr.Row(elem_classes=["kt-fields"]):
        made["frames"] = gr.Number(defaults["frames"], label="Frames", min_width=70, elem_id="kt-frames")
        made["fps"] = gr.Number(defaults["fps"], label="FPS", min_width=70, elem_id="kt-fps")
        made["steps"] = gr.Number(defaults["steps"], label="Steps", min_width=70, elem_id="kt-steps")
        made["guidance"] = gr.Number(
            defaults["guidance"], label="Guidance", step=0.5, min_width=70, elem_id="kt-guidance"
        )
    place_for("frames", "fps", "steps", "guidance")
    made["length"] = gr.HTML("", elem_id="kt-length", apply_default_css=False)
    return made


def _seeds() -> dict[str, Any]:
    made: dict[str, Any] = {}
    with gr.Row(elem_classes=["kt-fields", "kt-seeds"]):
        made["seed_mode"] = gr.Radio([RANDOM, FIXED, REUSE], value=RANDOM, label="Seed", elem_classes=["kt-seed-mode"])
        made["seed"] = gr.Textbox(
            "", label="Seed number", max_lines=1, max_length=40, elem_classes=["kt-seed"], elem_id="kt-seed"
        )
        made["count"] = gr.Number(1, label="Clips", elem_classes=["kt-count"], elem_id="kt-count")
    place_for("seed", "count")
    return made


def _more(context: Context, defaults: dict[str, Any]) -> dict[str, Any]:
    """What is seldom changed, folded away."""
    made: dict[str, Any] = {}
    with gr.Accordion("More", open=False, elem_classes=["kt-more"]):
        with gr.Row(elem_classes=["kt-fields"]):
            made["scheduler"] = gr.Dropdown(
                list(context.families[0].schedulers),
                value=defaults["scheduler"],
                label="Scheduler",
                min_width=100,
                allow_custom_value=True,
                elem_id="kt-scheduler",
            )
            made["shift"] = gr.Number(defaults["shift"], label="Shift", step=0.5, min_width=100, elem_id="kt-shift")
        with gr.Row(elem_classes=["kt-fields"]):
            made["gpus"] = gr.Number(
                defaults["gpus"], label="GPUs together", min_width=100, elem_id="kt-gpus", elem_classes=["kt-gpus"]
            )
            made["guidance_2"] = gr.Number(
                defaults["guidance_2"],
                label="Guidance, later steps",
                step=0.5,
                min_width=100,
                visible=False,
                elem_id="kt-guidance-2",
            )
        made["loras"] = brought.loras_field(context, defaults)
    place_for("scheduler", "shift", "gpus", "guidance_2", "loras")  # seen while the fields are folded away
    return made


def _go() -> dict[str, Any]:
    made: dict[str, Any] = {}
    with gr.Column(elem_classes=["kt-go"]):
        made["estimate"] = gr.HTML("", elem_id="kt-estimate", apply_default_css=False)
        made["generate"] = gr.Button("Generate", variant="primary", elem_id="kt-generate")
        made["notice"] = actions(elem_id="kt-notice")
    return made
