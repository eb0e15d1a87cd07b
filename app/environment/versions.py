"""Versions and requirements, as far as pyproject.toml and builds.json use them.

The launcher runs before ``packaging`` is installed, so this is the small part of PEP 440 and PEP 508 that the
project's own lists need: ``name[extra]`` and comma-separated clauses with ``== != >= <= < ~=``; a marker (``;``) is
refused. The tests hold it against ``packaging`` itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import total_ordering

_VERSION = re.compile(
    r"\s*v?(?:(?P<epoch>\d+)!)?(?P<release>\d+(?:\.\d+)*)"
    r"(?:[-_.]?(?P<pre>a|b|c|rc|alpha|beta|pre|preview)[-_.]?(?P<pre_n>\d*))?"
    r"(?P<post>[-_.]?(?:post|rev|r)[-_.]?(?P<post_n>\d*)|-(?P<post_n1>\d+))?"
    r"(?P<dev>[-_.]?dev[-_.]?(?P<dev_n>\d*))?"
    r"(?:\+(?P<local>[a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*$",
    re.IGNORECASE,
)
_PRE_RANK = {"a": 0, "alpha": 0, "b": 1, "beta": 1, "c": 2, "rc": 2, "pre": 2, "preview": 2}
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*(?P<clauses>[^;]*)$")
_CLAUSE = re.compile(r"\s*(?P<op>==|!=|>=|<=|~=|<)\s*(?P<version>\S+)\s*$")


@total_ordering
@dataclass(frozen=True)
class Version:
    """One version in PEP 440's order. ``local`` is what follows ``+``: for torch the build, such as ``cpu``."""

    text: str
    epoch: int
    release: tuple[int, ...]
    pre: tuple[int, int] | None
    post: int | None
    dev: int | None
    local: str

    @classmethod
    def parse(cls, text: str) -> Version:
        """Read a version; raises ValueError naming the text when it is none."""
        found = _VERSION.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a version")
        part = found.groupdict()
        pre = (_PRE_RANK[part["pre"].lower()], int(part["pre_n"] or 0)) if part["pre"] else None
        post = int(part["post_n"] or part["post_n1"] or 0) if part["post"] else None
        dev = int(part["dev_n"] or 0) if part["dev"] else None
        release = tuple(int(number) for number in part["release"].split("."))
        return cls(text.strip(), int(part["epoch"] or 0), release, pre, post, dev, (part["local"] or "").lower())

    @property
    def public(self) -> str:
        """The version without its local label: ``2.13.0`` of ``2.13.0+cpu``."""
        return self.text.partition("+")[0]

    @property
    def is_prerelease(self) -> bool:
        return self.pre is not None or self.dev is not None

    def key(self, with_local: bool = True) -> tuple[object, ...]:
        """Sort key: 1.0.dev1 < 1.0a1 < 1.0 < 1.0+x < 1.0.post1, trailing zeros of the release not counted."""
        release = self.release
        while release and release[-1] == 0:
            release = release[:-1]
        if self.pre is not None:
            pre: tuple[int, int] = self.pre
        else:
            pre = (-1, 0) if self.post is None and self.dev is not None else (9, 0)
        post = -1 if self.post is None else self.post
        dev = (1, 0) if self.dev is None else (0, self.dev)
        local = tuple((1, int(s), "") if s.isdigit() else (0, 0, s) for s in re.split(r"[-_.]", self.local) if s)
        return (self.epoch, release, pre, post, dev, local if with_local else ())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self.key() == other.key()

    def __lt__(self, other: Version) -> bool:
        return self.key() < other.key()

    def __hash__(self) -> int:
        return hash(self.key())


def normal_name(name: str) -> str:
    """A distribution's name as PEP 503 compares it: ``huggingface_hub`` and ``HuggingFace-Hub`` are one."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Requirement:
    """One line of a dependency list: ``text`` as written, normalised ``name``, ``clauses`` of (operator, version)."""

    text: str
    name: str
    clauses: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Read one requirement; raises ValueError for anything this project does not use, markers and URLs among it."""
        found = _REQUIREMENT.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not a requirement of the form name>=1,<2")
        clauses = []
        for part in filter(None, (piece.strip() for piece in found["clauses"].split(","))):
            clause = _CLAUSE.match(part)
            if clause is None or (clause["version"].endswith(".*") and clause["op"] not in ("==", "!=")):
                raise ValueError(f"{part!r} in {text!r} is not a version clause such as >=1.2")
            Version.parse(clause["version"].removesuffix(".*"))
            clauses.append((clause["op"], clause["version"]))
        return cls(text.strip(), normal_name(found["name"]), tuple(clauses))

    def allows(self, version: str) -> bool:
        """Whether an installed version will do; an installed pre-release counts."""
        return all(_holds(Version.parse(version), op, bound) for op, bound in self.clauses)


def _starts_with(version: Version, release: tuple[int, ...]) -> bool:
    padded = version.release + (0,) * len(release)
    return padded[: len(release)] == release


def _holds(version: Version, op: str, text: str) -> bool:
    """One clause, with PEP 440's special cases: ``==1.*``, locals, and ``<2`` refusing 2's own pre-releases."""
    if text.endswith(".*"):
        prefix = Version.parse(text.removesuffix(".*"))
        same = version.epoch == prefix.epoch and _starts_with(version, prefix.release)
        return same if op == "==" else not same
    bound = Version.parse(text)
    mine, theirs = version.key(bool(bound.local)), bound.key()
    match op:
        case "==":
            return mine == theirs
        case "!=":
            return mine != theirs
        case ">=":
            return mine >= theirs
        case "<=":
            return mine <= theirs
        case "~=":
            stem = bound.release[:-1]
            return mine >= theirs and version.epoch == bound.epoch and _starts_with(version, stem)
        case _:
            first_of_bound = replace(bound, dev=0, local="")
            own_prerelease = version.is_prerelease and not bound.is_prerelease and version >= first_of_bound
            return version < bound and not own_prerelease
