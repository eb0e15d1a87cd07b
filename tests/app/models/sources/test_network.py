"""Offline by default: who went offline by itself may be asked to fetch, who was told to stay offline may not."""

from __future__ import annotations

import os

import pytest

from app.models.sources import network

NAMES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY", network.OURS)


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that what a test sets is taken back
        monkeypatch.delenv(name)


def test_going_offline_is_our_choice_unless_somebody_made_it() -> None:
    network.go_offline()
    assert os.environ["HF_HUB_OFFLINE"] == os.environ["TRANSFORMERS_OFFLINE"] == "1"
    assert not network.is_forbidden(os.environ)
    network.go_offline()
    assert not network.is_forbidden(os.environ), "a process that inherits it goes offline again"


@pytest.mark.parametrize("value", ["1", "true", "YES", "On"])
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_a_person_s_choice_stands(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    network.go_offline()
    assert network.is_forbidden(os.environ)


@pytest.mark.parametrize("value", ["0", "", "false"])
def test_an_offline_that_is_off_forbids_nothing(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert not network.is_forbidden(os.environ)


def test_a_fetch_gets_an_environment_that_is_online_and_tells_nobody_about_us() -> None:
    network.go_offline()
    made = network.for_fetching({**os.environ, "HF_TOKEN": "t", "HF_ENDPOINT": "https://e"})
    assert not {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", network.OURS} & made.keys()
    assert (made["HF_TOKEN"], made["HF_ENDPOINT"]) == ("t", "https://e")
    assert made["HF_HUB_DISABLE_TELEMETRY"] == made["HF_HUB_DISABLE_XET"] == "1"
