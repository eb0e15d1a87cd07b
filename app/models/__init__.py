"""The models that clips can be made with. Each file beside this one holds a family; its line here registers it."""

from __future__ import annotations

from app.errors import UsageError
from app.models import starter
from app.models.base import Family
from app.strict_json import short
from app.validation import closest

_FILES = (starter,)


def all_families() -> tuple[Family, ...]:
    """Every model, the starter first."""
    return tuple(family for file in _FILES for family in file.FAMILIES)


def family_for(model: str) -> Family:
    """The family that ``model`` (a name, an alias or a repository) means. Raises UsageError listing what exists."""
    for family in all_families():
        if model in (family.name, family.repo, *family.aliases):
            return family
    known = [family.name for family in all_families()]
    raise UsageError(f"model: {short(model)} is not known.{closest(model, known)} Known models: {', '.join(known)}.")
