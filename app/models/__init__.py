"""The models that clips can be made with. Each file beside this one holds a family; its line here registers it."""

from __future__ import annotations

from accel.advice import nearest
from app.errors import UsageError
from app.models import (
    cogvideox,
    hunyuan,
    ltx,
    mochi,
    sana,
    skyreels,
    sources,
    starter,
    wan,
)
from app.models.base import Family
from app.models.sources import resolving
from app.strict_json import short

_FILES = (
    starter,
    wan,
    ltx,
    hunyuan,
    cogvideox,
    mochi,
    skyreels,
    sana,
)
_LISTED = "the list of models (on the command line: python launch.py --models) has"


def all_families() -> tuple[Family, ...]:
    """Every model, the starter first."""
    return tuple(family for file in _FILES for family in file.FAMILIES)


def family_for(model: str) -> Family:
    """The family that ``model`` means, with the folder of its weights where they lie whole on this machine.

    ``model``: a name, an alias, a repository of the catalogue, or what `sources.resolving` reads: "hf:owner/name", a
    folder, a single file. Raises UsageError listing what exists.
    """
    if not isinstance(model, str):  # whatever a program put into the page's field
        raise UsageError(f"model: {short(model)} is no name; write a model's name.")
    families = all_families()
    for family in families:
        if model in (family.name, *family.repos, *family.aliases):
            return sources.placed(family)
    if resolving.is_source(model):
        return resolving.family_of(model, families, sources.locate)
    known = [family.name for family in families]
    raise UsageError(f"model: {short(model)} is not known: {nearest(model, known, _LISTED)}.")
