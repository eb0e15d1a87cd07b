"""Settings for all tests: nothing leaves this machine, nobody's own data folder is touched, hypothesis keeps no deadlines."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

settings.register_profile("kinetile", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("kinetile")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test has a data folder of its own."""
    monkeypatch.setenv("KINETILE_HOME", str(tmp_path / "kinetile-home"))
