"""The three steps that fill an environment: torch, the rest, the kernel package; then proof that it came out as meant.

torch comes first and alone, because its build depends on the machine. What pip would take is looked at before
anything is downloaded, so no CUDA build lands on a machine without such a GPU. From then on torch is pinned: no later
step can replace it. A kernel package is a bonus: when it cannot be had, that is said, and Kinetile runs without it.
"""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from app.environment.builds import Attempt, Build, Choice, Table, choose_kernels, kind_of_torch
from app.environment.machine import Host
from app.environment.packages import Lists, installed, lacking, torch_facts
from app.environment.pip import Pip
from app.environment.versions import Requirement
from app.errors import Cancelled, CannotRunError

GIB = 1 << 30
STEPS = 3


@dataclass(frozen=True)
class Filled:
    """A whole environment: the torch version in it, and the sentences worth saying about it."""

    torch: str
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Installer:
    """One filling of one environment. ``free_bytes`` gives the free space of its disk."""

    site: Path
    lists: Lists
    table: Table
    host: Host
    pip: Pip
    say: Callable[[str], None]
    free_bytes: Callable[[Path], int] = lambda path: shutil.disk_usage(path).free

    def fill(self, choice: Choice, extras: Iterable[str]) -> Filled:
        """Install what is missing; raises CannotRunError naming it when pip cannot, Cancelled when interrupted."""
        extras = tuple(extras)
        build, index = choice.build, None
        have = installed([str(self.site)])
        if "torch" in have:
            self._step(1, f"torch {have['torch']} is there and stays")
        else:
            self._step(1, f"{build.title}, because {choice.reason}")
            index = self._install_torch(build)
        torch = self._torch_version()
        self._install_rest(torch, extras, index if build.kind != "cpu" else None)
        notes = self._install_kernels(build, torch)
        notes += self._verify(build, extras)
        return Filled(torch, tuple(notes))

    def _step(self, number: int, text: str) -> None:
        self.say(f"[{number}/{STEPS}] {text}")

    def _torch_version(self) -> str:
        """The installed torch, which must be one that Kinetile can use: it is never replaced."""
        version = installed([str(self.site)])["torch"]
        wanted = next(requirement for requirement in self.lists.main if requirement.name == "torch")
        if not wanted.allows(version):
            raise CannotRunError(
                f"this environment has torch {version}, Kinetile needs {wanted.text}, and an installed torch is never "
                "replaced; delete .venv (or leave that environment) and start again."
            )
        return version

    def _install_torch(self, build: Build) -> str | None:
        """Try the row's attempts in order; returns the index that served torch, None for pip's own sources."""
        free = self.free_bytes(self.site)
        if free < build.disk_gib * GIB:
            raise CannotRunError(
                f"only {free / GIB:.1f} GiB are free for {self.site}, and {build.title} with the other packages needs "
                f"about {build.disk_gib:g} GiB; free some space and start again."
            )
        refusals, other = [], ""
        for attempt in build.attempts:
            found = self.pip.look(attempt.requirement, attempt.index, self.table.index_seconds)
            if isinstance(found, str):
                refusals.append(f"{_place(attempt)}: {found}")
                continue
            kind = kind_of_torch(found.version, found.requires, self.host.system)
            if kind != build.kind:
                refusals.append(f"{_place(attempt)}: torch {found.version}, a build for {kind.upper()}")
                other = kind
                continue
            code = self.pip.install([f"torch=={found.version}"], index=attempt.index, dependencies=False)
            _stop_if_interrupted(code)
            if code == 0:
                return attempt.index
            refusals.append(f"{_place(attempt)}: torch {found.version} was found, but pip could not install it")
        for refusal in refusals:
            self.say(refusal)
        raise CannotRunError(self._no_torch(build, other))

    def _no_torch(self, build: Build, other: str) -> str:
        """The sentence that ends a search; ``other`` is the kind of build that pip would have taken, or nothing."""
        if other:
            names = " or ".join(row.name for row in self.table.builds if row.kind == other)
            return (
                f"pip finds no {build.title}, only a build for {other.upper()}, which is not put on this machine "
                "unasked; put the right wheel into a folder, set PIP_FIND_LINKS to it and start again, or take the "
                f"other one with --torch-build {names}."
            )
        return (
            f"pip finds no {build.title} for Python {_python(self.site)} (torch has wheels for "
            f"{' to '.join(self.table.pythons)}); connect to the network, or put the wheel into a folder, set "
            "PIP_FIND_LINKS to it and start again."
        )

    def _install_rest(self, torch: str, extras: tuple[str, ...], index: str | None) -> None:
        needed = self.lists.needed(extras)
        missing = lacking(needed, installed([str(self.site)]))
        self._step(2, f"{len(missing)} of {len(needed)} packages are missing" if missing else "checking the packages")
        code = self.pip.install(
            [requirement.text for requirement in needed], constraints=[f"torch=={torch}"], extra_index=index
        )
        _stop_if_interrupted(code)
        missing = lacking(needed, installed([str(self.site)]))
        if code != 0 or missing:
            names = ", ".join(missing) if missing else "a package that these need"
            raise CannotRunError(
                f"pip could not install {names} (its own words are above): connect to the network, or put the wheels "
                "into a folder and set PIP_FIND_LINKS to it, then start again; what is installed so far stays."
            )

    def _install_kernels(self, build: Build, torch: str) -> list[str]:
        chosen = choose_kernels(build, self.table, self.host, torch)
        self._step(3, f"kernel package: {', '.join(chosen) or 'none for this machine'}")
        notes = []
        for name, requirement in chosen.items():
            if requirement is None:
                notes.append(f"no release of {name} is known to fit torch {torch}; Kinetile runs without it")
            elif not lacking([Requirement.parse(requirement)], installed([str(self.site)])):
                self.say(f"{name} is there")
            else:
                bound = next(r.text for r in self.lists.extras[self.table.kernels[name]["extra"]] if r.name == name)
                wanted = requirement if "==" in requirement else bound
                code = self.pip.install([wanted], constraints=[f"torch=={torch}"])
                _stop_if_interrupted(code)
                if code != 0:
                    notes.append(f"{wanted} could not be installed; Kinetile runs without it")
        return notes

    def _verify(self, build: Build, extras: tuple[str, ...]) -> list[str]:
        """Look at what is installed now, from its own files; raises CannotRunError when it is not whole."""
        have = installed([str(self.site)])
        if missing := lacking(self.lists.needed(extras), have):
            raise CannotRunError(f"the environment still lacks {', '.join(missing)}; start again to repair it.")
        facts = torch_facts(self.site)
        kind = "cuda" if facts["cuda"] else "rocm" if facts["hip"] else "cpu"
        notes = []
        if kind != build.kind:
            notes.append(
                f"torch {facts['version']} is a {kind.upper()} build, and this machine would take {build.title}; to "
                "change, delete .venv and start again"
            )
        extra = sorted(name for name in have if name.startswith("nvidia-"))
        if kind == "cpu" and extra:
            notes.append(f"this CPU environment also holds CUDA packages, which it does not use: {', '.join(extra)}")
        return notes


def _place(attempt: Attempt) -> str:
    return attempt.index or f"pip's own sources ({attempt.requirement})"


def _python(site: Path) -> str:
    """The Python version that a site-packages folder is for, from its path; the running one's on Windows."""
    name = site.parent.name
    return name.removeprefix("python") if name.startswith("python3") else platform.python_version()


def _stop_if_interrupted(code: int) -> None:
    if code >= 128:
        raise Cancelled(
            "stopped while installing; what is installed so far stays, and the next start goes on from there."
        )
