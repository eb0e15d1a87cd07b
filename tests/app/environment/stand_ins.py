"""Stand-ins for the launcher's tests: tiny wheels, and a pip whose package index is only a dict."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app.environment.packages import installed
from app.environment.pip import Candidate
from app.environment.versions import Requirement

CPU_TORCH = "__version__ = '{version}'\ncuda: Optional[str] = None\nhip: Optional[str] = None\n"
CUDA_TORCH = "__version__ = '{version}'\ncuda: Optional[str] = '13.0'\nhip: Optional[str] = None\n"


def wheel_files(
    name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The files of a tiny pure-Python wheel, RECORD included; ``files`` are its modules, or take another's place."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in requires]
    content = {
        f"{info}/METADATA": "\n".join(lines) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(files or {f"{name.replace('-', '_')}.py": ""}),
    }
    rows = []
    for path, text in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(text.encode())}")
    return {**content, f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"]) + "\n"}


def write_wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str] | None = None
) -> Path:
    """The same wheel on disk."""
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in wheel_files(name, version, requires, files).items():
            archive.writestr(inner, text)
    return path


def unpack(site: Path, name: str, version: str, files: Mapping[str, str] | None = None) -> None:
    """Put a package into a site-packages folder as pip leaves it."""
    for inner, text in wheel_files(name, version, files=files).items():
        (site / inner).parent.mkdir(parents=True, exist_ok=True)
        (site / inner).write_text(text, encoding="utf-8")
    (site / f"{name.replace('-', '_')}-{version}.dist-info/INSTALLER").write_text("pip\n", encoding="utf-8")


@dataclass
class FakePip:
    """A pip whose index is a dict: (index or "", name) -> versions it offers, each with what it requires.

    ``install`` unpacks the newest version that fits into ``site``, after the torch that it requires. ``broken`` names
    packages whose install fails, ``interrupt_at`` one at which Ctrl-C is pressed. ``calls`` records every word.
    """

    site: Path
    offers: Mapping[tuple[str, str], Mapping[str, tuple[str, ...]]]
    broken: frozenset[str] = frozenset()
    interrupt_at: str = ""
    calls: list[tuple[str, ...]] = field(default_factory=list)
    owed: list[str] = field(default_factory=list)
    """Exact versions that what was installed without its dependencies needs everywhere: the next install seeks them."""

    def look(self, requirement: str, index: str | None, seconds: float) -> Candidate | str:
        self.calls.append(("look", requirement, index or "", f"{seconds:g}" if index else ""))
        return self._find(Requirement.parse(requirement), index or "") or f"nothing for {requirement}"

    def install(
        self,
        requirements: Sequence[str],
        constraints: Sequence[str] = (),
        index: str | None = None,
        extra_index: str | None = None,
        dependencies: bool = True,
    ) -> int:
        self.calls.append(("install", *requirements, *(f"constraint {line}" for line in constraints)))
        if dependencies:
            requirements, self.owed = [*requirements, *self.owed], []
        pins = {Requirement.parse(line).name: Requirement.parse(line) for line in constraints}
        for requirement in map(Requirement.parse, requirements):
            have = installed([str(self.site)]).get(requirement.name)
            if have is not None and requirement.allows(have):
                continue
            found = self._find(requirement, index or "") or self._find(requirement, extra_index or "")
            pin = pins.get(requirement.name)
            if requirement.name == self.interrupt_at:
                return 130
            if found is None or requirement.name in self.broken or (pin and not pin.allows(found.version)):
                return 1
            needs = [line for line in found.requires if line.startswith("torch==")]
            if needs and self.install(needs, constraints):
                return 1
            self._unpack(requirement.name, found)
            if not dependencies:
                self.owed += [line for line in found.requires if "==" in line and ";" not in line]
        return 0

    def _find(self, requirement: Requirement, index: str) -> Candidate | None:
        offers = self.offers.get((index, requirement.name), {})
        fitting = [version for version in offers if requirement.allows(version)]
        return Candidate(fitting[-1], offers[fitting[-1]]) if fitting else None

    def _unpack(self, name: str, found: Candidate) -> None:
        files = None
        if name == "torch":
            template = CUDA_TORCH if any(line.startswith("nvidia-") for line in found.requires) else CPU_TORCH
            files = {"torch/version.py": template.format(version=found.version)}
        unpack(self.site, name, found.version, files)
