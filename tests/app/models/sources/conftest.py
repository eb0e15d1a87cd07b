"""A hub of our own and an empty cache, for fetches in processes of their own and for looks into that cache here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.models.sources.network import OURS
from tests.app.models.sources.fake_hub import Hub, serving


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The Hugging Face cache is an empty folder while the test runs, in this process and in those it starts."""
    from huggingface_hub import constants

    place = tmp_path / "hf" / "hub"
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place))
    return place


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The hub is a server on this machine, and fetches are allowed."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", OURS):  # what an earlier test's clip left, too
        monkeypatch.delenv(name, raising=False)
    with serving(Hub()) as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "2")
        yield made


@pytest.fixture
def here(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """`app.models.sources.hub.fetch` in this process finds the hub too: where no process is needed, it is quick."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", constants.DOWNLOAD_CHUNK_SIZE)
    return hub
