"""No network by default: only a fetch that somebody asked for may use it, in a process of its own.

The libraries below read HF_HUB_OFFLINE when they are imported. A process that goes offline by our choice says so in its
environment, so that a fetch started from it knows that no person wanted it that way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

OURS = "KINETILE_OFFLINE"
"""In the environment of processes that went offline without having been told to."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_QUIET = ("HF_HUB_DISABLE_TELEMETRY", "DISABLE_TELEMETRY")


def go_offline() -> None:
    """Keep the libraries from the network in this process. Has effect only before they are imported."""
    if not is_forbidden(os.environ):
        os.environ[OURS] = "1"
    os.environ.update(dict.fromkeys((*_OFFLINE, *_QUIET), "1"))


def is_forbidden(environment: Mapping[str, str]) -> bool:
    """Whether a person set this environment so that nothing may be fetched."""
    said = any(environment.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in _OFFLINE)
    return said and environment.get(OURS) != "1"


def for_fetching(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that fetches: online, plain HTTP (which can be resumed), nothing told about us."""
    kept = {name: value for name, value in environment.items() if name not in (*_OFFLINE, OURS)}
    return {**kept, **dict.fromkeys(_QUIET, "1"), "HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
