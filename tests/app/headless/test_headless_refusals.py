"""What a batch refuses before anything loads: one sentence, the right code, nothing written."""

import errno
import json
import os
import re
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from app import cli
from app.arguments import parser
from app.presets import encode_code
from app.request import GenerationRequest
from tests.app.ffmpeg_stand_ins import LISTS_ENCODER, needs_shell, stand_in
from tests.app.headless.batches import SMALL, Batch
from tests.app.standin import StandIn


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (
            '{"kinetile": 1, "request": {"steps": 3,}}',
            "bad.json, line 1, column 40: a key in double quotes",
        ),
        ('{\n  "kinetile": 1,\n  "request": {"steps": [3,]}\n}', "bad.json, line 3, column 27: a value was expected"),
        ('{"kinetile": 1, "request": {"steps": "many"}}', "request.steps"),
        ('{"kinetile": 1, "request": {"guidance": NaN}}', "NaN"),
        ('{"kinetile": 1, "request": {"steps": 0}}', "request.steps"),
        ('{"kinetile": 1, "request": {"seed": -1}}', "request.seed"),
        ('{"kinetile": 1, "request": {"seed": 1152921504606846976}}', "request.seed"),
        ('{"kinetile": 1, "request": {"stepps": 3}}', 'did you mean "steps"'),
        ('{"kinetile": 1, "request": {"model": "nothing"}}', 'bad.json: model: "nothing" is not known'),
        ('{"kinetile": 1, "request": {"seed": 9007199254740991, "count": 2}}', "bad.json: seed 9007199254740991"),
        ('{"kinetile": 1, "request": {"image": "../../etc/passwd"}}', "request.image"),
        ('{"kinetile": 1, "request": {"scheduler": "euler"}}', "scheduler"),
        ('{"kinetile": 1, "request": {"accel": {"attention": "nonsense"}}}', "bad.json: accel: attention=nonsense"),
        ('{"kinetile": 1, "request": {"accel": {"offload": "moon"}}}', "bad.json: accel: offload=moon"),
        ('{"kinetile": 1, "name": "../../evil", "request": {}}', "name"),
        ("", "bad.json"),
    ],
)
def test_a_bad_preset_is_one_clear_sentence_and_nothing_is_written(
    batch: Batch, no_loading: None, content: str, words: str
) -> None:
    """Case 25: with file, line and column where JSON itself is broken; the good one beside it is not made either."""
    path = batch.folder / "bad.json"
    path.write_text(content, encoding="utf-8")
    assert batch.run(batch.preset("good"), str(path)) == 2
    assert words in batch.stderr
    assert len(batch.stderr.strip().splitlines()) == 1
    assert "Traceback" not in batch.stderr
    assert not batch.files


def test_all_wrong_lines_of_a_batch_are_told(batch: Batch, no_loading: None) -> None:
    lines = [
        '{"stepz": 3}',
        '{"prompt": "a ball"}',
        "nonsense",
        "",
        '{"steps": 0}',
        '{"model": "starter", "frames": -1}',
    ]
    path = batch.folder / "many.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8")
    assert batch.run(str(path)) == 2
    told = batch.stderr.splitlines()
    places = ["many.jsonl:1, column 2, stepz", "many.jsonl:3, column 1", "many.jsonl:5, column 11, steps"]
    for place, line in zip([*places, "many.jsonl:6, column 32, frames"], told, strict=True):
        assert place in line
    path.write_text('{"scheduler": "euler"}\n' * 25, encoding="utf-8")
    assert batch.run(str(path)) == 2
    told = batch.stderr.splitlines()
    assert [line.split(": ")[0].rpartition("/")[2] for line in told[:-1]] == [f"many.jsonl:{n}" for n in range(1, 11)]
    assert told[-1] == "... and 15 more mistakes."
    assert batch.run(str(path), assignments=("steps=many",)) == 2
    assert batch.stderr.count("--set steps=many") == 1, "what was typed for all of them is wrong once"


def test_a_line_is_told_at_its_fault_beside_lines_that_no_model_can_make(batch: Batch, no_loading: None) -> None:
    path = batch.folder / "cut.jsonl"
    lines = ['{"prompt": "b", "steps": 4,', '{"scheduler": "bogus", "guidance_2": 3}', '{"prompt": "b', '{"fps": 0}']
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    assert batch.run(str(path), assignments=("framez=3", "steps=many", "fps=8")) == 2
    told = batch.stderr.splitlines()
    assert told[0] == f"{path}:1, column 28: a key in double quotes was expected, not the end of the line."
    begins = [":2: scheduler: ", ":2: guidance_2: ", ":3, column 12: this text has no closing", ":4, column 9, fps: 0 "]
    assert [one for line in told for one in begins if line.startswith(f"{path}{one}")] == begins
    assert [line.split(",")[0] for line in told if line.startswith("--")] == ["--set framez=3", "--set steps=many"]
    assert len(told) == 7


def test_every_mistake_of_a_preset_and_of_what_was_typed_is_told(batch: Batch, no_loading: None) -> None:
    path = batch.folder / "many.json"
    whole = {"kinetile": 1, "titel": "x", "notes": 5, "fps": 3, "request": {"stepz": 4, "framez": 4, "seed": -1}}
    path.write_text(json.dumps(whole), encoding="utf-8")
    assert batch.run(str(path), assignments=("fpz=3",)) == 2
    told = [re.sub(r"^.*many\.json, line 1, column \d+, ", "", line) for line in batch.stderr.splitlines()]
    keys = ["fps", "titel", "notes", "request.stepz", "request.framez", "request.seed", "--set fpz=3, fpz"]
    assert [line.split(": ")[0] for line in told] == keys
    pictures = {"image": Path("gone.png"), "last_image": Path("lost.png")}
    assert batch.run(batch.preset("good"), assignments=("steps=x", "scheduler=ddim"), pictures=pictures) == 2
    told = [line.split(" ")[1] for line in batch.stderr.splitlines()]
    assert told == ["steps=x,", "gone.png", "lost.png", "scheduler=ddim:", "The"]


@pytest.mark.parametrize("value", ["../../evil", "/tmp/evil", "C:\\evil", "a/../../b", "CON", "nul\0byte", "link/evil"])
def test_a_preset_says_nothing_of_where_a_clip_goes(batch: Batch, no_loading: None, value: str) -> None:
    """Case 28: neither beside its request nor in it, whatever the key and the source."""
    batch.home.outputs.joinpath("link").symlink_to(batch.folder, target_is_directory=True)
    before = sorted(batch.folder.rglob("*"))
    for key in ("name", "file", "filename", "output", "out", "folder", "stem", "home"):
        wholes = [{"kinetile": 1, key: value, "request": SMALL}, {"kinetile": 1, "request": SMALL | {key: value}}]
        paths = [batch.folder / name for name in ("beside.json", "inside.json", "batch.jsonl")]
        for path, whole in zip(paths, [*wholes, SMALL | {key: value}], strict=True):
            path.write_text(json.dumps(whole), encoding="utf-8")
        assert batch.run(*map(str, paths)) == 2
        assert [f"{key}: there is no such key" in line for line in batch.stderr.splitlines()] == [True] * 3
        for path in paths:
            path.unlink()
    assert sorted(batch.folder.rglob("*")) == before


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file names")
@pytest.mark.parametrize("name", ["C:\\evil", "CON", "..\\..\\evil", "\u202egnp.exe", "é" * 120])
def test_a_preset_s_own_name_leads_nowhere_else(batch: Batch, name: str) -> None:
    """Case 28: the clip is named after its source, inside the folder and legal on every system."""
    assert batch.run(batch.preset(name), make_engine=StandIn) == 0, batch.stderr
    (clip,) = batch.clips
    assert not set('\\/:*?"<>|\u202e') & set(clip.name)
    assert len(clip.name.encode()) < 143
    assert clip.resolve().parent == batch.out.resolve()


def test_all_that_is_wrong_is_said_at_once(batch: Batch, no_loading: None) -> None:
    code = encode_code(GenerationRequest.model_validate(SMALL))
    flipped = code[:-1] + ("A" if code[-1] != "A" else "B")
    assert batch.run(str(batch.folder / "missing.json"), flipped, batch.preset("zero", steps=0)) == 2
    lines = batch.stderr.strip().splitlines()
    assert len(lines) == 3
    assert "missing.json" in lines[0]
    assert "code" in lines[1]
    assert "zero.json" in lines[2]


def test_an_unknown_model_is_blamed_on_what_named_it(batch: Batch, no_loading: None) -> None:
    assert batch.run(batch.preset("good"), assignments=("model=nothing",)) == 2
    assert batch.stderr.startswith("--set model=nothing: ")


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("--image gone.png", "--image: gone.png can't be read"),
        ("--set model=wan2.1-t2v-1.3b --image gone.png", "--image: gone.png can't be read"),
        ("--image README.md", "--image: README.md is no picture that can be read"),
        ("--last-image app/ui/assets/pictures/create.webp", "--last-image: The starter can't use a last picture"),
        ("--lora a=99", "--lora a=99, loras.0.weight: 99.0 is not possible"),
        ("--lora ../x --lora y", '--lora ../x --lora y, loras.0.name: "../x" holds ".."'),
        ("--accel dtype=float32,colour=red", "--accel colour=red, accel.colour: there is no such key"),
        ("--accel attention=bogus", "--accel attention=bogus: attention=bogus is not known"),
        ("--set scheduler=ddim", "--set scheduler=ddim: The starter has no 'ddim'"),
        ("--set model=wan2.1-t2v-1.3b --set frames=15 --strict", "{preset}: Refused because of --strict: Wan 2.1"),
    ],
)
def test_an_error_names_what_was_typed(
    batch: Batch, no_loading: None, monkeypatch: pytest.MonkeyPatch, typed: str, says: str
) -> None:
    monkeypatch.chdir(Path(__file__).parents[3])
    options = parser().parse_args(["--headless", *typed.split()])
    pictures = {name: path for name in ("image", "last_image") if (path := vars(options)[name]) is not None}
    preset = batch.preset("good")
    assert batch.run(preset, assignments=cli._assignments(options), pictures=pictures, strict=options.strict) == 2
    assert batch.stderr.startswith(says.format(preset=preset))


def test_a_refused_run_makes_no_outputs_folder(batch: Batch, no_loading: None) -> None:
    assert batch.run(batch.preset("zero", steps=0), out=None) == 2
    assert not (batch.home.root / "outputs").exists()


@pytest.mark.parametrize("assignment", ["steps", "steps=0", "sttteps=1", "accel.vae.x=1", "count=0"])
def test_a_bad_assignment_is_refused(batch: Batch, no_loading: None, assignment: str) -> None:
    assert batch.run(batch.preset("good"), assignments=(assignment,)) == 2
    assert "--set" in batch.stderr


def test_a_forced_accelerator_that_cannot_run_is_refused(batch: Batch, no_loading: None) -> None:
    # float16 fits no text encoder of this family, on any machine
    assert batch.run(batch.preset("good"), assignments=("accel.dtype=float16",)) == 3
    assert "float16" in batch.stderr
    assert not batch.files


def test_a_folder_that_cannot_be_written_is_found_first(batch: Batch, no_loading: None) -> None:
    batch.out.write_text("in the way", encoding="utf-8")
    assert batch.run(batch.preset("good")) == 3
    assert str(batch.out) in batch.stderr
    assert batch.out.read_text(encoding="utf-8") == "in the way"


def test_a_read_only_folder_is_found_first(batch: Batch, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("app.video.outputs.tempfile.TemporaryFile", refuse)
    assert batch.run(batch.preset("good")) == 3
    assert "permission denied" in batch.stderr


def test_a_full_disk_is_found_first(batch: Batch, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 34."""
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("app.video.outputs.shutil.disk_usage", lambda _: usage(10**9, 10**9, 1000))
    assert batch.run(batch.preset("good")) == 3
    assert "free" in batch.stderr
    assert not batch.files


def test_a_missing_encoder_is_found_first(batch: Batch, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 32."""
    monkeypatch.setenv("IMAGEIO_FFMPEG_EXE", str(batch.folder / "no-ffmpeg"))
    assert batch.run(batch.preset("good")) == 3
    assert "ffmpeg" in batch.stderr
    assert not batch.files


@needs_shell
def test_an_ffmpeg_in_the_path_is_not_ours(batch: Batch, no_loading: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 32: the bundled one goes first; only without it the system's is taken, and proved before anything loads."""
    import imageio_ffmpeg

    stand_in(monkeypatch, batch.folder, "sys.exit(\"Unknown encoder 'libx264'\")")
    monkeypatch.delenv("IMAGEIO_FFMPEG_EXE")
    monkeypatch.setenv("PATH", str(batch.folder), prepend=os.pathsep)
    assert batch.run(batch.preset("good"), make_engine=StandIn) == 0, batch.stderr
    monkeypatch.setattr(imageio_ffmpeg, "get_ffmpeg_exe", lambda: "ffmpeg")
    assert batch.run(batch.preset("good")) == 3
    assert batch.stderr.startswith("ffmpeg at ffmpeg fails (Unknown encoder 'libx264')")
    assert len(batch.clips) == 1


@needs_shell
def test_an_encoder_that_fails_at_last_costs_no_frames(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 32: the end of what it said is told, the frames lie beside, and the run is no success."""
    stand_in(monkeypatch, batch.folder, LISTS_ENCODER + 'sys.exit("chatter\\nUnknown encoder")')
    assert batch.run(batch.preset("lost"), make_engine=StandIn) == 3
    assert "(chatter / Unknown encoder). The frames are kept as PNG pictures in" in batch.stderr
    assert not batch.clips
    assert len(list((batch.out / "lost-3-frames").glob("*.png"))) == SMALL["frames"]


def test_dry_run_checks_everything_and_makes_nothing(batch: Batch, no_loading: None) -> None:
    assert batch.run(batch.preset("odd", frames=15), count=2, dry_run=True) == 0
    assert "Would make 2 clips" in batch.stdout
    assert "15 frames become 13" in batch.stdout
    assert "nothing was made" in batch.stdout
    assert not batch.files
    assert batch.run(batch.preset("zero", steps=0), dry_run=True) == 2


def test_a_small_file_that_asks_for_millions_of_clips_is_refused(batch: Batch, no_loading: None) -> None:
    path = batch.folder / "many.jsonl"
    path.write_text('{"count": 1000}\n' * 10_000, encoding="utf-8")
    assert batch.run(str(path)) == 2
    assert batch.stderr.strip().endswith("many.jsonl:11: one run makes at most 10,000 clips; split the batch.")
    assert not batch.files
