from dataclasses import replace
from pathlib import Path

import pytest

from app.job_types import NAME_BYTES, name_of_clip
from app.request import MAX_SEED, Adjustment
from app.video.outputs import safe_stem
from tests.app.services import spec


@pytest.mark.parametrize(
    ("name", "stem"),
    [
        ("rocket", "rocket-11"),
        ("rocket-11", "rocket-11"),
        ("rocket-11-2", "rocket-11"),
        ("take-11-11", "take-11-11"),
        ("take-2", "take-2-11"),
    ],
)
def test_a_clip_made_again_keeps_its_name(tmp_path: Path, name: str, stem: str) -> None:
    assert spec(tmp_path, name=name_of_clip(name, 11), seed=11).stem == stem
    assert spec(tmp_path, name=name, seed=11).stem == f"{name}-11", "what is no clip may be called so by chance"


def test_what_is_told_of_a_clip_is_what_was_changed_and_what_else_to_know(tmp_path: Path) -> None:
    change = Adjustment(field="width", asked=65, used=64, reason="65 becomes 64.")
    made = replace(spec(tmp_path), adjustments=(change,), notes=("The starter does not know 'yak'.",))
    assert made.told == ("65 becomes 64.", "The starter does not know 'yak'.")


@pytest.mark.parametrize("name", ["红" * 120, "🚀" * 90, "x" * 300])
def test_a_long_name_is_cut_but_not_its_seed(tmp_path: Path, name: str) -> None:
    """Case 31: by bytes between characters, so that variations of a clip can be told apart."""
    stem = spec(tmp_path, name=name, seed=MAX_SEED).stem
    assert safe_stem(stem) == stem
    shown = stem.removesuffix(f"-{MAX_SEED}")
    assert 97 <= len(shown.encode()) <= NAME_BYTES
    assert name.startswith(shown)
