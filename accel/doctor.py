"""The doctor: what you have, what will be used, what is missing and what to do about it, in sentences.

It renders facts and choices that others made (Machine, Plan) and decides nothing. Every sentence stands in the JSON
form as well.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accel import advice, precision
from accel.backends import REGISTRY, amx_attention, amx_bf16, amx_int8, backend, reference
from accel.figures import gib, milliseconds
from accel.plan import make_plan
from accel.probe import PATIENCE, probe
from accel.readouts import ranking, store
from accel.readouts.results import GAIN
from accel.readouts.words import capital
from accel.types import (
    Gpu,
    Kind,
    LinearShape,
    Machine,
    ModelTraits,
    Override,
    Plan,
    Preferences,
    StageName,
    StagePlan,
    StageTraits,
)

HAVE, USE, MISSING, COULD = (
    "What you have",
    "What will be used",
    "What is missing, and what to do",
    "What you could turn on",
)
NOTHING = "Nothing that clips need; whatever is not installed is optional."

TYPICAL = ModelTraits(
    "a model of Wan 2.1's kind (1.3 billion parameters, 832 x 480, 17 frames)",
    "WanPipeline",
    (
        StageTraits(
            "text_encoder",
            "UMT5EncoderModel",
            ("float32", "bfloat16"),
            heads=64,
            head_dim=64,
            tokens=512,
            kv_tokens=512,
            linears=(LinearShape(4096, 4096, 96), LinearShape(10240, 4096, 48), LinearShape(4096, 10240, 24)),
        ),
        StageTraits(
            "transformer",
            "WanTransformer3DModel",
            ("float32", "bfloat16", "float16"),
            parameters=1_420_000_000,
            heads=12,
            kv_heads=12,
            head_dim=128,
            tokens=7800,
            kv_tokens=7800,
            attention_calls=60,
            reachable=True,
            linears=(LinearShape(1536, 1536, 240), LinearShape(8960, 1536, 30), LinearShape(1536, 8960, 30)),
        ),
        StageTraits("vae", "AutoencoderKLWan", ("float32", "bfloat16", "float16"), conv3d=60, channels=96),
    ),
)
"""What the plan is shown for when no model is loaded: shapes from Wan 2.1's public configuration."""

SGL_TASKS = tuple(
    f"sgl_kernel.{name}" for name in (amx_attention.OPERATOR, amx_bf16.OPERATORS[1], amx_int8.OPERATORS[1])
)
STAGE_TITLES = {"text_encoder": "Text encoder", "transformer": "Transformer", "vae": "VAE (latents to frames)"}
DTYPE_TITLES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
KINDS: tuple[Kind, ...] = ("attention", "linear", "vae")
WORK: dict[Kind, str] = {"attention": "this model's attention", "linear": "this model's linears", "vae": "its decoding"}


Measured = Mapping[tuple[StageName, Kind, str], ranking.Figures]
"""What a benchmark of this machine found for a model, by stage, kind and backend."""


def sections(
    machine: Machine, plan: Plan, traits: ModelTraits = TYPICAL, measured: Measured | None = None
) -> dict[str, list[str]]:
    """Heading -> sentences about what `plan` makes of `traits`. An empty list means that there is nothing to say."""
    return {
        HAVE: _have(machine),
        USE: _use(plan),
        MISSING: _missing(machine),
        COULD: _could(machine, plan, traits, measured or {}),
    }


def sentences(
    machine: Machine, plan: Plan, traits: ModelTraits = TYPICAL, measured: Measured | None = None
) -> list[str]:
    """The report as lines of text: headings, and sentences indented under them."""
    lines: list[str] = []
    for heading, items in sections(machine, plan, traits, measured).items():
        if not items and heading == COULD:
            continue
        lines += [heading, *(f"  {item}" for item in items or [NOTHING]), ""]
    return lines[:-1]


def as_data(
    machine: Machine, plan: Plan, traits: ModelTraits = TYPICAL, measured: Measured | None = None
) -> dict[str, Any]:
    """The same as data: the sentences and all facts and choices behind them."""
    names = {HAVE: "have", USE: "use", MISSING: "missing", COULD: "could"}
    told = {names[heading]: items for heading, items in sections(machine, plan, traits, measured).items()}
    return {**told, "machine": machine.to_dict(), "plan": plan.to_dict()}


def main(
    as_json: bool = False,
    traits: ModelTraits = TYPICAL,
    preferences: Preferences | None = None,
    patience: float = PATIENCE,
    write: Callable[[str], Any] = print,
    results: Path | None = None,
    model: str = "",
) -> int:
    """Probes this machine and writes the report. patience: seconds that tests may take in all, see `probe`. results:
    the folder of readouts, accel's own if None; model: the name under which its quality was measured.

    Returns 0; raises PlanError when a preference can't be kept.
    """
    machine = probe(patience=patience)
    found = store.load(machine, results).current
    plan = make_plan(machine, traits, preferences, readouts=ranking.for_model(found, traits, model))
    told = (machine, plan, traits, ranking.figures(found, traits))
    if as_json:
        write(json.dumps(as_data(*told), indent=2))
    else:
        write("\n".join(_wrapped(sentences(*told))))
    return 0


def _wrapped(lines: list[str]) -> list[str]:
    """Lines broken at the terminal's width, at most 100 columns, so that they can be read; data stays unbroken."""
    width = min(100, shutil.get_terminal_size().columns)
    wrapped: list[str] = []
    for line in lines:
        indent = " " * (len(line) - len(line.lstrip()) + 2)
        wrapped += textwrap.wrap(
            line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
        ) or [""]
    return wrapped


# -- what you have --


def _have(machine: Machine) -> list[str]:
    cpu, cores, memory = machine.cpu, machine.cores, machine.memory
    name = cpu.model if cpu.vendor.lower() in cpu.model.lower() else f"{cpu.vendor} {cpu.model}"
    lines = [f"Processor: {name}, {machine.arch}, {_count(cores.logical, 'CPU')} ({_count(cores.physical, 'core')})."]
    if cores.usable < cores.physical:
        lines.append(f"Of these, {_count(cores.usable, 'core')} may be used: {cores.reason}.")
    lines += _flags(machine)
    lines.append(f"Memory: {gib(memory.usable)}." if memory.usable else f"Memory: {memory.reason}.")
    if memory.usable < memory.total:
        lines[-1] = f"Memory: {gib(memory.usable)} of {gib(memory.total)}: {memory.reason}."
    if len(machine.numa) > 1:
        lines.append(f"Memory lies in {len(machine.numa)} NUMA nodes.")
    lines += [_gpu(gpu) for gpu in machine.gpus] or ["Graphics processor: none was found."]
    there = [package for package in machine.packages.values() if package.installed and package.importable]
    lines.append("Packages: " + (", ".join(map(_package, there)) or "none that work, see below") + ".")
    lines += map(_override, machine.overrides)
    return lines + [f"Note: {problem}." for problem in machine.problems]


def _override(item: Override) -> str:
    return f"{item.name}{f'={item.value} is set' if item.value else ' is set to nothing'}: it {item.effect}."


def _package(package: Any) -> str:
    build = f" ({package.build})" if package.build and package.build not in package.version else ""
    return f"{package.name} {package.version}{build}"


def _flags(machine: Machine) -> list[str]:
    usable = [name for name, flag in machine.cpu.flags.items() if flag.usable]
    claimed = {name: flag for name, flag in machine.cpu.flags.items() if flag.advertised and not flag.usable}
    lines = [f"Instructions that were tried and work: {', '.join(usable)}."] if usable else []
    if claimed and all("not tried yet" in flag.reason for flag in claimed.values()):
        return [*lines, f"Instructions it advertises, not tried yet: {', '.join(claimed)}."]
    together: dict[str, list[str]] = {}
    for name, flag in claimed.items():
        reason = flag.reason.removeprefix(f"{name} is advertised, ").removeprefix("but ").removeprefix("not usable: ")
        together.setdefault(reason, []).append(name)
    return lines + [f"Advertised, not in use: {', '.join(names)}; {reason}." for reason, names in together.items()]


def _gpu(gpu: Gpu) -> str:
    driver = f", driver {gpu.driver}" if gpu.driver else ""
    state = "tried and works" if gpu.usable.value is True else "not usable, see below"
    return f"Graphics processor: {gpu.name} ({gpu.arch}, {gib(gpu.memory)}{driver}), {state}."


# -- what will be used --


def _use(plan: Plan) -> list[str]:
    """Each stage in one line, the deciding reasons below it; all reasons stand in the plan."""
    lines = [f"For {plan.family}:" if " " in plan.family else f"For the model {plan.family}:"]
    for stage in plan.stages:
        lines.append(f"{STAGE_TITLES[stage.stage]}: {_summary(stage)}.")
        lines += [f"  {capital(reason)}." for reason in _reasons(stage)]
    if any(precision.ROUNDING in stage.dtype.reasons for stage in plan.stages):
        lines.append(f"{capital(precision.ROUNDING)}.")
    counted, waiting = "; ".join(plan.threads.reasons), capital("; ".join(plan.waiting.reasons))
    lines.append(f"Threads: {plan.threads.engaged} ({counted}). {waiting}.")
    return lines


def _summary(stage: StagePlan) -> str:
    device = "on the CPU" if stage.device.engaged == "cpu" else f"on the GPU ({stage.device.engaged})"
    parts = [f"{device} in {DTYPE_TITLES.get(stage.dtype.engaged, stage.dtype.engaged)}"]
    for kind in KINDS:
        name = getattr(stage, kind).engaged
        if name not in ("stock", ""):
            parts.append(f"{backend(kind, name).title} ({name})")
    return f"{parts[0]}, with " + (" and ".join(parts[1:]) or "the model's own code")


def _reasons(stage: StagePlan) -> list[str]:
    """The deciding reason for the precision, for each backend that is not the reference, for attention that can't be
    exchanged and for threads that are left out."""
    choices = [stage.dtype]
    for kind in KINDS:
        choice = getattr(stage, kind)
        unreached = kind == "attention" and stage.stage == "transformer" and choice.engaged == "stock"
        if unreached or choice.engaged not in ("stock", reference(kind).name) or choice.requested != "auto":
            choices.append(choice)
    told = [choice.reasons[0] for choice in choices if choice.reasons and choice.reasons[0] != "asked for"]
    threads = stage.threads
    return told + ([f"{threads.engaged} threads: {threads.reasons[0]}"] if "test" in threads.reasons[0] else [])


# -- what is missing --


def _missing(machine: Machine) -> list[str]:
    lines = [f"{sentence}." for sentence in machine.unused_gpus()]
    for package in machine.packages.values():
        if package.name in ("torch", "diffusers") and not package.installed:
            lines.append(f"{package.name} is not installed: `{advice.pip('install', package.distribution)}`.")
        elif package.installed and not package.importable and package.unsettled != "untried":
            lines.append(f"{package.reason}.{'' if package.unsettled else _remedy(package.name)}")
    lines += _amx(machine) + _for_gpus(machine)
    short = [task for task, proof in machine.proofs.items() if proof.untried == "time"]
    if short:
        lines.append(f"Not tried yet, for want of time: {', '.join(short)}. The next start goes on with them.")
    slow = [f"{task}: {proof.reason}." for task, proof in machine.proofs.items() if proof.untried == "compiling"]
    return lines + slow


def _remedy(name: str) -> str:
    if name == "aiter":
        return f" Uninstall it: {advice.AITER}."
    return (
        " Install the release made for your torch, or uninstall it; everything works without."
        if name == "sgl_kernel"
        else ""
    )


def _amx(machine: Machine) -> list[str]:
    cpu, kernels = machine.cpu, machine.packages.get("sgl_kernel")
    if not cpu.advertises("amx_tile"):
        return []
    if not cpu.usable("amx_bf16"):
        reason = cpu.why_not("amx_bf16") or cpu.why_not("amx_tile")
        lies = " On a virtual machine this is for its host to mend; until then everything runs without AMX."
        return [f"{reason}.{lies if 'killed' in reason else ''}"]
    if machine.usable_gpus():
        return []
    if kernels is None or not kernels.installed:
        return [f"Optional: attention and int8 linears on AMX through SGLang's kernels. {advice.SGL_CPU}."]
    failed = [proof.reason for task in SGL_TASKS if (proof := machine.proofs.get(task)) and not proof.ok]
    if kernels.importable and kernels.build == "cuda":
        return [f"The sgl_kernel that is installed is the CUDA build, which this CPU can't use. {advice.SGL_CPU}."]
    return [f"sgl_kernel: {reason}." for reason in failed] if kernels.build == "cpu" else []


def _for_gpus(machine: Machine) -> list[str]:
    arches = {gpu.arch for gpu in machine.usable_gpus()}
    packages = machine.packages
    lines = []
    if "sm_90" in arches and not packages["sgl_kernel"].installed:
        lines.append(f"Optional: FlashAttention-3 for Hopper GPUs: {advice.SGL_HOPPER}.")
    if arches & {"gfx942", "gfx950"} and not packages["aiter"].installed:
        lines.append(f"Optional: AMD's attention kernels. {advice.AITER}.")
    return lines


def _could(machine: Machine, plan: Plan, model: ModelTraits, measured: Measured) -> list[str]:
    """Approximate backends that can run here and did not prove slower: theirs is a person's choice. What a benchmark
    found for this model counts more than the small test of one product."""
    lines = []
    for item in REGISTRY:
        stage = plan.stage("vae" if item.kind == "vae" else "transformer")
        if item.exact or stage is None or getattr(stage, item.kind).engaged == item.name:
            continue
        place = "cpu" if stage.device.engaged == "cpu" else stage.device.engaged.partition(":")[0]
        traits = model.stage(stage.stage)
        before, after = _linear_ms(machine, item.name, stage.dtype.engaged)
        slower = before is not None and after is not None and after >= before
        told = _small_test(before, after)
        if (made := measured.get((stage.stage, item.kind, item.name))) is not None:
            slower = made.speedup < GAIN
            told = f"; the benchmark of this machine found {WORK[item.kind]} {made.speedup:.2f} times as fast with it"
        if traits is None or place not in item.devices or slower or item.why_not(machine, traits):
            continue
        lines.append(f"{item.title}: add `--accel {item.kind}={item.name}`{told}.")
    return lines


def _small_test(before: float | None, after: float | None) -> str:
    if not before or not after:
        return ""
    times = f"one small linear takes {milliseconds(after)} instead of {milliseconds(before)}"
    return f"; {times}, and a benchmark tells what a clip gains"


def _linear_ms(machine: Machine, name: str, dtype: str) -> tuple[float | None, float | None]:
    """One linear in the plan's dtype, and with the approximate backend; None where the machine's tests don't tell."""
    if name == "sgl_amx_int8":
        return (machine.figure(SGL_TASKS[2], "linear_plain_ms"), machine.figure(SGL_TASKS[2], "linear_int8_ms"))
    if name != "dynamic_int8":
        return None, None
    task = "bf16" if dtype == "bfloat16" else "int8"
    return machine.figure(task, f"linear_{dtype}_ms"), machine.figure("int8", "linear_int8_ms")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _command_line() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m accel.doctor", description="What this machine has and what of it is used."
    )
    parser.add_argument("--json", action="store_true", help="the report as data, with all facts and choices")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, help="seconds the tests may take (default %(default)s)"
    )
    options = parser.parse_args()
    return main(as_json=options.json, patience=options.patience)


if __name__ == "__main__":
    sys.exit(_command_line())
