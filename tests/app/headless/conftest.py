"""Batches on the stand-in engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.paths import Home
from tests.app.headless.batches import Runs


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Runs:
    return Runs(home, tmp_path)
