"""Fixtures: the starter family, but with the tiny pipeline's weights. Import them into a test module to use them."""

from pathlib import Path

import pytest

from app.models import starter
from app.models.base import Family
from tests.app.tiny import save_tiny_pipeline


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pipeline on disk, made once for all tests."""
    pytest.importorskip("torch")
    return save_tiny_pipeline(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def tiny_family(tiny_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Family:
    """`starter` means the tiny pipeline while the test runs."""
    family = starter.STARTER.with_folder(tiny_folder)
    monkeypatch.setattr(starter, "FAMILIES", (family,))
    return family
