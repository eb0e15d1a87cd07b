"""Picks a torch build and a kernel package from builds.json, and says why.

The table is the policy. This file only reads it: a row answers a host with a list of reasons why not, empty when it
fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.environment.machine import Gpu, Host, numbers
from app.environment.versions import Version, normal_name
from app.errors import UsageError

TABLE = Path(__file__).with_name("builds.json")
AUTO = "auto"
# Distributions that only a CUDA or a ROCm build of torch asks for.
_CUDA_PREFIXES = ("nvidia-", "cuda-")
_ROCM_PREFIXES = ("rocm", "triton-rocm", "pytorch-triton-rocm")


@dataclass(frozen=True)
class Attempt:
    """One way to get torch: a pinned requirement, and the index to ask, or None for wherever pip looks."""

    requirement: str
    index: str | None


@dataclass(frozen=True)
class Build:
    """One row of the table. ``kind`` is what the torch it installs must be: ``cpu``, ``cuda`` or ``rocm``."""

    name: str
    title: str
    kind: str
    when: Mapping[str, Any]
    attempts: tuple[Attempt, ...]
    disk_gib: float
    kernels: tuple[str, ...]
    checked: str

    def why_not(self, host: Host) -> list[str]:
        """Why this row does not fit a machine; an empty list when it does."""
        reasons = []
        for key, value in (("system", host.system), ("processor", host.processor)):
            if key in self.when and value not in self.when[key]:
                reasons.append(f"{key} is {value}, not {' or '.join(self.when[key])}")
        if vendor := self.when.get("vendor"):
            gpus = [gpu for gpu in host.gpus if gpu.vendor == vendor]
            if not gpus:
                return [*reasons, f"no {vendor.upper()} GPU"]
            reasons += _capability_reasons(gpus, self.when.get("capability"))
            known = self.when.get("gfx")
            if known and not any(gpu.arch in known for gpu in gpus):
                reasons.append(f"this torch build has no code for {', '.join(gpu.arch for gpu in gpus)}")
        if least := self.when.get("driver_at_least"):
            if host.driver is None:
                reasons.append(f"the NVIDIA driver's version is unknown, {least} or newer is needed")
            elif host.driver < numbers(least):
                reasons.append(f"the NVIDIA driver is {_dotted(host.driver)}, {least} or newer is needed")
        return reasons


@dataclass(frozen=True)
class Table:
    """builds.json, read."""

    builds: tuple[Build, ...]
    kernels: Mapping[str, Mapping[str, Any]]
    pythons: tuple[str, str]
    index_seconds: float


@dataclass(frozen=True)
class Choice:
    """The row taken, why, and the reasons of the rows that stood before it."""

    build: Build
    reason: str
    passed_over: Mapping[str, tuple[str, ...]]


def load_table(path: Path = TABLE) -> Table:
    """Read the table."""
    data = json.loads(path.read_text(encoding="utf-8"))
    builds = tuple(
        Build(
            name=row["name"],
            title=row["title"],
            kind=row["kind"],
            when=row["when"],
            attempts=tuple(Attempt(a["requirement"], a.get("index")) for a in row["attempts"]),
            disk_gib=row["disk_gib"],
            kernels=tuple(row["kernels"]),
            checked=row["checked"],
        )
        for row in data["builds"]
    )
    return Table(builds, data["kernels"], tuple(data["pythons"]), data["index_seconds"])


def choose_build(host: Host, table: Table, wanted: str = AUTO) -> Choice:
    """The first row that fits, or the row asked for by name; UsageError for a name that is not in the table."""
    if wanted != AUTO:
        for build in table.builds:
            if build.name == wanted:
                return Choice(build, "asked for with --torch-build", {})
        names = ", ".join([AUTO, *(build.name for build in table.builds)])
        raise UsageError(f"--torch-build {wanted!r} is not known; choose one of {names}.")
    passed_over: dict[str, tuple[str, ...]] = {}
    for build in table.builds:
        if not (reasons := build.why_not(host)):
            return Choice(build, f"this machine is {host.describe()}", passed_over)
        passed_over[build.name] = tuple(reasons)
    raise AssertionError("the last row of builds.json must fit every machine")


def choose_kernels(build: Build, table: Table, host: Host, torch: str) -> dict[str, str | None]:
    """Name -> requirement of the kernel packages for an installed torch; None where no release is known to fit it.

    A package that is tied to torch is pinned to the release built for exactly this torch. One that serves certain AMD
    GPUs only is left out on others.
    """
    chosen: dict[str, str | None] = {}
    for name in build.kernels:
        row = table.kernels[name]
        if row["gfx"] and not any(gpu.arch in row["gfx"] for gpu in host.gpus):
            continue
        if row["by_torch"]:
            release = row["by_torch"].get(Version.parse(torch).public)
            chosen[name] = f"{name}=={release}" if release else None
        else:
            chosen[name] = name
    return chosen


def kind_of_torch(version: str, requires: Iterable[str], system: str) -> str:
    """What a torch wheel is, from its version's local label or, without one, from what it requires: cpu, cuda, rocm
    or xpu.

    On Linux the unlabelled wheel of the public index is a CUDA build and asks for NVIDIA's libraries; elsewhere it is
    a CPU build, although its list may name them for Linux.
    """
    local = Version.parse(version).local
    for prefix, kind in (("cpu", "cpu"), ("cu", "cuda"), ("rocm", "rocm"), ("xpu", "xpu")):
        if local.startswith(prefix):
            return kind
    names = [
        normal_name(line.split(";")[0].split("[")[0].split("=")[0].split("<")[0].split(">")[0]) for line in requires
    ]
    if system == "Linux" and any(name.startswith(_CUDA_PREFIXES) for name in names):
        return "cuda"
    return "rocm" if system == "Linux" and any(name.startswith(_ROCM_PREFIXES) for name in names) else "cpu"


def _capability_reasons(gpus: list[Gpu], wanted: Mapping[str, Any] | None) -> list[str]:
    """Reasons against the best NVIDIA GPU here; one fitting GPU among several is enough."""
    if wanted is None:
        return []
    reasons: list[str] = []
    for gpu in gpus:
        if not gpu.arch:
            problem = "" if wanted.get("or_unknown") else f"the compute capability of {gpu.name} is unknown"
        elif "at_least" in wanted and numbers(gpu.arch) < numbers(wanted["at_least"]):
            problem = f"{gpu.name} has compute capability {gpu.arch}, below {wanted['at_least']}"
        elif "below" in wanted and numbers(gpu.arch) >= numbers(wanted["below"]):
            problem = f"{gpu.name} has compute capability {gpu.arch}, not below {wanted['below']}"
        else:
            problem = ""
        if not problem:
            return []
        reasons.append(problem)
    return reasons


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(str(number) for number in version)
