"""Where a model's weights come from: with Kinetile, the Hugging Face cache, a folder, a single file.

    located = locate(family)          what is here, and what is missing of it; no network
    fetch(family, on_progress, stop)  bring it here; the only thing that uses the network, when somebody asked for it

Weights are safetensors (or GGUF) alone; pickled ones, which can run code, are refused.
"""

from __future__ import annotations

from pathlib import Path

from app.errors import CannotRunError
from app.models.base import Family
from app.models.sources.cache import Located, in_cache
from app.models.sources.fetching import FetchProgress, OnProgress, ShouldStop, fetch_repo
from app.models.sources.wholeness import problems_in
from app.video.outputs import size_text

MOST_TOLD = 4
"""Most missing files named in a sentence."""


def locate(family: Family) -> Located:
    """Where the family's weights lie on this machine: whole where any of its places has them so, else what there is of
    the first. Uses no network.
    """
    if family.folder is not None:
        if not family.folder.is_dir():
            return Located()
        return Located(family.folder, problems_in(family.folder))
    found = [in_cache(repo) for repo in family.repos]
    whole = [one for one in found if one.is_whole]
    return (whole or sorted(found, key=lambda one: -one.fetched) or [Located()])[0]


def placed(family: Family) -> Family:
    """The family with the folder where its weights lie whole; without one (None) when they do not."""
    if family.folder is not None:
        return family
    located = locate(family)
    return family.with_folder(located.folder) if located.is_whole and located.folder is not None else family


def fetch(
    family: Family,
    on_progress: OnProgress = lambda progress: None,
    should_stop: ShouldStop = lambda: False,
) -> Path:
    """Bring the family's weights onto this machine, as far as they are not here; returns their folder.

    Raises Cancelled when `should_stop` said so, CannotRunError when they can't be had. What came is kept either way.
    """
    located = locate(family)
    if located.is_whole and located.folder is not None:
        return located.folder
    if not family.repos:
        raise CannotRunError(f"{family.title} comes from {family.folder}, not from a hub: nothing can be fetched.")
    return fetch_repo(family.repos[0], on_progress, should_stop)


def why_not_here(family: Family, located: Located | None = None) -> str:
    """Why no clip can be made with the family as things are, with what changes it; empty when one can."""
    located = located or locate(family)
    if located.is_whole:
        return ""
    how = f"under Models (on the command line: python launch.py --fetch {family.name})"
    size = "" if not family.download.value else f" ({size_text(family.download.value)})"
    who = family.title
    if not family.repos and family.folder is None:
        return f"{who} is not on this machine: choose another model, such as the starter."
    if not family.repos:
        lacks = told(located.problems) or f"there is no folder {family.folder}"
        return f"{who} is not whole: {lacks}; copy or make its folder again."
    if located.folder is None:
        return f"{who} is not on this machine: fetch it{size} {how}."
    return f"{who} is not whole ({told(located.problems)}): fetch the rest {how}."


def told(problems: tuple[str, ...]) -> str:
    """Problems in one line, the first few in full."""
    more = len(problems) - MOST_TOLD
    return "; ".join([*problems[:MOST_TOLD], *([f"and {more} more"] if more > 0 else [])])


__all__ = [
    "FetchProgress",
    "Located",
    "fetch",
    "locate",
    "placed",
    "told",
    "why_not_here",
]
