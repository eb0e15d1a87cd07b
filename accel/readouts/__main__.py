"""Readouts without the app: `python -m accel.readouts step-1.3b` or `python -m accel.readouts --model FOLDER`.

    python -m accel.readouts step-1.3b --frames 81 --json out.json --plot out.svg
    python -m accel.readouts --model app/starter/weights --size 256x160x25 --quick

A shape has no weights, so no clips are made; of a folder the weights are not read, and no clips are made either: the
app's `--bench` does that. What was measured is kept, and counts for plans on this machine.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel import threads
from accel.benching.work import WORKS
from accel.errors import AccelError
from accel.figures import duration
from accel.probe import probe
from accel.readouts import words

PATIENCE = 30.0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m accel.readouts", description="Every backend at a model's calls.")
    parser.add_argument("shapes", nargs="*", metavar="SHAPE", help=f"of {', '.join(WORKS)}")
    parser.add_argument("--model", type=Path, help="folder of a diffusers pipeline, in the place of shapes")
    parser.add_argument("--size", default="832x480x81", help="width x height x frames, for --model")
    parser.add_argument("--frames", type=int, help="of the shapes' clips, in the place of their own")
    parser.add_argument("--quick", action="store_true", help="less than a minute for a small model")
    parser.add_argument("--where", type=Path, metavar="DIR", help="keep the results there")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all results of this machine there")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the last one, as .svg or .png")
    options = parser.parse_args(argv)
    unknown = [name for name in options.shapes if name not in WORKS]
    if unknown:
        parser.error(f"{', '.join(unknown)}: there is no such shape")
    if not re.fullmatch(r"\d+x\d+x\d+", options.size):
        parser.error(f"--size {options.size}: write it as 832x480x81")
    if bool(options.shapes) == bool(options.model):
        parser.error("name shapes, or a --model")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when everything was right, 1 when a backend was wrong or failed."""
    options = _arguments(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a log that can't hold ± or µ (ASCII, Shift JIS) shows its escape
            stream.reconfigure(errors="backslashreplace")
    machine = probe(patience=PATIENCE)
    threads.apply(machine)
    from accel.measuring.run import Benchmark, Subject

    subjects = [_shape(name, options.frames) for name in options.shapes] or [_folder(options.model, options.size)]
    sound, results, made = True, None, None
    for subject in (Subject(**one) for one in subjects):
        run = Benchmark(machine, subject, options.quick, where=options.where, tell=_tell)
        try:
            results, made = run.run()
        except AccelError as error:
            print(f"{subject.title}: {error}", file=sys.stderr)
            return 1
        print(words.text(results, made) + "\n", flush=True)
        sound = sound and not any(row.verdict in ("wrong", "failed") for row in made.rows)
    if results is not None and made is not None:
        if options.json is not None:
            options.json.write_text(json.dumps(results.to_dict(), indent=1), encoding="utf-8")
        if options.plot is not None:
            from accel.readouts import chart

            chart.save(made.rows, made.title, options.plot)
    return 0 if sound else 1


def _tell(done: float, text: str, left: float | None = None) -> None:
    end = "" if left is None or not 0 < done < 1 else f", about {duration(left)} left"
    print(f"{done:4.0%}  {text}{end}", file=sys.stderr, flush=True)


def _shape(name: str, frames: int | None) -> dict[str, Any]:
    from accel.benching import models

    work = WORKS[name]
    if frames is not None and work.stage == "transformer":
        channels, _, rows, columns = work.latents
        work = replace(work, latents=(channels, (frames - 1) // 4 + 1, rows, columns))
    _, depth, rows, columns = work.latents
    cut = work.cuts[0]
    if work.stage == "vae":
        columns, rows, depth = cut[0], cut[1], 4 * cut[2] - 3
    pipeline = models.blank(work, cut, "full")
    if work.stage == "vae":
        pipeline.vae_scale_factor_spatial, pipeline.vae_scale_factor_temporal = 8, 4
    title = work.title if frames is None else f"{work.title}, made of {frames} frames"
    return {"model": name, "title": title, "size": (columns, rows, depth), "pipeline": pipeline}


def _folder(folder: Path, size: str) -> dict[str, Any]:
    from diffusers import DiffusionPipeline

    width, height, frames = map(int, size.split("x"))
    load: Any = DiffusionPipeline.from_pretrained
    title = f"{folder.name}, {width}x{height}, {frames} frames"
    return {"model": str(folder), "title": title, "size": (width, height, frames), "pipeline": load(folder)}


if __name__ == "__main__":
    sys.exit(main())
