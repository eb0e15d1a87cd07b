"""The file with a clip's latents (case 52): damaged, of another form, where none can be kept, and their number."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from app.engine import Engine, kept
from app.errors import JobFailedError
from app.paths import Home
from tests.app.engine.keeping import failing, files, kept_of
from tests.app.engines import REQUEST


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-10])


def _other_shape(path: Path) -> None:
    _rewrite(path, lambda latents: latents[:, :, :1])


def _other_dtype(path: Path) -> None:
    _rewrite(path, lambda latents: latents.double())


def _rewrite(path: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    with safe_open(path, "pt") as file:
        facts, latents = file.metadata(), file.get_tensor("latents").clone()
    save_file({"latents": change(latents).contiguous()}, path, facts)


def _as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _rename(path: Path) -> None:
    with safe_open(path, "pt") as file:
        facts = file.metadata()
    save_file({"others": torch.zeros(1)}, path, facts)


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": _cut,
    "text": lambda path: path.write_text("no tensors"),
    "no facts": lambda path: save_file({"latents": torch.zeros(1)}, path),
    "another's": lambda path: save_file({"latents": torch.zeros(1)}, path, {"key": "another", "report": "{}"}),
    "no latents": _rename,
    "a folder": _as_folder,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_not_whole_is_none(engine: Engine, damage: str) -> None:
    """Case 52: the clip is made anew."""
    plain = engine.generate(REQUEST).frames
    DAMAGES[damage](kept_of(engine, REQUEST))
    clip = engine.generate(REQUEST, keeps=True)
    assert "resumed" not in clip.report
    assert np.array_equal(clip.frames, plain)


@pytest.mark.parametrize("damage", [_other_shape, _other_dtype])
def test_latents_of_another_form_fail_once_and_go(engine: Engine, damage: Callable[[Path], None]) -> None:
    """Case 52: nothing of another form is decoded."""
    plain = engine.generate(REQUEST).frames
    damage(kept_of(engine, REQUEST))
    with pytest.raises(JobFailedError, match=r"not its own: make it anew\.$"):
        engine.generate(REQUEST, keeps=True)
    assert files(engine) == []
    assert np.array_equal(engine.generate(REQUEST, keeps=True).frames, plain)


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left on device"), SafetensorError("No space left"), MemoryError()]
)
def test_a_clip_whose_latents_can_not_be_kept_is_made_all_the_same(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Case 52: the disk is full, say; no half-written file stays, and nothing is promised."""
    plain = engine.generate(REQUEST).frames

    def half(tensors: Any, path: Path, facts: Any) -> None:
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr("safetensors.torch.save_file", half)
    assert np.array_equal(engine.generate(REQUEST, keeps=True).frames, plain)
    assert files(engine) == []
    with failing(engine, MemoryError()), pytest.raises(JobFailedError) as caught:
        engine.generate(REQUEST, keeps=True)
    assert "kept" not in str(caught.value)


def test_a_data_folder_that_can_not_be_written_keeps_none(engine: Engine, home: Home) -> None:
    """Case 52: an engine can do without."""
    plain = engine.generate(REQUEST).frames
    (home.root / "latents").write_text("no folder")
    clip = engine.generate(REQUEST, keeps=True)
    assert clip.latents is None
    assert np.array_equal(clip.frames, plain)


def test_they_are_bounded_in_number_and_size(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 52: the oldest go, drafts of killed processes among them; the newest stays whatever the clock says."""
    engine.generate(REQUEST)
    folder = engine._home.latents if engine._home else Path()
    for number in range(kept.FILES + 3):
        old = folder / f"{number}.safetensors{'.7.partial' if number == 0 else ''}"
        old.write_bytes(b"x" * 1000)
        os.utime(old, (2e9 + number, 2e9 + number))  # a clock that was set ahead
    with suppress(JobFailedError), failing(engine, MemoryError()):
        engine.generate(REQUEST, keeps=True)
    there = files(engine)
    assert len(there) == kept.FILES
    (own,) = [path for path in there if len(path.stem) == 32]
    assert {path.name for path in there} - {own.name} == {f"{n}.safetensors" for n in range(4, kept.FILES + 3)}
    monkeypatch.setattr(kept, "BYTES", own.stat().st_size + 2500)
    engine.generate(REQUEST.model_copy(update={"seed": 9}))
    own.unlink()
    with suppress(JobFailedError), failing(engine, MemoryError()):
        engine.generate(REQUEST, keeps=True)
    assert {path.name for path in files(engine)} == {own.name, "9.safetensors", "10.safetensors"}
    monkeypatch.setattr(kept, "BYTES", 100)
    engine.generate(REQUEST.model_copy(update={"seed": 9}), keeps=True)
    assert len(files(engine)) == 3, "one that is larger than all that may lie there is not written"
