"""Create for programs, with gradio_client against the real server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from app.video import read_request
from tests.app.ui.serving import Served

SMALL = {"width": 64, "height": 64, "frames": 5, "steps": 2}


def ended(client: Any, job: int) -> dict[str, Any]:
    """The job once nothing more happens to it."""
    for _ in range(600):
        found: dict[str, Any] = client.predict(job, api_name="/job")
        if found["state"] not in ("queued", "running"):
            return found
        time.sleep(0.2)
    raise AssertionError(found)


def test_a_program_makes_clips(served: Served) -> None:
    client = served.client()
    wanted = {"prompt": "a red ball", "seed": 9007199254740990, "count": 2, **SMALL}
    jobs = client.predict(wanted, api_name="/generate")
    assert [job["request"]["seed"] for job in jobs] == [9007199254740990, 9007199254740991]
    made = [ended(client, job["id"]) for job in jobs]
    assert [job["state"] for job in made] == ["done", "done"]
    assert read_request(Path(made[1]["output"])).seed == 9007199254740991


def test_a_program_learns_what_a_clip_takes(served: Served) -> None:
    found = served.client().predict({"prompt": "a red ball", "frames": 27}, api_name="/estimate")
    assert found["request"]["frames"] == 25
    assert "27 frames become 25" in found["adjustments"][0]["reason"]
    assert (found["fits"], found["tokens"]["limit"]) == (True, 64)
    assert found["memory"] > 2**20


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"seed": 2**53}, "seed"),
        ({"steps": "many"}, "steps"),
        ({"output": "/tmp/evil"}, "output"),
        ({"model": "nothing"}, "nothing"),
        ({"scheduler": "euler"}, "possible is unipc"),
    ],
)
def test_what_is_not_possible_is_told_in_a_sentence(served: Served, request_: dict[str, Any], words: str) -> None:
    with pytest.raises(Exception, match=words):
        served.client().predict(request_, api_name="/generate")


def test_every_public_endpoint_has_a_name_and_a_description(served: Served) -> None:
    named = served.client().view_api(return_format="dict", print_info=False)["named_endpoints"]
    assert {"/generate", "/estimate", "/models", "/queue", "/history", "/job_cancel", "/presets", "/doctor"} <= set(
        named
    )
    assert not [name for name in named if name[-1].isdigit()], "two functions share a name"
    assert not [name for name, about in named.items() if not about.get("description")]


def test_an_estimate_is_under_the_switches_of_the_moment(served: Served) -> None:
    client = served.client()
    client.predict("vae", "stock", api_name="/accelerate")
    try:
        found = client.predict({"prompt": "a red ball"}, api_name="/estimate")
    finally:
        client.predict("vae", "auto", api_name="/accelerate")
    assert found["request"]["accel"]["vae"] == "stock"
