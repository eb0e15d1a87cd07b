"""LoRA files: where a request's LoRAs lie, which there are, and what a file says of itself. Reads no weights.

A LoRA is one that comes with the model, by its name, or a file of the LoRA folder, by its name relative to that. Only
safetensors files are taken: the other formats are pickles, which run code when they are opened.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from app.errors import UsageError
from app.models.base import Family
from app.models.sources.choosing import PICKLES, is_pickle
from app.models.sources.wholeness import header_of, weights_problem
from app.paths import MAX_SEARCHED, Home, find_lora
from app.request import GenerationRequest, Lora

SUFFIX = ".safetensors"
METADATA = "lora_adapter_metadata"
"""Under this key of the file's header diffusers keeps rank and alpha, as JSON."""
_DORA = ("dora_scale", "lora_magnitude_vector", "lora_magnitude_vector.weight")
"""End the names of tensors that diffusers would leave out without a word that reaches anybody."""


@dataclass(frozen=True)
class LoraFile:
    """A LoRA of a request, and its file."""

    lora: Lora
    path: Path


@dataclass(frozen=True)
class Listed:
    """A LoRA that can be chosen. size: bytes. problem: why it can't be used, empty when nothing is known against it."""

    name: str
    size: int
    comes_with_model: bool = False
    problem: str = ""


def files_for(request: GenerationRequest, family: Family, home: Home | None) -> tuple[LoraFile, ...]:
    """The files of a request's LoRAs, in its order. Raises UsageError for one that is missing or no LoRA."""
    return tuple(LoraFile(lora, locate(lora.name, family, home)) for lora in request.loras)


def locate(name: str, family: Family, home: Home | None) -> Path:
    """The file of the LoRA ``name``. Raises UsageError for one that is missing, ambiguous or no LoRA."""
    if name in family.loras and family.folder is not None:
        path = family.folder / family.loras[name]
        if not path.is_file():
            raise UsageError(f"LoRA {name!r} of {family.title} is missing in {family.folder}; fetch the model again.")
    elif home is None:
        own = f"; those that come with {family.title}: {', '.join(family.loras)}" if family.loras else ""
        raise UsageError(f"LoRA {name!r}: this engine was given no data folder to look in{own}.")
    else:
        path = _in_folder(name, family, home.root / "loras")
    if problem := why_not(path):
        raise UsageError(f"LoRA {name!r} {problem}")
    return path


def missing_loras(request: GenerationRequest, family: Family, home: Home) -> list[str]:
    """A sentence for each LoRA of the request that is missing here, or none."""
    said = []
    for lora in request.loras:
        try:
            locate(lora.name, family, home)
        except UsageError as error:
            said.append(str(error))
    return said


def _in_folder(name: str, family: Family, folder: Path) -> Path:
    try:
        return find_lora(folder, name)
    except UsageError as error:
        if Path(name).suffix or not family.loras:
            raise
        known = ", ".join(family.loras)
        raise UsageError(f"{error} {family.title} itself brings {known}.") from error


def why_not(path: Path) -> str:
    """Why a file is no LoRA, to follow its name; empty when nothing in its header is against it."""
    if path.suffix.lower() != SUFFIX:
        pickle = " but a pickle, which can run code when it is opened" if is_pickle(path.name) else ""
        return f"is no safetensors file{pickle}; get it as {SUFFIX}."
    if problem := weights_problem(path):
        return f"{problem}; get it again."
    names = header_of(path).keys() - {"__metadata__"}
    if any(name.endswith(_DORA) for name in names):
        return "is a DoRA: without the scales in it, which are not used here, it acts differently; get it as a LoRA."
    if not any(".lora_" in name or "lora_unet" in name or ".lora." in name for name in names):
        return f"holds no LoRA: none of its {len(names)} tensors is named like one; choose another file."
    return ""


def listed(family: Family, home: Home) -> tuple[Listed, ...]:
    """Those that come with the model, then those of the LoRA folder by name. Makes no folder."""
    own = []
    for name, file in family.loras.items() if family.folder is not None else ():
        assert family.folder is not None
        own.append(_listed(name, family.folder / file, True))
    folder = home.root / "loras"
    found = []
    for count, path in enumerate(folder.rglob("*") if folder.is_dir() else ()):
        if count == MAX_SEARCHED:
            break
        if path.suffix.lower() in (SUFFIX, *PICKLES) and path.is_file():
            found.append(_listed(path.relative_to(folder).as_posix(), path, False))
    return (*own, *sorted(found, key=lambda one: one.name.casefold()))


def _listed(name: str, path: Path, own: bool) -> Listed:
    size = path.stat().st_size if path.is_file() else 0
    return Listed(name, size, own, why_not(path) if size else "is missing; fetch the model again.")


__all__ = ["Listed", "LoraFile", "files_for", "listed", "locate", "missing_loras", "why_not"]
