"""Apple's GPUs have no float64. A mode that refuses it stands in for them: emulated, untested on macOS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from diffusers.models import embeddings
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from app.engine import Engine
from app.models.base import Family
from app.paths import Home
from tests.app.engine.test_previews_of_families import KINDS
from tests.app.models.families import as_folder, picture, request_for

LOOKS = (torch.ops.aten.select.int, torch.ops.aten._local_scalar_dense.default)
"""One number is looked up in a table."""
QUICK = ("wan-ti2v", "cogvideox-2b")
"""Tried each time; the others in the long run."""


class NoFloat64(TorchDispatchMode):
    """Refuses every operation that takes or makes float64, whoever asks for it.

    Schedulers alone may: their tables stay on the CPU, and what comes to the device of them are single numbers, which
    others may look up, too.
    """

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        result = function(*arguments, **(named or {}))
        tensors = [one for one in tree_leaves((arguments, named, result)) if isinstance(one, torch.Tensor)]
        if function not in LOOKS and any(one.dtype == torch.float64 for one in tensors):
            where = caller()
            if not where.name.startswith("scheduling_"):
                raise TypeError(f"{function} in {where}: the MPS framework doesn't support float64")
        return result


def caller() -> Path:
    """The file of the innermost frame that is neither torch's nor this file's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and ("/torch/" in frame.f_code.co_filename or frame.f_code.co_filename == __file__):
        frame = frame.f_back
    return Path("" if frame is None else frame.f_code.co_filename)


def test_the_stand_in_can_refuse() -> None:
    """Case 52: it sees what a line of ours makes."""
    mode: TorchDispatchMode = NoFloat64()  # type: ignore[no-untyped-call]
    with mode, pytest.raises(TypeError, match="doesn't support float64"):
        torch.zeros(1).double()


@pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(*kind[:2], id=kind[1], marks=() if kind[1] in QUICK else pytest.mark.long) for kind in KINDS],
)
def test_no_stage_of_a_clip_computes_in_float64_emulated(
    family: Family,
    name: str,
    tiny_models: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 52: reading, denoising, previews, decoding and what is checked of the frames."""
    monkeypatch.setattr("app.engine.watcher._PREVIEW_SECONDS", 0.0)
    home = Home(tmp_path / "home")
    with as_folder(family, tiny_models(name)) as here, Engine(home) as engine:
        request = request_for(here, home, steps=2)
        pictures = {"image": picture(here, home)} if "image" in family.takes else {}
        request = request.model_copy(update=pictures)
        # what diffusers asks before it takes float64
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
        monkeypatch.setattr(embeddings, "maybe_adjust_dtype_for_device", lambda dtype, device: torch.float32)
        mode: TorchDispatchMode = NoFloat64()  # type: ignore[no-untyped-call]
        with mode:
            engine.generate(request, lambda progress: None, previews=True)
