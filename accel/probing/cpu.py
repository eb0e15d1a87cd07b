"""The processor: who made it, what it is called, which features it claims. One reader per operating system.

A claim is not yet a fact: a virtual machine can advertise AMX with no usable tile palette, and the first product then
kills the process (oneDNN issue 5689). `accel.probing.verdict` turns claims into usable flags by what the child
processes did.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from accel.probing.host import Host

FLAGS = {
    "x86_64": (
        "avx2",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_bf16",
        "amx_int8",
        "amx_fp16",
    ),
    "aarch64": ("neon", "sve", "sve2", "bf16", "i8mm", "sme"),
}
"""The features that decide something here, per architecture; the names Linux uses, on every system."""

VENDORS = {"GenuineIntel": "Intel", "AuthenticAMD": "AMD", "HygonGenuine": "Hygon", "0x41": "Arm", "0x61": "Apple"}

# Arm's part numbers (MIDR_EL1), for the server chips a Linux reader can meet
ARM_PARTS = {
    "0xd0c": "Neoverse-N1",
    "0xd40": "Neoverse-V1",
    "0xd49": "Neoverse-N2",
    "0xd4f": "Neoverse-V2",
    "0xd83": "Neoverse-V3",
}


@dataclass(frozen=True)
class Claim:
    """What the system says of its CPU. `identity` tells two CPUs of the same name apart."""

    vendor: str
    model: str
    flags: frozenset[str]
    identity: str
    source: str


def read(host: Host) -> Claim:
    """The claim of this machine. A system without a reader gives an empty one, which nothing is built upon."""
    reader = READERS.get(host.system)
    if reader is None:
        return Claim("unknown", "unknown", frozenset(), host.arch, f"no reader for {host.system or 'this system'}")
    return reader(host)


def _linux(host: Host) -> Claim:
    text = host.read("/proc/cpuinfo") or ""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    words = set((fields.get("flags") or fields.get("Features") or "").split())
    if "asimd" in words:
        words.add("neon")
    maker = fields.get("vendor_id") or fields.get("CPU implementer", "")
    part = fields.get("CPU part", "")
    model = fields.get("model name") or ARM_PARTS.get(part) or (f"part {part}" if part else "unknown")
    identity = " ".join(fields.get(key, "") for key in ("cpu family", "model", "stepping", "CPU variant", "CPU part"))
    return Claim(VENDORS.get(maker, maker or "unknown"), model, frozenset(words), identity, "/proc/cpuinfo")


# sysctl's names for what Linux calls otherwise
_MAC_ARM = {
    "hw.optional.arm.AdvSIMD": "neon",
    "hw.optional.neon": "neon",
    "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_I8MM": "i8mm",
    "hw.optional.arm.FEAT_SME": "sme",
}
_MAC_INTEL = {"AVX2": "avx2", "AVX512F": "avx512f", "AVX512BW": "avx512bw", "AVX512VNNI": "avx512_vnni"}


def sysctl(host: Host) -> dict[str, str]:
    """`sysctl -a` of the two trees that describe hardware, as a dictionary."""
    text = host.run("sysctl", "hw", "machdep.cpu") or ""
    pairs = (re.split(r"[:=]\s*", line, maxsplit=1) for line in text.splitlines())
    return {pair[0].strip(): pair[1].strip() for pair in pairs if len(pair) == 2}


def _darwin(host: Host) -> Claim:
    known = sysctl(host)
    flags = {flag for name, flag in _MAC_ARM.items() if known.get(name) == "1"}
    words = f"{known.get('machdep.cpu.features', '')} {known.get('machdep.cpu.leaf7_features', '')}".split()
    flags |= {_MAC_INTEL[word] for word in words if word in _MAC_INTEL}
    model = known.get("machdep.cpu.brand_string", "unknown")
    vendor = "Apple" if model.startswith("Apple") else VENDORS.get(known.get("machdep.cpu.vendor", ""), "unknown")
    return Claim(vendor, model, frozenset(flags), known.get("hw.cpufamily", ""), "sysctl")


def _windows(host: Host) -> Claim:
    key = r"HKLM\HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    text = host.run("reg", "query", key) or ""
    fields = dict(re.findall(r"^\s+(\S+)\s+REG_SZ\s+(.*?)\s*$", text, re.MULTILINE))
    flags = {flag for flag in ("avx2", "avx512f", "neon", "sve") if host.number(f"windows_{flag}")}
    maker, identity = fields.get("VendorIdentifier", ""), fields.get("Identifier", "")
    model = fields.get("ProcessorNameString", "unknown")
    return Claim(VENDORS.get(maker, maker or "unknown"), model, frozenset(flags), identity, "the registry")


READERS: dict[str, Callable[[Host], Claim]] = {"linux": _linux, "darwin": _darwin, "windows": _windows}

# torch.cpu.get_capabilities() spells some features with an extra underscore
TORCH_SPELLING = {"avx512_f": "avx512f", "avx512_bw": "avx512bw"}


def claims_of_torch(abilities: str) -> frozenset[str]:
    """Features that torch's own CPU reader names; fills in where a system has no complete list (Windows)."""
    return frozenset(TORCH_SPELLING.get(word, word) for word in abilities.split())
