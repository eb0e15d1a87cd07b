"""Correctness of every backend usable on this machine, against float64: `python -m accel.selfcheck [BACKEND ...]`.

A sweep over head sizes, token counts, batches, cross attention, strided inputs and inner dimensions that are no
multiple of 32, with one NaN row that must not leak. Errors are relative (Frobenius norm of the difference over that
of the float64 result, both from the same rounded inputs), worst case per line. Every call goes through the custom
ops, so the counters are checked as well: a supported call must be served, an unsupported one must fall back, counted,
and be right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import torch

from accel.backends import REGISTRY
from accel.backends.amx_attention import HEAD_SIZES
from accel.checking.attention import attention_lines
from accel.checking.convolutions import convolution_lines
from accel.checking.line import HEADER, Line
from accel.checking.linears import linear_lines
from accel.types import Machine, StageTraits

TOKENS = (1, 15, 17, 127, 255, 257, 1560)
HEADS = (*HEAD_SIZES, 16, 40, 80, 272)  # the last four are sizes that kernels refuse
INNER = (31, 32, 33, 64, 80, 144, 1536)
OUTER = (8, 16, 17, 64, 96, 1536)


class Writer(Protocol):
    def write(self, text: str, /) -> object: ...


def lines_for(backend: Any, quick: bool) -> Iterator[Line]:
    """The table's lines for one backend, as they are computed. `quick` leaves out the large shapes."""
    tokens = tuple(count for count in TOKENS if count < 256) if quick else TOKENS
    if backend.kind == "attention":
        yield from attention_lines(backend, tokens, (32, 128, 40) if quick else HEADS)
    elif backend.kind == "linear" and not backend.reference:
        small = [k for k in INNER if k < 256], [n for n in OUTER if n < 256]
        yield from linear_lines(backend, tokens, *(small if quick else (INNER, OUTER)))
    elif backend.kind == "vae" and not backend.reference:
        yield from convolution_lines(backend)


def run_sweep(out: Writer, machine: Machine | None = None, quick: bool = False, only: Sequence[str] = ()) -> int:
    """Write the table to `out`; 0 when every case of every usable CPU backend was right, 1 otherwise.

    only: names of backends, empty for all.
    """
    if machine is None:
        from accel.probe import probe

        machine = probe()
    faults = 0
    out.write(f"{machine.cpu.model}, {machine.cores.usable} cores, torch {torch.__version__}\n{HEADER}\n")
    for backend in REGISTRY:
        if "cpu" not in backend.devices or (only and backend.name not in only):
            continue
        reasons = backend.why_not(
            machine, StageTraits("vae" if backend.kind == "vae" else "transformer", "check", conv3d=1)
        )
        if reasons:
            out.write(f"{backend.name:<20}can't run here: {'; '.join(reasons)}\n")
            continue
        with torch.inference_mode():
            for line in lines_for(backend, quick):
                out.write(line.text() + "\n")
                faults += len(line.faults)
                for fault in line.faults[:5]:
                    out.write(f"    {fault}\n")
    out.write(f"{faults} faults\n" if faults else "every case was right\n")
    return 1 if faults else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m accel.selfcheck", description="Is every backend right here?")
    names = sorted({item.name for item in REGISTRY if "cpu" in item.devices})
    parser.add_argument("only", nargs="*", metavar="BACKEND", help=f"of {', '.join(names)}; all without one")
    parser.add_argument("--quick", action="store_true", help="leave out the large shapes")
    options = parser.parse_args()
    unknown = ", ".join(set(options.only) - set(names))
    if unknown:
        parser.error(f"{unknown}: there is no such backend, there are {', '.join(names)}")
    return run_sweep(sys.stdout, quick=options.quick, only=options.only)


if __name__ == "__main__":
    sys.exit(main())
