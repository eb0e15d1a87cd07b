"""GenerationRequest: the one description of a clip, for page, batch, presets, queue and the MP4's own metadata.

``None`` in a field means "the model's default"; ``app.models`` resolves it. Types are strict: a text is never read as a
number, a seed is never rounded (browsers round whole numbers above 2**53 - 1, so that is the largest one).
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from app.errors import UsageError, refuse_all
from app.paths import is_foreign, relative_name, without_home
from app.strict_json import Document, parse, printable, short
from app.validation import BROKEN_TEXT, allowed, check, version_of

MAX_SEED = 2**53 - 1
MAX_PROMPT = 100_000
"""Longest prompt kept, in characters. A model reads far less; the rest is kept and said."""
MAX_COUNT = 1000
MAX_LORAS = 16
MAX_GPUS = 64

_log = logging.getLogger("kinetile.request")


def _word(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9][a-z0-9_.:+-]{0,39}", value):
        raise PydanticCustomError(
            "kinetile_word", '{v} is not a choice; write one small word such as "auto".', {"v": short(value)}
        )
    return value


def _text(value: str) -> str:
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise PydanticCustomError("kinetile_text", BROKEN_TEXT) from None
    return value


def _file_name(value: str) -> str:
    try:
        return relative_name(value)
    except ValueError as error:
        text = "{v} {why}; use a relative path inside the preset's own folder."
        raise PydanticCustomError("kinetile_path", text, {"v": short(value), "why": str(error)}) from None


def _lora_name(value: str) -> str:
    # Another machine's absolute path says nothing here and may show a user's name: keep the file's own name only.
    try:
        return relative_name(re.split(r"[/\\:]", value)[-1] if is_foreign(value) else value)
    except ValueError as error:
        text = "{v} {why}; write the LoRA's name relative to the LoRA folder."
        raise PydanticCustomError("kinetile_path", text, {"v": short(value), "why": str(error)}) from None


def _lora(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


Word = Annotated[str, AfterValidator(_word)]
Text = Annotated[str, AfterValidator(_text)]
Model = Annotated[Text, AfterValidator(without_home)]
FileName = Annotated[str, AfterValidator(_file_name)]
LoraName = Annotated[str, AfterValidator(_lora_name)]


class Data(BaseModel):
    """Base of what is read from files: strict types, no unknown keys, no NaN, never changed in place."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class AccelPreferences(Data):
    """What the person wants of the accelerators; "auto" lets the plan decide. The plan knows the other choices.

    gpus: how many of them make one clip together.
    """

    attention: Word = "auto"
    linear: Word = "auto"
    text_encoder_linear: Word = "auto"
    vae: Word = "auto"
    dtype: Word = "auto"
    compile: Word = "auto"
    exact_steps: Word = "auto"
    cache: Word = "auto"
    offload: Word = "auto"
    tiling: Word = "auto"
    text_encoder: Word = "auto"
    gpus: int = Field(default=1, ge=1, le=MAX_GPUS)


class Lora(Data):
    """One LoRA file, its name relative to the LoRA folder with "/" (or the name of one that comes with the model), and
    how strongly it acts. ``noise``: in models with two transformers, the one it is for; "auto" goes by the file's name.
    """

    name: LoraName
    weight: float = Field(default=1.0, ge=-10, le=10)
    noise: Literal["auto", "both", "high", "low"] = "auto"


class Adjustment(Data):
    """Something the model could not take as asked: what was asked, what is used, and why."""

    field: str
    asked: int | float | str | None
    used: int | float | str | None
    reason: str


@dataclass(frozen=True)
class Assignment:
    """KEY=VALUE for a request. ``typed``: what the person wrote where that was not --set, such as "--lora a=2"."""

    text: str
    typed: str = ""

    @classmethod
    def of(cls, given: str | Assignment) -> Assignment:
        """A plain text is one of --set."""
        return cls(given) if isinstance(given, str) else given

    @property
    def key(self) -> str:
        """What it sets, dotted."""
        return self.text.partition("=")[0].strip()

    @property
    def written(self) -> str:
        """As it stands on the command line."""
        return self.typed or f"--set {printable(self.text[:60])}"


class GenerationRequest(Data):
    """A clip (or ``count`` clips) to make. Sizes in pixels, fps in frames per second."""

    kinetile: Literal[1] = 1
    model: Model = Field(default="starter", min_length=1, max_length=300, description="Which model makes the clip.")
    prompt: Text = Field(default="", max_length=MAX_PROMPT, description="What the clip shows; empty: anything.")
    negative_prompt: Text | None = Field(default=None, max_length=MAX_PROMPT, description="What it should not show.")
    width: int | None = Field(default=None, ge=1, le=16_384, description="Width in pixels.")
    height: int | None = Field(default=None, ge=1, le=16_384, description="Height in pixels.")
    frames: int | None = Field(default=None, ge=1, le=10_000, description="Number of frames.")
    fps: float | None = Field(default=None, ge=1, le=240, description="Frames per second.")
    steps: int | None = Field(default=None, ge=1, le=1000, description="Denoising steps.")
    guidance: float | None = Field(default=None, ge=0, le=100, description="How strictly the prompt is followed.")
    guidance_2: float | None = Field(
        default=None, ge=0, le=100, description="The same for a model's second transformer, in the later steps."
    )
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED, description="Start of the noise; null: random.")
    image: FileName | None = Field(default=None, description="First picture, beside the preset.")
    last_image: FileName | None = Field(default=None, description="Last picture, beside the preset.")
    scheduler: Word | None = Field(default=None, description="Noise schedule.")
    shift: float | None = Field(default=None, gt=0, le=100, description="Shift of the noise schedule.")
    loras: tuple[Annotated[Lora, BeforeValidator(_lora)], ...] = Field(default=(), max_length=MAX_LORAS, strict=False)
    count: int = Field(default=1, ge=1, le=MAX_COUNT, description="How many clips, with seeds one apart.")
    accel: AccelPreferences = AccelPreferences()

    @property
    def guidance_text(self) -> str:
        """ "4", or "4, then 3" where the model has two transformers; empty while the model's default is not known."""
        later = "" if self.guidance_2 is None else f", then {self.guidance_2:g}"
        return "" if self.guidance is None else f"{self.guidance:g}{later}"

    def with_set(self, assignments: Iterable[str | Assignment]) -> GenerationRequest:
        """A copy with each ``key=value`` applied; keys may be dotted, values are JSON where they can be.

        Raises UsageError naming each wrong assignment as it was written.
        """
        request, wrong = self.with_each(assignments)
        refuse_all(wrong)
        return request

    def with_each(self, assignments: Iterable[str | Assignment]) -> tuple[GenerationRequest, list[UsageError]]:
        """A copy with each assignment applied that can be, and what is wrong with the others."""
        request = self
        wrong: list[UsageError] = []
        for one in map(Assignment.of, assignments):
            try:
                request = request._with(one)
            except UsageError as error:
                wrong.append(error)
        return request, wrong

    def _with(self, one: Assignment) -> GenerationRequest:
        _, equals, text = one.text.partition("=")
        if not equals or not one.key:
            raise UsageError(f"{one.written}: KEY=VALUE was expected, for example --set steps=12.")
        if one.key == "seed":
            text = _seed(text.strip(), one.written)
        tree = self.model_dump(mode="json")
        _assign(tree, one.key.split("."), text, one.written)
        return parse_request(tree, one.written)

    def expand(self) -> tuple[GenerationRequest, ...]:
        """One request per clip: ``count`` 1 each, seeds resolved as seed, seed + 1, …

        A null seed becomes a random one. Raises UsageError if the last seed would be too large.
        """
        seed = self.seed
        if seed is None:
            seed = secrets.randbelow(MAX_SEED + 2 - self.count)
        if seed + self.count - 1 > MAX_SEED:
            raise UsageError(
                f"seed {seed} with count {self.count} goes past {MAX_SEED:,}, the largest seed; use a smaller seed."
            )
        return tuple(self.model_copy(update={"count": 1, "seed": seed + i}) for i in range(self.count))


def parse_request(data: str | bytes | Mapping[str, Any], source: str) -> GenerationRequest:
    """A request from JSON text or a mapping; ``source`` is how errors name it.

    Keys of a newer version are left out and logged. Raises UsageError with line and column or the dotted path.
    """
    document = Document(source, data) if isinstance(data, Mapping) else parse(data, source)
    request, warnings = request_from(document)
    for warning in warnings:
        _log.warning("%s", warning)
    return request


def request_from(document: Document, base: tuple[str, ...] = ()) -> tuple[GenerationRequest, tuple[str, ...]]:
    """The request at ``base`` of a document, and warnings about keys of a newer version that have no effect.

    Raises UsageError as parse_request does.
    """
    newer = version_of(document, (), base) > 1
    if newer:
        document = replace(document, value=_as_version_1(document.value, base))
    return check(GenerationRequest, document, base, newer)


def _as_version_1(value: Any, base: tuple[str, ...]) -> Any:
    if not isinstance(value, Mapping):
        return value
    if base:
        return {**value, base[0]: _as_version_1(value.get(base[0]), base[1:])}
    return {**value, "kinetile": 1} if "kinetile" in value else value


def _seed(text: str, source: str) -> str:
    """A seed as the request has it: `random` is none of its own. Raises UsageError for what is no seed."""
    if text == "random":
        return "null"
    if text != "null" and not (re.fullmatch("[0-9]{1,16}", text) and int(text) <= MAX_SEED):
        known = f"a whole number from 0 to {MAX_SEED:,}, or random"
        raise UsageError(f"{source}, seed: {short(text)} is not possible; it must be {known}.")
    return text


def _assign(tree: Any, keys: list[str], text: str, source: str) -> None:
    """Put the value into the dumped request; the parse that follows refuses keys and values that don't fit."""
    where = tree
    for key in keys[:-1]:
        if isinstance(where, dict) and isinstance(where.get(key), (dict, list)):
            where = where[key]
        elif isinstance(where, list) and key.isascii() and key.isdigit() and int(key[:6]) < len(where):
            where = where[int(key)]
        else:
            raise UsageError(f"{source}: {key!r} holds no further keys.")
    last = keys[-1]
    if isinstance(where, list):
        if not (last.isascii() and last.isdigit() and int(last[:6]) < len(where)):
            raise UsageError(f"{source}: {last!r} is not an entry; there are {len(where)}, counted from 0.")
        where[int(last)] = _value(text, where[int(last)])
    else:
        where[last] = _value(text, "" if last in _TEXT_KEYS else None)


_TEXT_KEYS = {
    name
    for model in (GenerationRequest, AccelPreferences, Lora)
    for name, info in model.model_fields.items()
    if allowed(info).startswith("text")
}


def _value(text: str, example: Any) -> Any:
    """JSON if it is JSON, else the text itself. A key that holds text takes 2024 and true as text, null as null."""
    try:
        value = parse(text, "").value
    except UsageError:
        return text
    return text if isinstance(example, str) and not isinstance(value, (str, type(None))) else value


def canonical(request: GenerationRequest) -> dict[str, Any]:
    """The request as plain data: version and model, and whatever else is not left at its default."""
    return {"kinetile": 1, "model": request.model, **request.model_dump(mode="json", exclude_defaults=True)}


__all__ = [
    "MAX_COUNT",
    "MAX_LORAS",
    "MAX_PROMPT",
    "MAX_SEED",
    "AccelPreferences",
    "Adjustment",
    "Assignment",
    "GenerationRequest",
    "Lora",
    "canonical",
    "parse_request",
    "request_from",
]
