"""An engine with a data folder of its own, for the tests that bring no model or folder themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.engine import Engine
from app.models.base import Family
from app.paths import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def engine(tiny_family: Family, home: Home) -> Iterator[Engine]:
    with Engine(home) as made:
        yield made
