"""`--models` and `--fetch`: which models there are, what of them is on this machine, and how to bring one here.

A fetch uses the network, in a process of its own; nothing else of Kinetile does. Ctrl-C ends it at once and keeps what
came.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from app.console import Reporter, reporter_for
from app.errors import Cancelled, UsageError
from app.interrupt import Interrupts
from app.models import all_families, family_for, sources
from app.models.base import Family
from app.models.sources import fetching, resolving
from app.models.sources.cache import REPO, Located, in_cache
from app.models.sources.fetching import FetchProgress
from app.video.outputs import size_text


@dataclass(frozen=True)
class Listed:
    """A model of the catalogue as it stands on this machine. state: "here" (whole), "partly", or "not here"; fetched:
    bytes that are here; problems: what is missing. remedy: the sentence with what to do, empty when it is here.
    """

    name: str
    title: str
    summary: str
    licence: str
    repo: str
    state: str
    folder: str
    download: int | None
    source: str
    fetched: int
    problems: tuple[str, ...]
    remedy: str


def listed(family: Family) -> Listed:
    """How a model stands here; looks at its files, uses no network."""
    located = sources.locate(family)
    return Listed(
        name=family.name,
        title=family.title,
        summary=family.summary,
        licence=family.licence,
        repo=family.repo or "",
        download=family.download.value,
        source=family.download.source,
        remedy=sources.why_not_here(family, located),
        **_standing(located),
    )


def offered(model: str) -> Listed | None:
    """How a model stands here that could be fetched: one of the catalogue, or another repository ("hf:owner/name");
    None for what is neither.
    """
    family = listed_as(model)
    if family is not None:
        return listed(family)
    repo = model.removeprefix(resolving.HUB)
    if repo == model or not REPO.fullmatch(repo):
        return None
    unknown: dict[str, Any] = {"summary": "", "licence": "", "download": None, "source": "unverified", "remedy": ""}
    return Listed(model, repo, repo=repo, **unknown, **_standing(in_cache(repo)))


def _standing(located: Located) -> dict[str, Any]:
    """The fields of Listed that its files tell."""
    return {
        "state": "here" if located.is_whole else "partly" if located.fetched or located.folder else "not here",
        "folder": "" if located.folder is None else str(located.folder),
        "fetched": located.fetched,
        "problems": located.problems,
    }


def download_text(one: Listed) -> str:
    """The size of a download: "27.0 GiB", "about" that where nobody has looked yet, "unverified" where nobody knows."""
    if one.download is None:
        return "unverified"
    if one.download == 0:
        return "none"
    return f"{'about ' * (one.source == 'unverified')}{size_text(one.download)}"


def list_models(as_json: bool = False, stdout: TextIO | None = None) -> int:
    """Print every model: name, licence, size, where it lies or how to get it."""
    out = stdout or sys.stdout
    rows = [listed(family) for family in all_families()]
    if as_json:
        print(json.dumps(as_data(rows), indent=1), file=out, flush=True)
        return 0
    reporter = reporter_for(out)
    reporter.table(
        ("model", "licence", "download", "on this machine"),
        [[row.name, row.licence, download_text(row), _where(row)] for row in rows],
    )
    reporter.say()
    reporter.say("python launch.py --fetch MODEL brings one here; hf:OWNER/NAME means any repository in its layout.")
    return 0


def _where(row: Listed) -> str:
    if row.state == "here":
        return row.folder
    if row.state == "not here":
        return "no"
    size = f" of {size_text(row.download)}" if row.download else ""
    return f"partly, {size_text(row.fetched)}{size}: {sources.told(row.problems) or 'not all files came yet'}"


def run_fetch(model: str, as_json: bool = False, stdout: TextIO | None = None, stderr: TextIO | None = None) -> int:
    """Bring a model here, telling how far it is. Raises KinetileError, Cancelled after Ctrl-C."""
    out = stdout or sys.stdout
    folder = fetch_model(model, reporter_for(stderr or sys.stderr))
    if as_json:
        print(json.dumps({"model": model, "folder": str(folder)}), file=out, flush=True)
    else:
        reporter_for(out).say(f"{model} is on this machine: {folder}")
    return 0


def fetch_model(model: str, reporter: Reporter) -> Path:
    """Bring one model here and return its folder; one that is here already takes no time."""
    title, bring = how_to_fetch(model)
    family = listed_as(model)
    origin = f" from {family.repo}, licence {family.licence}" if family is not None and family.repo else ""
    reporter.say(f"Fetching {title}{origin}")
    interrupts = Interrupts(lambda: reporter.say("Stopping."))
    reporter.begin(title)
    try:
        with interrupts:
            return bring(
                lambda progress: reporter.tell(progress.fraction, progress.sentence()), lambda: interrupts.asked
            )
    except KeyboardInterrupt:
        raise Cancelled(f"Stopped; what came of {title} is kept, and the next fetch goes on there.") from None
    finally:
        reporter.end()


Bring = Callable[[Callable[[FetchProgress], None], Callable[[], bool]], Path]


def how_to_fetch(model: str) -> tuple[str, Bring]:
    """What to call a model while it is fetched, and the function that does it. Raises UsageError for an unknown one."""
    family = listed_as(model)
    if family is None and model.startswith(resolving.HUB):
        repo = resolving.repo_of(model)
        return repo, lambda tell, stop: fetching.fetch_repo(repo, tell, stop)
    wanted = family or family_for(model)
    return wanted.title, lambda tell, stop: sources.fetch(wanted, tell, stop)


def listed_as(model: str) -> Family | None:
    """The model of the catalogue that a name, an alias or a repository means."""
    name = model.removeprefix(resolving.HUB)
    return next((one for one in all_families() if name in (one.name, *one.aliases, *one.repos)), None)


def missing(models: Sequence[str]) -> list[str]:
    """Those among `models` that would have to be fetched first, each once; what can't be a model is left out."""
    found: list[str] = []
    for model in dict.fromkeys(models):
        with contextlib.suppress(UsageError):
            family = listed_as(model)
            if family is None and model.startswith(resolving.HUB):
                located = in_cache(resolving.repo_of(model))
            else:
                located = sources.locate(family or family_for(model))
            if not located.is_whole:
                found.append(model)
    return found


def as_data(rows: Sequence[Listed]) -> list[dict[str, Any]]:
    """For programs."""
    return [{**vars(row), "problems": list(row.problems)} for row in rows]
