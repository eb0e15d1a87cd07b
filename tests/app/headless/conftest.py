"""Batches on the stand-in engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.paths import Home
from tests.app.headless.batches import Batch
from tests.app.services import QUICK
from tests.app.standin import StandIn


@pytest.fixture
def runs(home: Home, tmp_path: Path) -> Batch:
    made = Batch(tmp_path, StandIn, QUICK)
    made.home = home
    return made
