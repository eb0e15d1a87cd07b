"""Fixtures of the studio's tests: a tiny model in the starter's place, an engine on it, a batch on it."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.engine import Engine, Frames, acceleration
from app.models import starter
from app.models.base import Family
from app.paths import Home
from tests.app.engines import REQUEST
from tests.app.headless.batches import Batch
from tests.app.tiny import save_tiny_pipeline


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pipeline on disk, made once for all tests."""
    return save_tiny_pipeline(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_family(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    """`starter` means the tiny pipeline while the test runs."""
    family = starter.STARTER.with_folder(tiny_folder)
    monkeypatch.setattr(starter, "FAMILIES", (family,))
    return family


@pytest.fixture
def engine(tiny_family: Family) -> Iterator[Engine]:
    with Engine() as made:
        yield made


@pytest.fixture
def clean(engine: Engine) -> Frames:
    """What REQUEST gives when nothing went wrong before."""
    return engine.generate(REQUEST).frames


@pytest.fixture
def batch(tmp_path: Path, tiny_family: Family) -> Batch:
    """Batches on the tiny pipeline, into a folder of their own."""
    return Batch(tmp_path)


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that uses this must end before weights are read."""

    def fail(*_: Any) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("app.engine.loading.load_pipeline", fail)


@pytest.fixture(scope="session")
def described(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache that knows the starter's description for small clips, so that a worker plans without importing torch."""
    cache = tmp_path_factory.mktemp("described")
    assert starter.STARTER.folder is not None
    acceleration.traits(starter.STARTER.folder, 64, 64, 5, cache)
    return cache


@pytest.fixture
def home(tmp_path: Path, described: Path) -> Home:
    """A data folder of its own, in which plans are quick."""
    made = Home(tmp_path / "home")
    shutil.copytree(described, made.cache, dirs_exist_ok=True)
    return made
