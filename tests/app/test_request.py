"""The request: strict in type and range, every refusal names the key, the value and what is allowed (CASES 19-23)."""

from __future__ import annotations

import json
import logging
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from app.errors import SourceError, UsageError
from app.request import (
    MAX_COUNT,
    MAX_PROMPT,
    MAX_SEED,
    AccelPreferences,
    GenerationRequest,
    Lora,
    canonical,
    parse_request,
)

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
words = st.from_regex(r"\A[a-z0-9][a-z0-9_.:+-]{0,10}\Z")
names = st.from_regex(r"\A[a-zé]{1,5}(/[a-zé]{1,5}){0,2}\.safetensors\Z")
optional = st.none
requests = st.builds(
    GenerationRequest,
    model=st.sampled_from(["starter", "Owner/Name-1.3B"]),
    prompt=texts,
    negative_prompt=optional() | texts,
    width=optional() | st.integers(1, 16_384),
    height=optional() | st.integers(1, 16_384),
    frames=optional() | st.integers(1, 10_000),
    fps=optional() | st.floats(1, 240),
    steps=optional() | st.integers(1, 1000),
    guidance=optional() | st.floats(0, 100),
    seed=optional() | st.integers(0, MAX_SEED),
    scheduler=optional() | words,
    shift=optional() | st.floats(0.001, 100),
    loras=st.lists(st.builds(Lora, name=names, weight=st.floats(-10, 10)), max_size=3),
    count=st.integers(1, MAX_COUNT),
    accel=st.builds(
        AccelPreferences, attention=words, dtype=words, compile=words, offload=words, gpus=st.integers(1, 64)
    ),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
keys = st.sampled_from([*GenerationRequest.model_fields, "attention", "name", "weight", "stepz"])


def refusal(data: Any) -> str:
    with pytest.raises(UsageError) as caught:
        parse_request(data, "mine.json")
    return str(caught.value)


@given(requests)
def test_round_trips_through_json_and_mapping(request_: GenerationRequest) -> None:
    dump = request_.model_dump(mode="json")
    assert parse_request(dump, "x") == request_
    assert parse_request(json.dumps(dump), "x") == request_
    assert parse_request(json.dumps(canonical(request_)).encode(), "x") == request_


@given(st.dictionaries(keys, anything, max_size=4))
def test_nothing_but_a_usage_error_escapes(data: dict[str, Any]) -> None:
    try:
        request = parse_request(data, "mine.json")
    except UsageError as error:
        said = str(error)
    else:
        json.dumps(request.model_dump(mode="json"), allow_nan=False)
        return
    assert said.startswith("mine.json")
    said.encode("utf-8")


@given(st.lists(st.text(max_size=12) | st.builds("{}={}".format, keys, st.text(max_size=8)), max_size=3))
def test_no_assignment_breaks_out(assignments: list[str]) -> None:
    said = "--set "
    try:
        GenerationRequest().with_set(assignments)
    except UsageError as error:
        said = str(error)
    assert said.startswith("--set ")


@pytest.mark.parametrize(
    ("data", "key", "says"),
    [
        ('{"steps": "20"}', "steps", '"20" is not possible; it must be a whole number from 1 to 1,000, or left out'),
        ('{"steps": 20.0}', "steps", "whole number"),
        ('{"steps": true}', "steps", "true is not possible"),
        ('{"steps": 0}', "steps", "0 is not possible"),
        ('{"steps": -1}', "steps", "from 1"),
        ('{"frames": 0}', "frames", "from 1 to 10,000"),
        ('{"frames": -3}', "frames", "-3"),
        ('{"seed": -1}', "seed", "from 0 to 9,007,199,254,740,991"),
        ('{"seed": 1152921504606846976}', "seed", "1152921504606846976 is not possible"),
        ('{"seed": 9007199254740993}', "seed", "9007199254740993 is not possible"),
        ('{"seed": 1e3}', "seed", "whole number"),
        ('{"guidance": "4"}', "guidance", "a number from 0 to 100"),
        ('{"guidance": -0.5}', "guidance", "-0.5"),
        ('{"shift": 0}', "shift", "a number above 0 to 100"),
        ('{"fps": 0}', "fps", "a number from 1 to 240"),
        ('{"count": 0}', "count", "from 1 to 1,000"),
        ('{"model": null}', "model", "null is not possible; it must be text"),
        ('{"model": ""}', "model", "text"),
        ('{"prompt": null}', "prompt", "text of at most 100,000 characters"),
        ('{"prompt": 5}', "prompt", "text"),
        ('{"width": 0}', "width", "from 1 to 16,384"),
        ('{"negative_prompt": 5}', "negative_prompt", "text of at most 100,000 characters, or left out"),
        ('{"scheduler": 5}', "scheduler", "text in double quotes, or left out"),
        ('{"accel": {"vae": true}}', "accel.vae", "text"),
        ('{"accel": {"vae": "Two Words"}}', "accel.vae", "one small word"),
        ('{"accel": "auto"}', "accel", "an object"),
        ('{"loras": "x"}', "loras", "a list"),
        ('{"loras": [5]}', "loras.0", "an object"),
        ('{"loras": [{}]}', "loras.0.name", "missing"),
        ('{"loras": [{"name": "a", "weight": "1"}]}', "loras.0.weight", "a number from -10 to 10"),
        ('{"loras": ["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]}', "loras", "at most 16"),
        ('{"kinetile": 0}', "kinetile", "0 is not a version"),
        ('{"kinetile": "1"}', "kinetile", "not a version"),
        ('{"stepz": 3}', "stepz", 'did you mean "steps"'),
        ('{"accel": {"atention": "x"}}', "accel.atention", 'did you mean "attention"'),
        ('{"loras": [{"name": "a", "wait": 1}]}', "loras.0.wait", "no such key"),
        ('{"output": "/tmp/x"}', "output", "possible are kinetile, model, prompt, negative_prompt, width, "),
    ],
)
def test_refusals_name_line_key_value_and_what_is_allowed(data: str, key: str, says: str) -> None:
    text = refusal(data)
    assert re.match(rf"mine\.json, line 1, column \d+, {re.escape(key)}: ", text)
    assert says in text


@pytest.mark.parametrize("key", ["prompt", "negative_prompt", "model", "image"])
def test_text_that_is_none_is_said_so(key: str) -> None:
    with pytest.raises(UsageError, match=rf"{key}: .*not UTF-8"):
        parse_request({key: "a\udcff"}, "x")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    for key in ("guidance", "shift", "fps"):
        assert refusal({key: bad}).startswith(f"mine.json, {key}: ")


@pytest.mark.parametrize("data", ["[1]", "null", '"x"', "5"])
def test_only_objects_are_requests(data: str) -> None:
    assert "must be an object" in refusal(data)


def test_line_numbers_point_at_the_value() -> None:
    assert refusal('{\n  "prompt": "x",\n  "steps": 0\n}').startswith("mine.json, line 3, column 12, steps: ")


def test_the_number_of_further_problems_is_said() -> None:
    with pytest.raises(SourceError, match=r" \(2 more mistakes\.\)$") as told:
        parse_request('{"steps": 0, "framez": 1, "accel": {"vae": "A B"}}', "mine.json")
    places = [str(mistake).split(": ")[0] for mistake in told.value.problems]
    assert places == [f"mine.json, line 1, column {place}" for place in ("11, steps", "14, framez", "44, accel.vae")]


def test_prompts_are_kept_as_they_are_up_to_the_cap() -> None:
    for prompt in ("", "  ", "a\nb\t\0", "🚀" * MAX_PROMPT):
        assert parse_request({"prompt": prompt}, "x").prompt == prompt
    assert "100,000 characters" in refusal({"prompt": "x" * (MAX_PROMPT + 1)})
    assert "prompt" in refusal({"prompt": "\ud800"})
    written = json.dumps({"prompt": "\0" * MAX_PROMPT, "negative_prompt": "\0" * MAX_PROMPT})
    assert len(parse_request(written, "x").prompt) == MAX_PROMPT


def test_keys_of_a_newer_version_warn_and_have_no_effect(caplog: pytest.LogCaptureFixture) -> None:
    data = {
        "kinetile": 2,
        "prompt": "x",
        "sparkle": {"a": 1},
        "accel": {"warp": "on"},
        "loras": [{"name": "a", "hue": 3}],
    }
    with caplog.at_level(logging.WARNING, "kinetile"):
        request = parse_request(data, "mine.json")
    assert request == GenerationRequest(prompt="x", loras=(Lora(name="a"),))
    said = [record.getMessage() for record in caplog.records]
    assert [text.split(":")[0] for text in said] == [
        "mine.json, sparkle",
        "mine.json, accel.warp",
        "mine.json, loras.0.hue",
    ]
    assert "written by a newer Kinetile" in refusal({"kinetile": 2, "steps": "many"})


@pytest.mark.parametrize(
    ("given_name", "kept"),
    [
        ("styles\\soft.safetensors", "styles/soft.safetensors"),
        ("styles/soft.safetensors", "styles/soft.safetensors"),
        ("D:\\models\\soft.safetensors", "soft.safetensors"),
        ("/home/somebody/models/soft.safetensors", "soft.safetensors"),
        ("~/models/soft.safetensors", "soft.safetensors"),
        ("\\\\server\\share\\soft.safetensors", "soft.safetensors"),
    ],
)
def test_lora_names_lose_what_is_of_another_machine(given_name: str, kept: str) -> None:
    """Case 29: stored relative, with "/"; of an absolute path only the file's own name."""
    request = parse_request({"loras": [{"name": given_name}, given_name]}, "x")
    assert request.loras == (Lora(name=kept), Lora(name=kept))
    assert "somebody" not in request.model_dump_json()


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/", "C:\\", "", "a\0", "CON"])
def test_lora_names_cannot_climb(name: str) -> None:
    assert "LoRA folder" in refusal({"loras": [name]})


@pytest.mark.parametrize("name", ["/etc/x.png", "../x.png", "C:\\x.png", "a\\..\\..\\x", "NUL", "~/x", "a\0", ""])
@pytest.mark.parametrize("key", ["image", "last_image"])
def test_pictures_stay_in_the_presets_folder(key: str, name: str) -> None:
    assert "the preset's own folder" in refusal({key: name})
    assert parse_request({key: "sub\\x.png"}, "x").model_dump()[key] == "sub/x.png"


def test_requests_never_change_in_place() -> None:
    request = GenerationRequest()
    with pytest.raises(ValidationError):
        request.steps = 3


def test_set_takes_json_or_text() -> None:
    request = GenerationRequest(loras=(Lora(name="a"),), negative_prompt="x").with_set(
        ["steps=5", "accel.attention=sdpa", "prompt=a = b, c", "loras.0.weight=0.5", "negative_prompt=null", "fps=12"]
    )
    assert (request.steps, request.fps, request.prompt, request.negative_prompt) == (5, 12.0, "a = b, c", None)
    assert request.accel.attention == "sdpa"
    assert request.loras == (Lora(name="a", weight=0.5),)
    assert GenerationRequest().with_set(["prompt=2024"]).prompt == "2024"
    assert GenerationRequest().with_set(['prompt="quoted"']).prompt == "quoted"
    assert GenerationRequest().with_set(["negative_prompt=7"]).negative_prompt == "7"
    assert GenerationRequest().with_set(["image=1.5"]).image == "1.5"
    assert GenerationRequest().with_set(["accel.compile=true"]).accel.compile == "true"
    assert GenerationRequest().with_set(['loras=["a"]']).loras == (Lora(name="a"),)
    assert GenerationRequest(seed=4).with_set(["seed=null"]).seed is None
    assert GenerationRequest(seed=4).with_set(["seed=random"]).seed is None
    assert GenerationRequest(seed=4).with_set(["seed= 5"]).seed == 5


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("steps", "KEY=VALUE"),
        ("=3", "KEY=VALUE"),
        ("steps=x", "whole number"),
        ("steps=", "whole number"),
        ("guidance=NaN", "a number"),
        ("seed=9007199254740993", "9007199254740993"),
        ("seed=any", "must be a whole number from 0 to 9,007,199,254,740,991, or random"),
        ("stepz=3", 'did you mean "steps"'),
        ("accel.atention=x", 'did you mean "attention"'),
        ("steps.x=3", "no further keys"),
        ("loras.0.weight=1", "no further keys"),
        ("loras.0=a", "not an entry"),
        ("accel=sdpa", "an object"),
    ],
)
def test_bad_assignments_are_named(assignment: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        GenerationRequest().with_set([assignment])
    assert str(caught.value).startswith(f"--set {assignment}")
    assert says in str(caught.value)


def test_expand_counts_seeds_up() -> None:
    clips = GenerationRequest(seed=7, count=3, prompt="x").expand()
    assert [clip.seed for clip in clips] == [7, 8, 9]
    assert {clip.count for clip in clips} == {1}
    assert {clip.prompt for clip in clips} == {"x"}
    assert GenerationRequest(seed=MAX_SEED).expand()[0].seed == MAX_SEED
    with pytest.raises(UsageError, match="the largest seed"):
        GenerationRequest(seed=MAX_SEED, count=2).expand()


def test_expand_draws_a_random_seed_where_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = {GenerationRequest().expand()[0].seed for _ in range(8)}
    assert len(drawn) == 8
    # The highest value the generator can give still leaves room for all of them.
    monkeypatch.setattr("secrets.randbelow", lambda bound: bound - 1)
    assert GenerationRequest(count=1000).expand()[-1].seed == MAX_SEED


def test_reading_requests_needs_no_heavy_package() -> None:
    heavy = {"torch", "diffusers", "gradio", "transformers"}
    code = f"import sys, app.presets, app.models; print(sorted({heavy} & set(sys.modules)))"
    root = Path(__file__).resolve().parents[2]
    out = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "data",
    [
        {"kinetile": 2, **{f"k{i}": 1 for i in range(50_000)}},
        {"kinetile": 2, "loras": [{"name": "a", f"k{i}": 1} for i in range(20_000)]},
        {"loras": [{"name": 1, "weight": "x"}] * 50_000},
        {f"k{i}": 1 for i in range(90_000)},
    ],
)
def test_hostile_sizes_are_refused_in_one_short_sentence(data: dict[str, Any]) -> None:
    text = refusal(json.dumps(data, indent=1))
    assert text.startswith("mine.json, line ")
    assert len(text) < 400
