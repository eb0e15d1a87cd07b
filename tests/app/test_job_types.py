from pathlib import Path

import pytest

from tests.app.services import spec


@pytest.mark.parametrize(
    ("name", "stem"),
    [("rocket", "rocket-11"), ("rocket-11", "rocket-11"), ("rocket-11-2", "rocket-11"), ("take-2", "take-2-11")],
)
def test_a_clip_made_again_keeps_its_name(tmp_path: Path, name: str, stem: str) -> None:
    assert spec(tmp_path, name=name, seed=11).stem == stem
