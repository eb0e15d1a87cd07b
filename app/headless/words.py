"""What a batch says of several clips together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from app.console import duration
from app.estimate import Estimate
from app.headless.batch import State
from app.paths import OUTPUTS, Home, is_mine_alone
from app.video.outputs import size_text

ENDED: Mapping[State, str] = {
    "waiting": "not begun",
    "running": "stopped",
    "failed": "failed",
    "crashed": "crashed",
    "cancelled": "stopped",
    "done": "done",
}


def clips_text(count: int) -> str:
    """ "1 clip", "3 clips"."""
    return "1 clip" if count == 1 else f"{count:,} clips"


def estimate_line(found: Sequence[Estimate]) -> str:
    """What all clips will take: the time together, the most memory, the disk together."""
    memory, disk = max(one.memory for one in found), sum(one.disk for one in found)
    text = f"memory {size_text(memory)} of {size_text(found[0].memory_free)} free, disk {size_text(disk)} of "
    text += f"{size_text(found[0].disk_free)} free"
    seconds = [one.seconds for one in found if one.seconds is not None]
    if len(seconds) < len(found):
        basis = next(one.basis for one in found if one.seconds is None)
        return f"Estimate: {basis}; {text}."
    loading = [one.stages.get("load", 0.0) for one in found]  # the model stays loaded from one clip to the next
    whole = sum(seconds) - sum(loading) + max(loading)
    return f"Estimate: about {duration(whole)}, {found[0].basis}; {text}."


def why_unplayable(home: Home, folders: Sequence[Path]) -> str:
    """Why the page can't play clips that come to lie in these folders, as a sentence; empty when it can."""
    elsewhere = [one for one in folders if not one.is_relative_to(home.root / OUTPUTS)]
    shared = next((one for one in elsewhere if not is_mine_alone(one)), None)
    if shared is None:
        return ""
    return (
        f"The open page will list these clips without playing them, since others might change files in {shared}: "
        "leave --out out, or name a folder of your own, to have them played there."
    )
