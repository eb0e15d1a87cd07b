"""The words that the starter knows, to look through on Create: a click adds one to the prompt.

The groups are those of the world that the starter was trained on; its tokenizer's list decides which of their words
these weights know, and what is in no group stands last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import gradio as gr

from app.models.starter import STARTER, WEIGHTS
from app.starter import phrases
from app.ui.context import escaped
from app.ui.rows import script

VOCABULARY = WEIGHTS / "tokenizer" / "vocabulary.txt"


def words_field(model: str) -> Any:
    """The folded list, shown while the starter is the chosen model."""
    return gr.HTML(
        words_html(groups()),
        js_on_load=script("words.js"),
        apply_default_css=False,
        visible=is_shown(model),
        elem_id="kt-words",
    )


def is_shown(model: str) -> bool:
    """Whether the list is about that model."""
    return model == STARTER.name


@cache
def groups() -> Mapping[str, tuple[str, ...]]:
    """Words and phrases by title, each only if all its words are known; every known word is in one of them."""
    known = VOCABULARY.read_text(encoding="utf-8").split()
    own = phrases.OWN_VERB.values()
    listed: Mapping[str, Iterable[str]] = {
        "Objects": _flat(phrases.SHAPE_WORDS),
        "Colours": _flat(phrases.COLOR_WORDS),
        "Sizes": _flat(phrases.SIZE_WORDS),
        "Motions": [*own, *(phrase.replace("{go}", "moves") for phrase in _flat(phrases.MOTION_PHRASES))],
        "Backgrounds": (phrase for phrase in _flat(phrases.BACKGROUND_PHRASES) if "{" not in phrase),
        "Camera": _flat(phrases.CAMERA_PHRASES),
        "Looks": phrases.ADJECTIVES,
        "Manner": phrases.ADVERBS,
    }
    found = {
        title: tuple(dict.fromkeys(phrase for phrase in told if set(words_in(phrase)) <= set(known)))
        for title, told in listed.items()
    }
    grouped = {word for told in found.values() for phrase in told for word in words_in(phrase)}
    return {**found, "Other words": tuple(word for word in known if word not in grouped)}


def words_in(phrase: str) -> list[str]:
    """The single words of a phrase."""
    return re.findall(r"[a-z]+", phrase)


def words_html(found: Mapping[str, tuple[str, ...]]) -> str:
    """The groups, folded, with a button for each word or phrase."""
    inside = "".join(
        f'<details><summary>{escaped(title)} <span class="kt-quiet">{len(told)}</span></summary>'
        f'<div class="kw-words">{"".join(_button(phrase) for phrase in told)}</div></details>'
        for title, told in found.items()
        if told
    )
    return f'<details class="kw-all"><summary>Words the starter knows</summary>{inside}</details>'


def _button(phrase: str) -> str:
    label = escaped(f"Add to the prompt: {phrase}")
    return f'<button type="button" data-word="{escaped(phrase)}" aria-label="{label}">{escaped(phrase)}</button>'


def _flat(table: Mapping[str, Iterable[str]]) -> list[str]:
    return [word for told in table.values() for word in told]
