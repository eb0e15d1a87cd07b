"""Incomplete folders are told file by file, whatever is missing or cut short of them."""

from __future__ import annotations

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from app.models.sources.wholeness import numbers_in, problems_in, tensors_in, weights_problem
from app.models.starter import WEIGHTS
from tests.app.models.sources.fake_hub import NEEDED, model, safetensors

WEIGHTY = [name for name in NEEDED if name.endswith(".safetensors")]
SETTINGS = ["text_encoder/config.json", "transformer/config.json", "vae/config.json", "model_index.json"]
FILES = {name: content for name, content in model(3000).items() if name in NEEDED}
SIZES = {name: len(content) for name, content in FILES.items()}


def write(folder: Path) -> Path:
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path / "model")


def test_a_whole_folder_has_no_problems(folder: Path, tiny_folder: Path) -> None:
    assert problems_in(folder) == ()
    assert problems_in(folder, SIZES) == ()
    assert problems_in(WEIGHTS) == ()
    assert problems_in(tiny_folder) == ()


@pytest.mark.parametrize("name", [*WEIGHTY, *SETTINGS])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    found = problems_in(folder)
    component = name.partition("/")[0]
    assert found[0] in (f"{name} is missing", f"{component} has no safetensors weights")
    assert len(found) == 1
    assert f"{name} is missing" in problems_in(folder, SIZES)


@pytest.mark.parametrize("name", NEEDED)
def test_with_the_hub_s_listing_every_file_counts(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} is missing" in problems_in(folder, SIZES)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(name=st.sampled_from(WEIGHTY), data=st.data())
def test_a_file_that_was_cut_short_is_named(tmp_path: Path, name: str, data: st.DataObject) -> None:
    folder = write(tmp_path / "model")
    content = FILES[name]
    (folder / name).write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    (told,) = problems_in(folder)
    assert told.startswith(f"{name} ")
    assert any(words in told for words in ("is cut short", "is empty", "can't be read"))


def test_a_file_that_comes_or_changes_is_seen(folder: Path) -> None:
    (folder / WEIGHTY[0]).unlink()
    assert problems_in(folder)
    (folder / WEIGHTY[0]).write_bytes(FILES[WEIGHTY[0]])
    assert problems_in(folder) == ()


def test_a_link_to_nothing_is_a_missing_file(folder: Path) -> None:
    (folder / WEIGHTY[0]).unlink()
    (folder / WEIGHTY[0]).symlink_to(folder / "gone")
    assert problems_in(folder) == (f"{WEIGHTY[0]} is missing",)


def test_pickled_weights_alone_are_refused(folder: Path) -> None:
    (folder / "vae/diffusion_pytorch_model.safetensors").unlink()
    (folder / "vae/diffusion_pytorch_model.bin").write_bytes(b"pickled")
    (told,) = problems_in(folder)
    assert told.startswith("vae/diffusion_pytorch_model.bin is pickled, which can run code")


def test_a_tokenizer_without_files_is_told(folder: Path) -> None:
    shutil.rmtree(folder / "tokenizer")
    assert problems_in(folder) == ("tokenizer is empty",)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '"x"', "\x00"])
def test_an_index_that_can_t_be_read_is_told(folder: Path, text: str) -> None:
    (folder / "model_index.json").write_text(text, encoding="utf-8")
    (told,) = problems_in(folder)
    assert told.startswith("model_index.json ")


@pytest.mark.parametrize("name", ["vae/config.json", "scheduler/scheduler_config.json"])
@pytest.mark.parametrize("text", ['{"half": [', "[]", "\udcff{", "\0" * 40, "[" * 100_000])
def test_settings_that_can_t_be_read_are_told(folder: Path, name: str, text: str) -> None:
    (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    assert problems_in(folder) == problems_in(folder, SIZES) == (f"{name} can't be read",)


def test_settings_may_say_infinity(folder: Path) -> None:
    (folder / "scheduler/scheduler_config.json").write_text('{"lambda_min_clipped": -Infinity}', encoding="utf-8")
    assert problems_in(folder) == ()


@pytest.mark.parametrize("value", [[], {"weight_map": []}, {"weight_map": None}, {}, None])
def test_a_list_of_shards_that_can_t_be_read_is_told(folder: Path, value: object) -> None:
    name = "transformer/diffusion_pytorch_model.safetensors.index.json"
    (folder / name).write_text(json.dumps(value), encoding="utf-8")
    assert problems_in(folder) == (f"{name} can't be read",)


def test_nothing_there_at_all(tmp_path: Path) -> None:
    assert problems_in(tmp_path / "none") == ("model_index.json is missing",)


@given(st.binary(max_size=200))
def test_any_bytes_are_judged_without_an_error(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "x.safetensors"
        file.write_bytes(content)
        told = weights_problem(file)
        assert told is None or told


def test_the_tensors_of_a_file_are_read_without_its_weights(tmp_path: Path) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(safetensors(40)[:-30])
    assert tensors_in(file) == {"weight": (40,)}


ODD = st.none() | st.booleans() | st.text(max_size=3) | st.floats() | st.integers(-(2**70), 2**70)


@given(
    st.dictionaries(
        st.sampled_from(["shape", "data_offsets", "dtype", "x"]),
        st.lists(ODD, max_size=9) | st.lists(st.integers(0, 2**63), max_size=9) | ODD,
    )
    | ODD
)
@example({"shape": [-1], "data_offsets": [0, 4]})
@example({"shape": [float("inf")], "data_offsets": [0, float("inf")]})
@example({"shape": [2**63 - 1] * 8, "data_offsets": [0, 2**63 - 1]})
def test_any_table_is_read_or_refused(entry: object) -> None:
    """Python's json writes infinity and NaN as no JSON, as a stranger may."""
    import tempfile

    text = json.dumps({"__metadata__": entry, "a": entry}).encode()
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "x.safetensors"
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        assert weights_problem(file) is None or weights_problem(file)
        try:
            held = numbers_in(tensors_in(file))
        except ValueError as error:
            assert str(error) == "its table is none"  # noqa: PT017
        else:
            assert 0 <= held < 2**63


@pytest.mark.parametrize(
    "table",
    [
        b'{"a": {"shape": [' + b",".join([b"9" * 300] * 20_000) + b'], "data_offsets": [0, 4]}}',
        b'{"a": [' + b"{}," * 600_000 + b"{}]}",
        b'{"a":' * 300_000,
    ],
)
def test_a_table_that_would_take_for_ever_is_refused_at_once(tmp_path: Path, table: bytes) -> None:
    file = tmp_path / "x.safetensors"
    file.write_bytes(struct.pack("<Q", len(table)) + table)
    assert weights_problem(file) == "can't be read (its table is none)"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders on Windows")
@pytest.mark.parametrize("name", ["model_index.json", WEIGHTY[0], "tokenizer/spare.json"])
def test_what_is_no_file_is_told_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert problems_in(folder) == (f"{name} is no file",)
    assert problems_in(folder / name) == ("model_index.json is missing",)


@pytest.mark.parametrize("part", ["../other", "/etc", "..", "a/b", "a\\b", "\0", "a" * 101, ""])
def test_a_part_outside_of_the_folder_is_told(folder: Path, part: str) -> None:
    index = json.loads((folder / "model_index.json").read_text(encoding="utf-8"))
    (folder / "model_index.json").write_text(json.dumps({**index, part: ["diffusers", "X"]}), encoding="utf-8")
    (told,) = problems_in(folder)
    assert told.startswith("model_index.json names a part ")
    assert told.isprintable()


@pytest.mark.parametrize("shard", ["../../x.safetensors", "/etc/passwd", "a\0.safetensors", "a/b.safetensors", 5, None])
def test_a_shard_outside_of_its_folder_is_told(folder: Path, shard: object) -> None:
    name = "transformer/diffusion_pytorch_model.safetensors.index.json"
    (folder / name).write_text(json.dumps({"weight_map": {"a": shard}}), encoding="utf-8")
    (told,) = problems_in(folder)
    assert told.startswith(f"{name} names ")
    assert told.endswith(", which is no file beside it")
