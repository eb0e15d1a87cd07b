"""What a model family is: facts and limits as data, and the one rule for requests that don't fit them.

The rule: where a nearest possible value exists (frames, sizes, steps a model can't go beyond, a prompt longer than
its tokens) the request is adjusted, and the adjustment is said and stored; ``strict`` refuses with the same sentence.
Where none exists (a scheduler, a picture or a LoRA that the model can't use) the request is refused.

A new model is one new file here with a ``FAMILIES`` tuple and one line in ``app/models/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from accel.advice import nearest
from app.errors import UsageError, refuse_all
from app.models.geometry import multiples_in
from app.models.tokens import TokenUse, count_tokens
from app.request import Adjustment, GenerationRequest

_ADVICE = " Change what was asked, or leave --strict out."

Input = Literal["negative_prompt", "image", "last_image", "video", "lora", "shift"]
GuidanceKind = Literal["cfg", "embedded", "guider"]
"""How a model takes its guidance: a second, unasked forward mixed in; a number that it was taught to read, at the cost
of one forward; or through the guider that its pipeline holds (diffusers' modular guiders)."""

_COUNTED = "counted from the published configurations with diffusers 0.42.1, November 2026"

WORDS: Mapping[Input, str] = {
    "image": "a picture",
    "last_image": "a last picture",
    "lora": "LoRAs",
    "negative_prompt": "a negative prompt",
}
"""Inputs as the object of a sentence."""


@dataclass(frozen=True)
class Grid:
    """The whole numbers ``step * k + offset`` from ``least`` to ``most``."""

    step: int
    offset: int
    least: int
    most: int

    def __post_init__(self) -> None:
        if not (self.holds(self.least) and self.holds(self.most) and self.least <= self.most):
            raise ValueError(f"the ends of {self} are not on its grid")

    def holds(self, value: int) -> bool:
        """Whether the value is on the grid and inside its limits."""
        return self.least <= value <= self.most and (value - self.offset) % self.step == 0

    def lower(self, value: int) -> int:
        """The nearest grid value that is not above ``value``, but at least ``least``."""
        value = min(max(value, self.least), self.most)
        return value - (value - self.offset) % self.step

    def nearest(self, value: int) -> int:
        """The nearest grid value; of two equally near ones the larger."""
        value = min(max(value, self.least), self.most)
        low = self.lower(value)
        return min(low + self.step, self.most) if value - low >= self.step / 2 and value > low else low

    def every(self, step: int) -> Grid:
        """The grid inside the same limits for a model that goes by ``step``; a coarser one that fits it stays."""
        if self.step % step == 0:
            return self
        least = self.least + (self.offset - self.least) % step
        return Grid(step, self.offset, least, max(least, self.most - (self.most - self.offset) % step))


@dataclass(frozen=True)
class Defaults:
    """What a request's ``None`` means for this model. Sizes in pixels, fps in frames per second.

    ``shift`` None: the model works its shift out by itself. ``guidance_2``: for the second transformer (the later,
    less noisy steps) of models that have two; None for all others.
    """

    width: int
    height: int
    frames: int
    fps: float
    steps: int
    guidance: float
    scheduler: str
    shift: float | None
    negative_prompt: str = ""
    guidance_2: float | None = None


@dataclass(frozen=True)
class Rules:
    """What the model can make."""

    frames: Grid
    width: Grid
    height: Grid
    max_steps: int = 1000
    min_steps: int = 1
    """More than 1 where a pipeline's schedule divides by the steps before the last."""

    def fitting(self, folder: Path) -> Rules:
        """The rules for the weights in ``folder``, whose own configuration has the last word on the multiples."""
        found = multiples_in(folder)
        if found is None:
            return self
        if found.only is not None:
            width, height = (
                Grid(step, 0, side, side) for step, side in zip((found.width, found.height), found.only, strict=True)
            )
            return replace(self, frames=self.frames.every(found.frames), width=width, height=height)
        width, height = self.width.every(found.width), self.height.every(found.height)
        return replace(self, frames=self.frames.every(found.frames), width=width, height=height)


@dataclass(frozen=True)
class Figure:
    """A number of bytes with where it came from and when; source "unverified" where nobody has looked yet."""

    value: int | None
    source: str = "unverified"


def counted(*parameters: int) -> Mapping[str, Figure]:
    """The memory that so many parameters take together, by the dtype they are held in."""
    total = sum(parameters)
    return {dtype: Figure(total * size, _COUNTED) for dtype, size in (("bfloat16", 2), ("float32", 4))}


@dataclass(frozen=True)
class Normalised:
    """A request that its model can take as it stands. Only seed, image, last_image may still be None, and shift and
    guidance_2 where the model's defaults have none.

    ``request.prompt`` is always the full prompt; ``prompt_tokens`` says how much of it the model reads (None where the
    model's tokenizer is not on this machine yet). ``notes``, by field: sentences on what is taken as asked, and yet.
    """

    request: GenerationRequest
    adjustments: tuple[Adjustment, ...] = ()
    prompt_tokens: TokenUse | None = None
    notes: Mapping[str, str] = field(default_factory=dict, hash=False)


def notes_of(request: GenerationRequest) -> tuple[str, ...]:
    """What is made as asked and is yet to be said beforehand, as sentences; nothing is refused or stored for it."""
    if request.prompt.strip():
        return ()
    return ("The prompt is empty, so the clip is made unconditionally, without guidance.",)


@dataclass(frozen=True)
class Family:
    """One model that clips can be made with."""

    name: str
    """What ``model`` says in a request."""
    title: str
    """As a heading: "Starter"."""
    summary: str
    licence: str
    pipeline: str
    """Class name in diffusers."""
    defaults: Defaults
    rules: Rules
    schedulers: tuple[str, ...]
    takes: frozenset[Input]
    token_limit: int
    """Tokens of the prompt that the model reads, the end token included; ``max_sequence_length`` of the pipeline."""
    folder: Path | None = None
    """Where the weights lie on this machine, in diffusers layout; None: they come from ``repo``."""
    file: Path | None = None
    """The transformer's weights in one safetensors or GGUF file, in the place of those in ``folder``."""
    repos: tuple[str, ...] = ()
    """Hugging Face repositories in diffusers layout, "owner/name"; the first is the one to fetch."""
    download: Figure = Figure(None)
    """Bytes to download."""
    memory: Mapping[str, Figure] = field(default_factory=dict, hash=False)
    """Bytes of all weights together by the dtype they are held in."""
    aliases: tuple[str, ...] = ()
    loras: Mapping[str, str] = field(default_factory=dict, hash=False)
    """LoRAs that come with the model: the name that a request says, and the file inside its folder."""
    called: str = ""
    """As the first words of a sentence: "The starter"; empty: the title."""
    knows: tuple[str, ...] = ()
    """All that it can show, where that is little enough to be told to a person whose word it does not know."""
    image_pipeline: str = ""
    """Class name in diffusers when a picture is given; empty: ``pipeline`` in any case."""
    image_settings: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Settings of ``image_pipeline`` that the model's index, written for ``pipeline``, has otherwise."""
    vae_class: str = "AutoencoderKLWan"
    """Class name in diffusers, which says what its latents look like."""
    needs: frozenset[Input] = frozenset()
    """Inputs without which the model makes nothing."""
    guidance_kind: GuidanceKind = "cfg"
    frames_keyword: str = "num_frames"
    """What the pipeline calls the number of frames."""
    arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """Further arguments of the pipeline that are the same for every clip."""
    timesteps: tuple[float, ...] = ()
    """The steps that a distilled model was made for, from 1000 to 0; its number of steps is fixed then."""
    callback: bool = True
    """Whether the pipeline tells after each step; if not, its scheduler is watched instead."""

    @property
    def repo(self) -> str | None:
        """The Hugging Face repository to fetch, None for a model that has none."""
        return self.repos[0] if self.repos else None

    def pipeline_for(self, request: GenerationRequest) -> str:
        """Class name in diffusers of the pipeline that makes this clip."""
        return self.image_pipeline if request.image and self.image_pipeline else self.pipeline

    def normalise(self, request: GenerationRequest, strict: bool = False) -> Normalised:
        """The request with every default filled in and every value possible, and what was changed and why.

        Raises UsageError for what has no nearest possible value, and with ``strict`` for every adjustment.
        """
        refuse_all([UsageError(sentence) for sentence in self._impossible(request)])
        asked = self._with_defaults(request)
        changed: list[Adjustment] = []
        values: dict[str, int] = {}
        rules = self.rules
        for name, grid, lower in (
            ("width", rules.width, False),
            ("height", rules.height, False),
            ("frames", rules.frames, True),
        ):
            value = getattr(asked, name)
            used = grid.lower(value) if lower else grid.nearest(value)
            if used != value:
                values[name] = used
                changed.append(
                    Adjustment(field=name, asked=value, used=used, reason=self._grid_reason(name, grid, value, used))
                )
        steps = int(asked.steps or 0)
        used, limit = self._possible_steps(steps)
        if used != steps:
            values["steps"] = used
            reason = f"{self._who} {limit} {used} steps, so {steps} become{'s' * (steps == 1)} {used}."
            changed.append(Adjustment(field="steps", asked=steps, used=used, reason=reason))
        notes: dict[str, str] = {}
        tokens = self._tokens("prompt", asked.prompt, changed, notes)
        self._tokens("negative_prompt", self._own_words(request), changed, notes)
        changed += self._unheeded(request, asked)
        if strict and changed:
            raise UsageError("Refused because of --strict: " + " ".join(item.reason for item in changed) + _ADVICE)
        return Normalised(asked.model_copy(update=values), tuple(changed), tokens, notes)

    def _possible_steps(self, steps: int) -> tuple[int, str]:
        """The nearest possible number of steps, and what the limit is, before that number."""
        if self.timesteps:
            return len(self.timesteps), "was distilled to"
        if steps < self.rules.min_steps:
            return self.rules.min_steps, "takes at least"
        return min(steps, self.rules.max_steps), "takes at most"

    def _unheeded(self, request: GenerationRequest, asked: GenerationRequest) -> list[Adjustment]:
        """What was said for the second, unasked forward of a step, where guidance has none."""
        guidance = float(asked.guidance or 0)
        guided = guidance > 1 or (self.guidance_kind == "guider" and guidance != 1)  # a guider mixes below 1 too
        if self.guidance_kind == "embedded" or (asked.prompt.strip() and guided):
            return []
        where = f"at a guidance of {guidance:g}, only above 1" if asked.prompt.strip() else "without a prompt"
        given: list[tuple[str, str, str | float]] = []
        if words := self._own_words(request).strip():
            given.append(("negative_prompt", "negative prompt", words[:80]))
        if request.guidance_2 is not None and request.guidance_2 != self.defaults.guidance_2:
            given.append(("guidance_2", "second guidance", request.guidance_2))
        return [
            Adjustment(field=name, asked=value, used=None, reason=f"{self._who} heeds no {words} {where}.")
            for name, words, value in given
        ]

    def with_folder(self, folder: Path) -> Family:
        """The same family with its weights in another folder, and the sizes that those can make."""
        return replace(self, folder=folder, rules=self.rules.fitting(folder))

    def _with_defaults(self, request: GenerationRequest) -> GenerationRequest:
        names = [one.name for one in fields(self.defaults)]
        missing = {name: getattr(self.defaults, name) for name in names if getattr(request, name) is None}
        return request.model_copy(update={"model": self.name, **missing})

    def _impossible(self, request: GenerationRequest) -> Iterator[str]:
        """A sentence for everything that this model can't do, and that nothing near can stand for."""
        if request.scheduler is not None and request.scheduler not in self.schedulers:
            known = nearest(request.scheduler, self.schedulers, "the page lists")
            yield f"scheduler: {self._who} has no {request.scheduler!r}: {known}."
        given: dict[Input, object] = {
            "image": request.image,
            "last_image": request.last_image,
            "lora": request.loras,
            "negative_prompt": self._own_words(request),
        }
        for name, value in given.items():
            if value and name not in self.takes:
                key = "loras" if name == "lora" else name
                yield f"{key}: {self._who} can't use {WORDS[name]}; remove it or choose another model."
            if not value and name in self.needs:
                yield f"{name}: {self._who} needs {WORDS[name]}; give one or choose another model."
        if request.last_image and not request.image and "image" in self.takes and "image" not in self.needs:
            yield f"image: {self._who} leads from a picture to a last picture; give the first one too."
        if request.shift is not None and "shift" not in self.takes and request.shift != self.defaults.shift:
            own = "sets its own" if self.defaults.shift is None else f"works with {self.defaults.shift:g} only"
            yield f"shift: {self._who} {own}; remove it."
        if request.guidance_2 is not None and self.defaults.guidance_2 is None:
            yield f"guidance_2: {self._who} has no second transformer; remove it."

    def _own_words(self, request: GenerationRequest) -> str:
        """The negative prompt unless it is the model's default, which nobody is to be blamed for."""
        return "" if request.negative_prompt in (None, self.defaults.negative_prompt) else request.negative_prompt or ""

    @property
    def _who(self) -> str:
        return self.called or self.title

    def _grid_reason(self, name: str, grid: Grid, value: int, used: int) -> str:
        limits = f"from {grid.least} to {grid.most}"
        if name == "frames":
            rule = f"{grid.step}k+{grid.offset} frames" if grid.step > 1 else "frames"
            asked = "1 frame becomes" if value == 1 else f"{value} frames become"
            return f"{self._who} makes {rule}, {limits}, so {asked} {used}."
        if grid.least == grid.most:
            return f"{self._who} takes a {name} of {grid.least} pixels only, so {value} becomes {used}."
        return f"{self._who} takes a {name} in multiples of {grid.step}, {limits} pixels, so {value} becomes {used}."

    def _tokens(self, name: str, text: str, changed: list[Adjustment], notes: dict[str, str]) -> TokenUse | None:
        """Count, and tell what the model will not read of this text, or not know."""
        if self.folder is None:
            return None
        use = count_tokens(self.folder / "tokenizer" / "tokenizer.json", text, self.token_limit)
        if use is None:
            return None
        label = "prompt" if name == "prompt" else "negative prompt"
        if use.total > use.used:
            reason = f"{self._who} reads the {label} no further: {use.sentence()}; the full text is kept."
            changed.append(
                Adjustment(field=name, asked=f"{use.total} tokens", used=f"{use.used} tokens", reason=reason)
            )
        if use.unknown:
            words = ", ".join(f"'{word}'" for word in use.unknown[:8]) + (", …" if len(use.unknown) > 8 else "")
            hint = "".join(f" Did you mean '{near}' for '{word}'?" for word, near in use.near)
            them = "them" if len(use.unknown) > 1 else "it"
            strange = self.knows and len(use.unknown) > len(use.near)
            known = f"; it knows: {', '.join(self.knows)}" if strange else ""
            notes[name] = f"{self._who} does not know {words}, so the clip may not show {them}{known}.{hint}"
        return use
