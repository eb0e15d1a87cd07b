"""Pictures in a batch: beside a preset, on the command line, inside a clip."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers import AutoencoderKLWan

from app.arguments import parser
from app.engine import Clip, Engine
from app.headless import BatchSettings, share
from app.models import starter
from app.presets import decode_code, own_presets, read_source
from app.presets.files import Preset, save_own
from app.presets.incoming import from_upload
from app.request import GenerationRequest
from app.video import decode_frames, read_metadata
from tests.app import lora_files
from tests.app.drawn import drawn, saved
from tests.app.engines import tensor_bytes
from tests.app.headless.batches import Batch

LACKING = 5
"""The seed of a clip that memory runs out for."""


@pytest.fixture
def pictured(tmp_path: Path, tiny_models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A batch on a tiny model that also makes clips from a picture; a.png lies beside its presets."""
    family = replace(
        starter.STARTER, image_pipeline="WanImageToVideoPipeline", takes=starter.STARTER.takes | {"image"}
    ).with_folder(tiny_models("wan-ti2v"))
    monkeypatch.setattr(starter, "FAMILIES", (family,))
    (tmp_path / "a.png").write_bytes(saved(drawn(96, 64)))
    return Batch(tmp_path)


def test_a_clip_made_from_a_picture_makes_itself_again_where_the_picture_is_not(pictured: Batch) -> None:
    assert pictured.run(pictured.preset("one", image="a.png")) == 0, pictured.stderr
    assert "adjusted: The first picture has 96x64 pixels; 32 of its 96 columns are cut off" in pictured.stdout
    (clip,) = pictured.clips
    metadata = read_metadata(clip)
    assert metadata["request"]["image"] == metadata["asked"]["image"]
    assert [item["field"] for item in metadata["adjustments"]] == ["image"]
    (pictured.folder / "a.png").unlink()
    shutil.rmtree(pictured.home.pictures)
    assert pictured.run(str(clip)) == 0, pictured.stderr
    assert "adjusted:" not in pictured.stdout, "it has the clip's size already"
    first, second = pictured.clips
    assert np.array_equal(decode_frames(first), decode_frames(second))
    assert pictured.run(str(second)) == 0
    assert read_metadata(pictured.clips[2])["request"] == read_metadata(second)["request"]


def test_a_picture_on_the_command_line_goes_before_the_preset_s(pictured: Batch) -> None:
    given = pictured.folder / "else where" / "Ünï code.JPG"
    given.parent.mkdir()
    given.write_bytes(saved(drawn(64, 64).rotate(90), "JPEG"))
    assert pictured.run(pictured.preset("one", image="gone.png"), pictures={"image": given}) == 2
    assert "gone.png" in pictured.stderr, "a broken preset stays broken"
    assert pictured.run(pictured.preset("two", image="a.png"), pictures={"image": given}) == 0, pictured.stderr
    assert read_metadata(pictured.clips[0])["request"]["image"].startswith("ünï-code-")
    options = parser().parse_args(["--headless", "x", "--image", "a b.png", "--last-image", "c.png"])
    assert (options.image, options.last_image) == (Path("a b.png"), Path("c.png"))


@pytest.mark.parametrize(
    ("request_", "settings", "says"),
    [
        ({}, {"pictures": {"image": Path("gone.png")}}, "gone.png can't be read"),
        ({}, {"pictures": {"last_image": Path("a.png")}}, "can't use a last picture"),
        ({"image": "bad.png"}, {}, "image: bad.png is no picture that can be read"),
        ({"image": "a.png"}, {"strict": True}, "Refused because of --strict: The first picture"),
    ],
)
def test_what_can_t_be_used_is_refused_before_anything_runs(
    pictured: Batch,
    monkeypatch: pytest.MonkeyPatch,
    request_: dict[str, Any],
    settings: dict[str, Any],
    says: str,
    no_loading: None,
) -> None:
    monkeypatch.chdir(pictured.folder)
    (pictured.folder / "bad.png").write_bytes(b"text")
    assert pictured.run(pictured.preset("one", **request_), **settings) == 2
    assert says in pictured.stderr
    assert pictured.files == []


def test_another_picture_under_the_same_name_is_another_clip(pictured: Batch) -> None:
    preset = pictured.preset("one", image="a.png")
    assert pictured.run(preset) == 0
    assert pictured.run(preset, resume=True) == 0
    assert "Skipping 1 clip" in pictured.stdout
    (pictured.folder / "a.png").write_bytes(saved(drawn(64, 64)))
    assert pictured.run(preset, resume=True) == 0
    assert "Skipping" not in pictured.stdout
    assert len(pictured.clips) == 2


def test_a_clip_s_settings_kept_as_a_preset_bring_their_picture(pictured: Batch) -> None:
    from app.pictures import adopt

    assert pictured.run(pictured.preset("one", image="a.png")) == 0
    found = from_upload(pictured.clips[0])
    request = adopt(found.request, pictured.home, found.folder, found.pictures)
    path = save_own(pictured.home, Preset.of(request, "Mine"))
    (entry,) = own_presets(pictured.home)
    assert entry.problem is None
    shutil.rmtree(pictured.home.pictures)
    name = json.loads(path.read_text())["request"]["image"]
    assert name.startswith("pictures/a-")
    assert (pictured.home.presets / name).is_file()
    assert pictured.run(str(path)) == 0, pictured.stderr
    first, second = pictured.clips
    assert np.array_equal(decode_frames(first), decode_frames(second))


def test_a_missing_lora_and_a_lack_of_memory_cost_their_own_clips_alone(
    pictured: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cases 29, 35: of three clips the second is made; the others are told with their reasons, and memory is back."""
    (family,) = starter.FAMILIES
    monkeypatch.setattr(starter, "FAMILIES", (replace(family, takes=family.takes | {"lora"}),))
    lora_files.save(pictured.home.loras / "soft.safetensors", lora_files.tensors())
    sources = [
        pictured.preset("one", loras=["gone.safetensors"]),
        pictured.preset("two", loras=[r"D:\models\soft.safetensors"]),
        pictured.preset("three", seed=LACKING),
    ]
    held: list[int] = []

    def lack(*_: Any, **__: Any) -> None:
        raise MemoryError

    class Lacking(Engine):
        def generate(self, request: GenerationRequest, *arguments: Any, **options: Any) -> Clip:
            if request.seed != LACKING:
                held.append(tensor_bytes())
                return super().generate(request, *arguments, **options)
            with monkeypatch.context() as spoiled:
                spoiled.setattr(AutoencoderKLWan, "decode", lack)
                try:
                    return super().generate(request, *arguments, **options)
                finally:
                    held.append(tensor_bytes())

    assert pictured.run(*sources, make_engine=Lacking) == 1
    assert "note: LoRA 'gone.safetensors' is missing; put the file into " in pictured.stdout.split("Looking")[0]
    summary = pictured.stdout.split("why not")[1]
    for told in (pictured.stderr, summary):
        assert "LoRA 'gone.safetensors' is missing" in told
        assert "Out of memory while decoding (64x64, 5 frames): try a smaller size" in told
    assert [line.split()[0] for line in summary.split("\n")[1:4]] == ["(one-3:", "two-3.mp4", "(three-5:"]
    assert "1 of 3 made, 2 failed" in summary
    assert held[-1] == held[0], "as before the first"
    (clip,) = pictured.clips
    metadata = read_metadata(clip)
    assert metadata["request"]["loras"] == [{"name": "soft.safetensors", "weight": 1.0, "noise": "auto"}]
    assert metadata["report"]["loras"][0]["layers"] == {"transformer": 6}


def test_nothing_that_is_handed_on_tells_a_person_s_own_folder(
    batch: Batch, tiny_models: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 29: model and LoRA are given by their whole paths; clip, preset and share code hold neither."""
    person = batch.folder
    monkeypatch.setenv("HOME", str(person))
    monkeypatch.setenv("USERPROFILE", str(person))
    shutil.copytree(tiny_models("wan-t2v"), person / "models" / "mine")
    lora_files.save(batch.home.loras / "styles" / "soft.safetensors", lora_files.tensors())
    given = {"model": str(person / "models" / "mine"), "loras": [str(person / "loras" / "soft.safetensors")]}
    preset = batch.preset("mine", width=128, height=128, **given)
    assert batch.run(preset) == 0, batch.stderr
    (clip,) = batch.clips
    code = io.StringIO()
    assert share(preset, BatchSettings(home=batch.home), code) == 0
    shared = decode_code(code.getvalue())
    kept = save_own(batch.home, Preset.of(read_source(preset)[0].request, "Mine"))
    for handed_on in (clip.read_bytes(), kept.read_bytes(), json.dumps(shared).encode()):
        assert str(person).encode() not in handed_on
    assert (shared["model"], shared["loras"][0]["name"]) == ("~/models/mine", "soft.safetensors")
    assert read_metadata(clip)["asked"]["model"] == "~/models/mine"
    assert batch.run(code.getvalue(), assignments=("steps=1",)) == 0, "it is found again all the same"
