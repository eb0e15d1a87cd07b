"""How fast plain diffusers and ours are on this machine, in turns: `python -m accel.bench`.

Every contender has a process of its own and is asked in turn; a first run warms up and is not counted. Told are medians
with their spread, and the relative error against plain float32. Random weights stand for the large models, cut down to
what memory and time allow.

    python -m accel.bench --model app/starter/weights              everything, in at most eight minutes
    python -m accel.bench clip busy --model app/starter/weights    two sections
    python -m accel.bench step-1.3b --contenders plain-bf16,auto,compiled --json out.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accel.benching.sections import NEEDS_MODEL, SECTIONS, Section, Settings, names
from accel.benching.work import CONTENDERS
from accel.probe import probe

BUDGET = 450.0
PATIENCE = 30.0
SETTINGS = ("attention", "linear", "vae", "compile", "cache")


def measure(
    settings: Settings, wanted: Sequence[str], budget: float, tell: Callable[[str], Any] = lambda text: None
) -> dict[str, Any]:
    """Runs the sections one after another within about `budget` seconds: {"machine", "sections": {name: Section}}.

    Time that one section leaves over goes to the next. `tell` gets each section as text once it is done.
    """
    left, until = list(wanted), time.monotonic() + budget
    done: dict[str, Section] = {}
    while left:
        name = left[0]
        share, run = SECTIONS[name]
        now = time.monotonic()
        end = now + (until - now) * share / sum(SECTIONS[other][0] for other in left)
        done[name] = {**run(settings, end), "took": 0.0}
        done[name]["took"] = time.monotonic() - now
        tell(table(name, done[name]))
        left.pop(0)
    return {"machine": settings.machine.to_dict(), "sections": done}


def table(name: str, section: Section) -> str:
    """One section as text."""
    lines = [f"{name}: {section['title']}", *(f"  {line}" for line in section.get("lines", ()))]
    rows = section["rows"]
    good = {row: data["seconds"] for row, data in rows.items() if "seconds" in data}
    phases = list(next(iter(good.values()), {}))
    plain = {row.removeprefix("plain-"): good[row]["total"]["median"] for row in good if row.startswith("plain-")}
    plain = {} if any(":" in row for row in rows) else plain
    if good:
        over = "".join(f"{'x ' + other:>10}" for other in plain)
        heads = "".join(f"{phase:>10} s" for phase in phases)
        lines.append(f"  {'':34}{heads}{'spread':>8}{over}{'error':>9}")
    for row, data in rows.items():
        if row not in good:
            lines.append(f"  {row:34}failed: {data['failed']}")
            continue
        total = good[row]["total"]
        seconds = "".join(f"{good[row][phase]['median']:>12.3f}" for phase in phases)
        spread = f"{(total['most'] - total['least']) / total['median']:>8.0%}"
        over = "".join(f"{base / total['median']:>10.2f}" for base in plain.values())
        error = "" if data.get("error") is None else f"{data['error']:>9.1e}"
        lines.append(f"  {row:34}{seconds}{spread}{over}{error}")
        lines += [f"      {engaged(data['plan'])}"] if data.get("plan") else []
        lines += [f"      {spent(data['profile'])}"] if data.get("profile") else []
        lines += [f"      {held(data['memory'])}"] if data.get("memory") else []
        lines += [f"      {entry['summary']}" for entry in ((data.get("report") or {}).get("cache") or {}).values()]
    return "\n".join([*lines, f"  ({section['took']:.0f} s)", ""])


def engaged(plan: dict[str, Any]) -> str:
    """What a plan engages, in a few words."""
    words = []
    for stage in plan["stages"]:
        used = [
            stage[name]["engaged"]
            for name in SETTINGS
            if name in stage and stage[name]["engaged"] not in ("stock", "no", "none")
        ]
        words.append(f"{stage['stage']} {stage['dtype']['engaged']}{''.join(f' {name}' for name in used)}")
    return f"{'; '.join(words)}; {plan['threads']['engaged']} threads"


def spent(profile: list[dict[str, Any]], most: int = 6) -> str:
    """Where a profiled call's time went, in a few words."""
    whole, *parts = profile
    told = ", ".join(f"{part['op'].removeprefix('aten::')} {part['ms']:.1f}" for part in parts[:most])
    where = "kernels" if whole["op"] == "gpu" else "operators"
    place = "on the GPU" if whole["op"] == "gpu" else "on the calling thread"
    return f"profile: {whole['calls']} {where}, {whole['ms']:.1f} ms {place}: {told}"


def held(memory: dict[str, int]) -> str:
    """A contender's memory on the GPU, in a few words."""
    return f"memory: {memory['weights'] / 2**30:.1f} GiB of weights, at most {memory['peak'] / 2**30:.1f} GiB in a run"


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m accel.bench", description="How fast this machine really is.")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(SECTIONS)}; all without one")
    parser.add_argument("--model", type=Path, help=f"folder of a diffusers pipeline, for {', '.join(NEEDS_MODEL)}")
    parser.add_argument("--budget", type=float, default=BUDGET, help="seconds for all of it (default %(default).0f)")
    parser.add_argument("--rounds", type=int, default=5, help="most rounds of a section (default %(default)s)")
    parser.add_argument("--layers", type=int, default=0, help="how many of a large model are run (default: what fits)")
    parser.add_argument("--cut", type=int, help="which cut of a large model, 0 for the whole (default: what fits)")
    parser.add_argument("--contenders", default="", help=f"of {', '.join(CONTENDERS)}, with commas")
    parser.add_argument("--accel", default="", help="what all plans are asked for, such as dtype=float32,vae=stock")
    parser.add_argument("--clip", default="", help="changes to the clip, such as width=192,height=112,steps=10")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full", help="tiny: to try the measuring itself")
    parser.add_argument("--profile", action="store_true", help="also say which operators the time goes to")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    options = parser.parse_args(argv)
    unknown = [name for name in options.sections if name not in SECTIONS]
    unknown += [name for name in filter(None, options.contenders.split(",")) if name not in CONTENDERS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there is no such section or contender")
    if options.model is None and any(name in NEEDS_MODEL for name in options.sections):
        parser.error(f"{', '.join(NEEDS_MODEL)} need --model")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when everything ran and was right, 1 otherwise."""
    options = _arguments(argv)
    machine = probe(patience=PATIENCE)
    pairs = {
        name: dict(item.split("=", 1) for item in getattr(options, name).split(",") if item)
        for name in ("accel", "clip")
    }
    settings = Settings(
        machine=machine,
        model=options.model,
        contenders=tuple(filter(None, options.contenders.split(","))),
        preferences=pairs["accel"],
        clip={name: int(value) for name, value in pairs["clip"].items()},
        scale=options.scale,
        rounds=options.rounds,
        layers=options.layers,
        cut=options.cut,
        profile=options.profile,
    )
    torch = machine.packages["torch"].version if "torch" in machine.packages else "none"
    print(f"{machine.cpu.model}, {machine.cores.usable} cores, torch {torch}\n", flush=True)
    found = measure(settings, names(options.sections, settings), options.budget, lambda text: print(text, flush=True))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    sections = found["sections"].values()
    fine = all(
        section.get("right", True) and not any("failed" in row for row in section["rows"].values())
        for section in sections
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
