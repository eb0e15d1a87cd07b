"""Which dtype a stage runs in: by measurement, never by wish.

Without AVX512_BF16 or AMX a CPU runs bf16 many times slower than float32 (8 to 9 times for linears, 30 to 300 times for
conv3d), with them about twice as fast. The probe times both on this machine, and a stage takes bf16 only when its own
mixture of work gains.
"""

from __future__ import annotations

from accel import policy
from accel.contract import Backend
from accel.figures import figure, milliseconds
from accel.types import NO_STEPS, Choice, Gpu, Machine, Preferences, StageName, StageTraits

BF16_COST = "bf16 rounds more than fp32, so the picture differs slightly"
"""Said beside the choice of a precision, before anything is chosen."""

ROUNDING = f"{BF16_COST}: dtype=float32 gives fp32's"
"""Said wherever a lower precision was chosen for a person."""

MOST_STEPS = 1000


def best_dtype(
    machine: Machine, traits: StageTraits, gpu: Gpu | None, allowed: list[str]
) -> tuple[str, tuple[str, ...]]:
    """The fastest of the dtypes `allowed` that is safe for this stage, with the figures."""
    if len(allowed) == 1:
        return allowed[0], (f"{traits.class_name} is run in {allowed[0]} only",) if len(traits.dtypes) == 1 else ()
    if gpu is not None:
        return _gpu_dtype(machine, traits, gpu, allowed)
    if "bfloat16" not in allowed:
        return ("float32" if "float32" in allowed else allowed[0]), ()
    unproved = machine.why_unproved("bf16")
    if unproved:
        return "float32" if "float32" in allowed else allowed[0], (f"not bf16: {unproved}",)
    factor = gain(machine, traits)
    better = factor is not None and factor >= policy.WORTH
    if better or "float32" not in allowed:
        return "bfloat16", (*speed(machine, traits), ROUNDING)
    return "float32", speed(machine, traits)


def _gpu_dtype(machine: Machine, traits: StageTraits, gpu: Gpu, allowed: list[str]) -> tuple[str, tuple[str, ...]]:
    if traits.stage == "vae" and "float32" in allowed:
        return "float32", ("no figure supports less than float32 for decoding on a GPU yet",)
    task = f"gpu:{'mps' if gpu.vendor == 'apple' else gpu.index}"
    single, low = machine.figure(task, "linear_float32_ms"), machine.figure(task, "linear_bfloat16_ms")
    figures = (
        f"a product takes {milliseconds(low)} in bf16 and {milliseconds(single)} in fp32 on this GPU"
        if single and low
        else ""
    )
    if "bfloat16" in allowed and single and low and single / low >= policy.WORTH:
        return "bfloat16", (figures, ROUNDING)
    name = "float32" if "float32" in allowed else allowed[0]
    return name, (figures or "this GPU's speed in bf16 is not known yet",)


def gain(machine: Machine, traits: StageTraits) -> float | None:
    """How many times as fast this stage's work would be in bf16, from the machine's own tests weighed by the stage's
    work."""
    if traits.stage == "vae":
        return policy.gain(machine, "conv3d")
    linear, attention = policy.gain(machine, "linear"), policy.gain(machine, "attention")
    if linear is None or attention is None:
        return linear
    # floating point operations of one call; a product's rate in the test is taken for all its shapes
    products = 2 * traits.tokens * sum(item.out_features * item.in_features * item.count for item in traits.linears)
    scores = (
        4
        * traits.tokens
        * (traits.kv_tokens or traits.tokens)
        * traits.heads
        * traits.head_dim
        * traits.attention_calls
    )
    if products + scores == 0:
        return linear
    core = machine.figure("bf16", "linear_float32_ms"), machine.figure("bf16", "attention_float32_ms")
    # the tests: 512^3 product; 6 heads of 64, 512 tokens
    products_ms, scores_ms = (
        products / (2 * 512**3) * (core[0] or 0),
        scores / (4 * 512 * 512 * 6 * 64) * (core[1] or 0),
    )
    return (products_ms + scores_ms) / (products_ms / linear + scores_ms / attention)


def is_slow(machine: Machine, traits: StageTraits, gpu: Gpu | None) -> bool:
    """Whether this machine's own test of bf16 says that fp32 is faster for a stage on the CPU."""
    factor = gain(machine, traits) if gpu is None else None
    return factor is not None and factor < 1


def speed(machine: Machine, traits: StageTraits) -> tuple[str, ...]:
    """How fast bf16 is for a stage on this CPU, and the figures behind it, as sentences."""
    work = "conv3d" if traits.stage == "vae" else "linear"
    single, low = machine.figure("bf16", f"{work}_float32_ms"), machine.figure("bf16", f"{work}_bfloat16_ms")
    factor = gain(machine, traits)
    if not single or not low or factor is None:
        return ("bf16 has not been measured on this CPU, so float32 is safe",)
    how = f"{figure(factor)} times as fast as" if factor >= 1 else f"{figure(1 / factor)} times slower than"
    figures = [f"{work} {milliseconds(low)}, fp32 {milliseconds(single)}"]
    if traits.stage == "transformer" and (attention := machine.figure("bf16", "attention_bfloat16_ms")):
        plain = machine.figure("bf16", "attention_float32_ms") or 0
        figures.append(f"attention {milliseconds(attention)}, fp32 {milliseconds(plain)}")
    return f"bf16 is {how} fp32 here, by the machine's own test", "; ".join(figures)


def exact_steps(wishes: Preferences, stage: StageName, attention: Backend | None) -> tuple[Choice, str]:
    """How many of the first and of the last steps approximate `attention` leaves to an exact one, and why a wish can't
    be kept, empty when it can. Without a wish none are: an approximate backend was asked for."""
    wish = wishes.exact_steps
    if wish == NO_STEPS.requested or stage != "transformer":
        return NO_STEPS, ""
    if not (wish.isdecimal() and int(wish) <= MOST_STEPS):
        return NO_STEPS, f"exact_steps={wish} can't be used, allowed are auto and 0 to {MOST_STEPS}"
    if attention is None or attention.exact:
        return Choice(stage, "exact_steps", wish, "0", ("the attention is exact at every step",)), ""
    told = "asked for" if wishes.linear == "auto" else "asked for; linears stay as they are at every step"
    return Choice(stage, "exact_steps", wish, wish, (told,)), ""
