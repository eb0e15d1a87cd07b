"""Graphics processors: what the drivers show, what torch shows, and which of them this torch can really use.

Named by compute capability (sm_90) or chip (gfx950), never by the marketing name: "50" is in RTX 3050 too. A card that
the driver knows and torch does not show stays in the list with the reason, since that is the most common way to end up
slow without knowing it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from accel import advice
from accel.probing import cpu
from accel.probing.host import Host
from accel.types import Fact, Gpu, GpuVendor

SMI = ("nvidia-smi", "--query-gpu=name,compute_cap,memory.total,driver_version,uuid", "--format=csv,noheader,nounits")
KFD = "/sys/class/kfd/kfd/topology/nodes"
BUILDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "nvidia": ("cuda", ("CUDA_VISIBLE_DEVICES",)),
    "amd": ("rocm", ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
}
"""Vendor -> the torch build that can use its cards, the variables that hide them from it."""


@dataclass(frozen=True)
class Card:
    """A GPU as its driver shows it."""

    vendor: GpuVendor
    name: str
    arch: str
    memory: int
    driver: str
    uuid: str = ""


def assemble(
    host: Host, build: str, torch_version: str, cards: Sequence[Card], runs: Mapping[str, Any]
) -> tuple[Gpu, ...]:
    """Every GPU. `build` is torch's ("cpu", "cuda 13.0", "rocm 7.2", "" without torch); `cards` come from the
    drivers."""
    listing = runs.get("gpus", {})
    vendor: GpuVendor = "amd" if build.startswith("rocm") else "nvidia"
    left = list(cards)
    found = []
    for item in listing.get("gpus", ()):
        card = _take(left, vendor, item)
        arch = str(item["arch"]).split(":")[0]
        if card is not None and vendor == "amd" and "HSA_OVERRIDE_GFX_VERSION" in host.environ:
            arch = card.arch  # the driver can't be talked into another name
        runtime = build.replace("cuda", "CUDA").replace("rocm", "ROCm")
        code = has_code(arch, listing.get("arches", ()), torch_version)
        usable = _usable(code, runs.get(f"gpu:{item['index']}"), arch, str(item["arch"]).split(":")[0])
        driver = card.driver if card else ""
        found.append(Gpu(item["index"], vendor, item["name"], item["memory"], arch, driver, runtime, code, usable))
    found += [_unseen(host, card, build, torch_version, runs) for card in left]
    return (*found, *_apple(host, listing, runs))


def has_code(arch: str, arches: Sequence[str], torch_version: str) -> Fact:
    """Whether a torch build with code for `arches` can run on `arch`.

    NVIDIA: code for sm_80 also runs on 8.6 and 8.9 (same major, same or higher minor), code for sm_90a on 9.0 alone,
    and compute_90 is an intermediate form that any newer chip compiles for itself. AMD: the exact chip.
    """
    source = "torch's list of architectures"
    if arch.startswith("gfx"):
        fits = arch in {item.split(":")[0] for item in arches}
    else:
        want = _capability(arch)
        fits = want is not None and any(_runs_on(item, want) for item in arches)
    listed = ", ".join(arches) or "none"
    if fits:
        return Fact(True, f"torch {torch_version} has code for {arch}", source)
    return Fact(False, f"this torch build ({torch_version}) has no {arch} code, only {listed}", source)


def _capability(arch: str) -> tuple[int, int] | None:
    match = re.fullmatch(r"(?:sm|compute)_(\d+)(\d)[af]?", arch)
    return (int(match[1]), int(match[2])) if match else None


def _runs_on(code: str, chip: tuple[int, int]) -> bool:
    have = _capability(code)
    if have is None:
        return False
    if code.endswith("a"):
        return have == chip
    if code.startswith("compute_"):
        return have <= chip
    return have[0] == chip[0] and have[1] <= chip[1]


def _usable(code: Fact, run: Mapping[str, Any] | None, arch: str, claimed: str) -> Fact:
    child = "a run in a child process"
    if arch != claimed:
        reason = f"HSA_OVERRIDE_GFX_VERSION makes this {arch} claim to be {claimed}; unset it to use the GPU"
        return Fact(False, reason, "the kernel driver")
    if code.value is False:
        return Fact(False, f"{code.reason}: {advice.torch_for(arch)}", code.source)
    if run is None:
        return Fact(False, "not tried yet", child)
    return (
        Fact(bool(run["ok"]), f"a small product {run['reason']}", child)
        if run["ok"]
        else Fact(False, run["reason"], child)
    )


def _take(cards: list[Card], vendor: GpuVendor, item: Mapping[str, Any]) -> Card | None:
    """Removes and returns the driver's card for what torch lists as `item`: by its serial number, else the next of its
    chip."""
    same = [card for card in cards if card.vendor == vendor]
    serial = str(item.get("uuid", "")).removeprefix("GPU-")
    arch = str(item["arch"]).split(":")[0]
    exact = [card for card in same if serial and card.uuid.removeprefix("GPU-") == serial]
    chosen = next(iter([*exact, *(card for card in same if card.arch == arch), *same]), None)
    if chosen is not None:
        cards.remove(chosen)
    return chosen


def _unseen(host: Host, card: Card, build: str, torch_version: str, runs: Mapping[str, Any]) -> Gpu:
    """A card that its driver shows and torch does not."""
    wanted, hiders = BUILDS[card.vendor]
    hidden = next((name for name in hiders if name in host.environ), None)
    if not build:
        reason = "torch is not installed"
    elif not build.startswith(wanted):
        reason = f"torch {torch_version} is built for {build} and can't use it: {advice.torch_for(card.arch)}"
    elif hidden:
        reason = f"hidden from torch by {hidden}={host.environ[hidden]}; unset it to use the GPU"
    elif "gpus" not in runs:
        reason = "not tried yet"
    else:
        why = (
            runs["gpus"]["reason"] if not runs["gpus"]["ok"] else "the driver may be older than this torch build needs"
        )
        reason = f"torch does not show it: {why}"
    code = Fact(None, "not known, torch does not show this GPU", "torch")
    return Gpu(
        -1, card.vendor, card.name, card.memory, card.arch, card.driver, "", code, Fact(False, reason, "the driver")
    )


def _apple(host: Host, listing: Mapping[str, Any], runs: Mapping[str, Any]) -> tuple[Gpu, ...]:
    if host.system != "darwin" or host.arch != "aarch64":
        return ()
    name = f"{cpu.read(host).model} GPU"
    memory = int(listing.get("mps_memory", 0)) or host.number("memory") or 0
    if not listing.get("mps"):
        why = "torch does not offer Metal (MPS) here" if listing else "not tried yet"
        nothing = Fact(False, why, "torch")
        return (Gpu(-1, "apple", name, memory, "mps", "", "Metal", nothing, nothing),)
    code = Fact(True, "torch offers Metal (MPS)", "torch")
    return (Gpu(0, "apple", name, memory, "mps", "", "Metal", code, _usable(code, runs.get("gpu:mps"), "mps", "mps")),)


# -- the drivers' own view --


def nvidia(text: str | None) -> list[Card]:
    """Cards from nvidia-smi's table (memory in MiB)."""
    cards = []
    for line in (text or "").splitlines():
        words = [word.strip() for word in line.split(",")]
        if len(words) == 5 and re.fullmatch(r"\d+\.\d", words[1]):
            memory = int(words[2]) * 2**20 if words[2].isdigit() else 0
            cards.append(Card("nvidia", words[0], f"sm_{words[1].replace('.', '')}", memory, words[3], words[4]))
    return cards


def amd(host: Host) -> list[Card]:
    """Cards from the kernel's own list of compute nodes; processors stand there too, without a chip version."""
    driver = (host.read("/sys/module/amdgpu/version") or "").strip()
    cards = []
    for path in host.glob(f"{KFD}/*/properties"):
        fields = dict(re.findall(r"^(\w+) (\d+)$", host.read(path) or "", re.MULTILINE))
        version = int(fields.get("gfx_target_version", 0))
        if version:
            node = path.rpartition("/")[0]
            bank = dict(re.findall(r"^(\w+) (\d+)$", host.read(f"{node}/mem_banks/0/properties") or "", re.MULTILINE))
            arch = f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"
            cards.append(Card("amd", f"AMD {arch}", arch, int(bank.get("size_in_bytes", 0)), driver))
    return cards


def fingerprint(host: Host) -> str:
    """Changes when a card or a driver does; cheap, runs no command."""
    drivers = [host.read("/proc/driver/nvidia/version") or "", host.read("/sys/module/amdgpu/version") or ""]
    places = [*host.glob("/proc/driver/nvidia/gpus/*/information"), *(card.arch for card in amd(host))]
    return " ".join((*drivers, *places))
