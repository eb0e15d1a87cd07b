"""What an interpreter has installed and what it lacks, from the packages' metadata; nothing is imported.

``installed`` reads any site-packages folder, so the launcher can look into .venv from outside. ``unfinished`` finds
what a killed install left behind: pip writes a package's INSTALLER file after all others, and RECORD lists the files
that must be there.
"""

from __future__ import annotations

import csv
import re
import shutil
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from app.environment.versions import Requirement, normal_name
from app.errors import CannotRunError


@dataclass(frozen=True)
class Lists:
    """pyproject.toml's dependency lists."""

    main: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]]

    def needed(self, extras: Iterable[str] = ()) -> tuple[Requirement, ...]:
        """All requirements for running with some extras."""
        return self.main + tuple(requirement for extra in extras for requirement in self.extras[extra])


def read_lists(pyproject: Path) -> Lists:
    """Read the dependency lists; raises CannotRunError when the file is missing or damaged."""
    try:
        project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
        extras = project.get("optional-dependencies", {})
        return Lists(
            tuple(Requirement.parse(line) for line in project["dependencies"]),
            {name: tuple(Requirement.parse(line) for line in lines) for name, lines in extras.items()},
        )
    except (OSError, KeyError, ValueError) as error:
        raise CannotRunError(
            f"{pyproject} cannot be read ({error}); restore it with `git checkout pyproject.toml`."
        ) from error


def installed(folders: Sequence[str]) -> dict[str, str]:
    """Normalised name -> version of what site-packages folders hold; the first folder wins, as in imports."""
    found: dict[str, str] = {}
    for distribution in metadata.distributions(path=list(folders)):
        name, version = distribution.metadata["Name"], distribution.metadata["Version"]
        if name and version:
            found.setdefault(normal_name(name), version)
    return found


def lacking(requirements: Iterable[Requirement], have: Mapping[str, str]) -> list[str]:
    """What is missing or does not fit, as words for a sentence; empty when all is there."""
    problems = []
    for requirement in requirements:
        version = have.get(requirement.name)
        if version is None:
            problems.append(requirement.text)
        elif not _allows(requirement, version):
            problems.append(f"{requirement.text} (has {version})")
    return problems


def running_lacks(requirements: Iterable[Requirement]) -> list[str]:
    """The same for the running interpreter, but quick: one look-up a name, stopping at the first that is missing."""
    for requirement in requirements:
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            return [requirement.text]
        if not _allows(requirement, version or ""):
            return [f"{requirement.text} (has {version})"]
    return []


def unfinished(site: Path) -> list[Path]:
    """The ``.dist-info`` folders of packages whose install was cut short, and pip's ``~name`` leftovers."""
    leftovers = [path for path in site.glob("~*") if path.is_dir()]
    return leftovers + [info for info in sorted(site.glob("*.dist-info")) if not _is_whole(info, site)]


def remove_unfinished(site: Path) -> list[str]:
    """Drop the records of half-installed packages, so that pip installs them again over what is there; their names."""
    names = []
    for path in unfinished(site):
        shutil.rmtree(path, ignore_errors=True)
        names.append(path.name.removeprefix("~").removesuffix(".dist-info"))
    return names


def torch_facts(site: Path) -> dict[str, str | None]:
    """What the installed torch says of itself: ``version``, ``cuda``, ``hip``; read from its version.py, not imported.

    Raises CannotRunError when torch is not in the folder.
    """
    try:
        text = (site / "torch/version.py").read_text(encoding="utf-8")
    except OSError as error:
        raise CannotRunError(f"torch is not in {site} ({error}); delete .venv and start again.") from error
    facts: dict[str, str | None] = {}
    for key, word in (("version", "__version__"), ("cuda", "cuda"), ("hip", "hip")):
        found = re.search(rf"^{word}(?:\s*:[^=\n]*)?\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", text, re.MULTILINE)
        facts[key] = (found[1] or found[2]) if found else None
    return facts


def _allows(requirement: Requirement, version: str) -> bool:
    try:
        return requirement.allows(version)
    except ValueError:
        return False


def _is_whole(info: Path, site: Path) -> bool:
    """Whether a package's install ran to its end; compiled files may be missing, people delete them."""
    record = info / "RECORD"
    if not (info / "INSTALLER").is_file() or not (info / "METADATA").is_file():
        return False
    try:
        with record.open(encoding="utf-8", newline="") as file:
            names = [row[0] for row in csv.reader(file) if row]
    except (OSError, UnicodeDecodeError, csv.Error):
        return False
    return all(name.endswith((".pyc", ".pyo")) or (site / name).exists() for name in names)
