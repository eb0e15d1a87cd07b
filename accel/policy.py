"""Which backend is preferred where: one table, in order, each row with the figures behind it. `python -m accel.policy`
prints it.

The figures are milliseconds, medians of one process, on 16 vCPU of Emerald Rapids with torch 2.11
unless a row says otherwise. They stand until readouts of the machine at hand exist, which then decide
(`make_plan(readouts=...)`). Approximate backends (int8, FP8) are in no row: they are for a person to ask for.
"""

from __future__ import annotations

from dataclasses import dataclass

from accel.figures import milliseconds
from accel.types import Gpu, Kind, Machine, StageTraits

LONG = 4096
"""Tokens from which a shape counts as long. The figures are for 2048 and for 7800 tokens; the border lies between
them."""

FLASH = 16384
"""Tokens from which FlashAttention-3 is taken on Hopper: between the 7800 and the 32760 that were measured."""

WORTH = 1.1
"""A lower precision is taken only when it is at least this much faster than float32 in the machine's own test."""

SLOWER = 1.25
"""What the table prefers is passed over only when it is this much slower in the machine's own test. That test's spread
is 10 % on a busy machine: with a smaller margin the choice, hence the clip, would change from one first start to the
next."""

SMALL = 10**9
"""Multiplications in a transformer's largest linear up to which it counts as small: three times those of the probe's
test of threads."""

FEWER = 1.15
"""Fewer threads than there are cores are taken only when the machine's own test gains at least this much by it."""


@dataclass(frozen=True)
class Rule:
    """The order of preference for one kind of work on one class of hardware. "*" fits every class or shape.

    why: the reason for the first of the order, as a clause for a person; figures: what it rests on. least: tokens below
    which it does not count.
    """

    hardware: str
    kind: Kind
    shape: str
    order: tuple[str, ...]
    why: str
    figures: str
    least: int = 0


PACKED = "weights packed once are faster than weights reordered at each call"
UNKNOWN = "nothing faster is known for this hardware"

RULES = (
    Rule(
        "cpu-amx",
        "attention",
        "long",
        ("sgl_amx", "sdpa"),
        "SGLang's kernel is the fastest known on AMX for this many tokens",
        "7800 tokens, 12 x 128: sgl_amx 126 ms, sdpa 134 ms",
    ),
    Rule(
        "cpu-amx",
        "attention",
        "short",
        ("sdpa",),
        "PyTorch uses AMX too, and nothing is faster for this few tokens",
        "2048 tokens, 12 x 128: sdpa 8.7 ms, sgl_amx 8.6 ms",
    ),
    Rule(
        "cpu-amx",
        "linear",
        "long",
        ("stock", "onednn_bf16", "sgl_amx_bf16"),
        "PyTorch uses AMX too, and packing gains nothing for this many tokens",
        "the linears of one Wan 1.3B block at 7800 rows: stock bf16 176 ms, onednn_bf16 185 ms, sgl_amx_bf16 192 ms",
    ),
    Rule(
        "cpu-amx",
        "linear",
        "small",
        ("stock", "onednn_bf16", "sgl_amx_bf16"),
        "a packed linear costs more at each call than so small a product takes",
        "the starter's clip on 16 cores, denoising: stock bf16 1.34 s, fp32 1.45 s, onednn_bf16 4.61 s",
    ),
    Rule(
        "cpu-amx",
        "linear",
        "short",
        ("onednn_bf16", "sgl_amx_bf16", "stock"),
        PACKED,
        "2048 x 384 x 1536: onednn_bf16 0.46 ms, sgl_amx_bf16 0.56 ms, stock bf16 0.64 ms",
    ),
    Rule(
        "cpu-bf16",
        "linear",
        "*",
        ("onednn_bf16", "stock"),
        PACKED,
        "520 x 320 x 1024 on one core of Zen 4: onednn_bf16 1.63 ms, stock bf16 1.95 ms; 512 x 4096 x 4096: 77.5 ms, "
        "81.6 ms",
    ),
    Rule(
        "cpu-*",
        "vae",
        "*",
        ("bf16_channels_last", "direct_conv3d", "stock"),
        "convolutions handed to oneDNN directly are several times as fast as those PyTorch chooses for a video decoder",
        "conv3d of 96 channels: bf16 channels last 61 ms, bf16 110 ms, fp32 289 ms; Wan VAE decode in fp32 on 2 cores "
        "of Zen 3: direct 5.5x as fast as stock at base width 16, 1.25x at 48",
    ),
    Rule(
        "cpu-*",
        "linear",
        "*",
        ("stock",),
        "packing gains nothing in fp32",
        "packed fp32 linears: 0.99x in a whole small transformer",
    ),
    Rule(
        "sm_90",
        "attention",
        "*",
        ("fa3", "sdpa"),
        "FlashAttention-3 is the fastest known on Hopper in bf16",
        "32760 tokens, 40 x 128 on an H200: fa3 31.9 ms, sdpa 38.1 ms",
        least=FLASH,
    ),
    Rule(
        "sm_90",
        "attention",
        "*",
        ("sdpa",),
        "FlashAttention-3 gains nothing for this few tokens, and its calls take longer to start",
        "7800 tokens, 12 x 128 on an H200: fa3 0.74 ms, sdpa 0.73 ms; 512 keys: 0.24 ms, 0.09 ms; the starter's "
        "denoising: 0.63 s, 0.50 s",
    ),
    Rule("*", "attention", "*", ("sdpa",), UNKNOWN, "the reference"),
    Rule("*", "linear", "*", ("stock",), UNKNOWN, "the reference"),
    Rule("*", "vae", "*", ("stock",), UNKNOWN, "the reference"),
)

FP8 = "fp8"
FP8_ATTENTION = ("fa3_fp8", "aiter_fmha_fp8", "aiter_mla_fp8")
"""What `attention=fp8` stands for: the first of these that can run. aiter's FMHA neither pads heads nor asks for a
multiple of 8 of them, so its MLA is for releases without."""

COMPILE = (
    "compiling pays off only over many steps: a first run of a decoder took 65 s on 2 CPU cores; on an H200 compiled "
    "blocks took 2.18 s a forward against 2.65 s"
)

FUSED = (
    "FP8 linears take what fused passes hand over: norms, gelu and rotations are read and written once, and nothing "
    "has to be compiled"
)
"""Why `auto` fuses blocks wherever FP8 linears are engaged and the blocks have a fused form."""


def hardware(machine: Machine, gpu: Gpu | None) -> str:
    """The class of hardware a stage runs on, as RULES name it: "cpu-amx", "cpu-bf16", "cpu-fp32", "sm_90", "gfx950",
    "mps"."""
    if gpu is not None:
        return gpu.arch
    if machine.cpu.usable("amx_bf16"):
        return "cpu-amx"
    return "cpu-bf16" if (gain(machine, "linear") or 0.0) >= WORTH else "cpu-fp32"


def gain(machine: Machine, work: str) -> float | None:
    """How many times as fast bf16 is as float32 on this CPU, by the machine's own test; None when there is no figure.

    work: "linear", "attention" or "conv3d".
    """
    single = machine.figure("bf16", f"{work}_float32_ms")
    low = machine.figure("bf16", f"{work}_bfloat16_ms")
    return single / low if single and low else None


def shapes(traits: StageTraits) -> tuple[str, ...]:
    """The shapes of RULES that a stage has: "long" or "short", and "small" beside that."""
    small = traits.stage == "transformer" and 0 < _largest(traits) <= SMALL
    return ("long" if traits.tokens >= LONG else "short", *(("small",) if small else ()))


def _largest(traits: StageTraits) -> int:
    """Multiplications in the largest linear, 0 where none is known."""
    return max((traits.tokens * item.out_features * item.in_features for item in traits.linears), default=0)


def rule_for(hardware: str, kind: Kind, traits: StageTraits) -> Rule:
    """The first row that fits. There always is one."""
    has = ("*", *shapes(traits))
    for rule in RULES:
        fits = rule.hardware in ("*", hardware) or (rule.hardware == "cpu-*" and hardware.startswith("cpu-"))
        if fits and rule.kind == kind and rule.shape in has and traits.tokens >= rule.least:
            return rule
    raise LookupError(f"no rule for {kind} on {hardware}")


def best_threads(machine: Machine, traits: StageTraits, dtype: str, most: int) -> tuple[int, str]:
    """How many of `most` threads serve a stage best, and why.

    Handing work to a thread and waiting for it takes some microseconds each. A small model has hundreds of such moments
    in one forward and little to hand out, so many threads can be slower than few.
    """
    times = {count: ms for count in range(1, most + 1) if (ms := machine.figure("threads", f"{dtype}_{count}_ms"))}
    if "small" not in shapes(traits) or most not in times:
        return most, "all of them" if most > 1 else "the only one"
    best = min(times, key=lambda count: times[count])
    quick, slow = milliseconds(times[best]), milliseconds(times[most])
    told = f"a small transformer block takes {quick} with {best}, {slow} with {most}"
    if times[most] < times[best] * FEWER:
        return most, f"all of them; {told} by the machine's own test" if best != most else "all of them"
    return best, f"{told} by the machine's own test"


def printed() -> str:
    """The table as text."""
    rows = [
        f"{rule.hardware:9} {rule.kind:10} {rule.shape:6} {' > '.join(rule.order)}\n    {rule.why}\n    {rule.figures}"
        for rule in RULES
    ]
    return "\n".join(rows)


if __name__ == "__main__":
    print(printed())
