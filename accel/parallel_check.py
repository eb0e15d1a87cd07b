"""Whether GPUs of this machine work together, and whether all ends when one of them fails.

    python -m accel.parallel_check --gpus 2
    python -m accel.parallel_check --gpus 2 --only killed,stopped

It starts the ranks itself. First the outputs of one rank and of all are compared, as parallel_bench does, in small.
Then the last rank comes to an end in the middle of its second forward, each time in another way, while the others wait
inside an exchange; they must be gone within SOON, long before their own patience ends. Without GPUs the ranks share the
CPU, over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from accel.errors import AccelError
from accel.parallel.launching import run_ranks

ROOT = Path(__file__).resolve().parents[1]
PATIENCE = 600.0
SOON, WAITED = 150.0, 60.0
"""Seconds for ranks to start, make two forwards and be gone; the same where only the time limit ends them."""
LIMIT = 600.0
FURTHEST = {"cuda": 0.02, "cpu": 1e-5}
"""Relative difference of outputs that is rounding, by where they were computed: bfloat16 or float32."""


def _raise() -> None:
    raise ValueError("planted")


def _wait() -> None:
    time.sleep(PATIENCE)


ENDS: dict[str, tuple[Callable[[], None], str]] = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended with signal 9"),
    "left": (lambda: os._exit(7), "ended with status 7"),
    "failed": (_raise, "ended with status 1, and with it the others: ValueError: planted"),
    "stopped": (_wait, "had not ended"),
}
"""How the last rank ends, and what the one who started it must say."""


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when everything was as it should be, 1 otherwise."""
    parser = argparse.ArgumentParser(prog="python -m accel.parallel_check", description="Do GPUs work together here?")
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="how many (default %(default)s)")
    parser.add_argument("--only", default="", help=f"with commas, of alike, {', '.join(ENDS)} (default: all)")
    parser.add_argument("--contenders", default="", help="those of parallel_bench to compare (default: its own)")
    parser.add_argument("--rank", choices=ENDS, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.rank:
        _serve(options.rank)
        return 0
    cases = options.only.split(",") if options.only else ["alike", *ENDS]
    if unknown := [case for case in cases if case not in ("alike", *ENDS)]:
        parser.error(f"--only {','.join(unknown)}: choose of alike, {', '.join(ENDS)}")
    problems = [_checked(case, options.gpus, options.contenders) for case in cases]
    return int(any(problems))


def _checked(case: str, count: int, contenders: str) -> str:
    """Check one case and print how it went; what was wrong, empty when nothing was."""
    begun = time.monotonic()
    problem = _alike(count, contenders) if case == "alike" else _ended(case, count)
    print(f"{case}: {problem or 'as it should be'} ({time.monotonic() - begun:.0f} s)", flush=True)
    return problem


def _alike(count: int, contenders: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        line = ["--scale", "tiny", "--rounds", "1", "--limit", f"{LIMIT:.0f}", "--json", str(out)]
        try:
            _run("accel.parallel_bench", [*line, *(["--contenders", contenders] if contenders else [])], count, LIMIT)
        except AccelError as error:
            return str(error)
        found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    furthest = FURTHEST["cpu" if found["device"] == "CPU" else "cuda"]
    far = [
        f"{name}, {mode}: the outputs differ by {row['difference']:.1e}"
        for name, one in found["contenders"].items()
        for mode, row in one["rows"].items()
        if row.get("difference", 0.0) > furthest
    ]
    return "; ".join(far)


def _ended(case: str, count: int) -> str:
    try:
        _run("accel.parallel_check", ["--rank", case], count, WAITED if case == "stopped" else SOON)
    except AccelError as error:
        return "" if ENDS[case][1] in str(error) else f"it was said that {error}"
    return "nobody noticed"


def _run(module: str, arguments: Sequence[str], count: int, timeout: float) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    run_ranks([sys.executable, "-m", module, *arguments], count, timeout, {**os.environ, "PYTHONPATH": path})


def _serve(case: str) -> None:
    """What a rank does: two forwards, of which the last rank does not finish the second one."""
    import torch
    from diffusers import WanTransformer3DModel

    from accel.parallel.ranks import Shared, joined

    with joined(PATIENCE) as ranks, torch.inference_mode():
        torch.manual_seed(0)
        size = {"in_channels": 16, "out_channels": 16, "text_dim": 64, "freq_dim": 64, "ffn_dim": 256, "num_layers": 2}
        heads = {"num_attention_heads": 2 * ranks.count, "attention_head_dim": 32}
        model: Any = WanTransformer3DModel(patch_size=(1, 2, 2), **heads, **size).to(ranks.device)
        latents, text = torch.randn(1, 16, 3, 16, 16), torch.randn(1, 8, 64)
        given = (latents.to(ranks.device), torch.full((1,), 500, device=ranks.device), text.to(ranks.device))
        with Shared(model, ranks, planned=False):
            model(*given)[0].float().cpu()
            if ranks.rank == ranks.count - 1:
                model.blocks[1].register_forward_pre_hook(lambda *_: ENDS[case][0]())
            model(*given)[0].float().cpu()


if __name__ == "__main__":
    sys.exit(main())
