"""The batch in one process: what is refused beforehand, one failure among others, Ctrl-C, what is told and stored."""

import io
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app import video
from app.engine import Clip, Engine, kept
from app.errors import CannotRunError, JobFailedError, UsageError
from app.headless import BatchSettings, share
from app.headless.batch import prepare
from app.models.base import Family
from app.paths import Home
from app.presets import decode_code, encode_code
from app.request import GenerationRequest
from app.video import decode_frames, read_metadata
from tests.app.engines import SpoilStep, force_accelerated
from tests.app.headless.batches import SMALL, Batch

# -- clips ------------------------------------------------------------------------------------------------------------


def test_a_preset_becomes_a_clip_that_knows_how_it_was_made(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket")) == 0, batch.stderr
    assert [path.name for path in batch.files] == ["rocket-3.mp4", "rocket-3.png"]
    metadata = read_metadata(batch.clips[0])
    assert metadata["request"]["prompt"] == "a red ball"
    assert metadata["request"]["shift"] == 3.0, "defaults are stored resolved"
    assert metadata["asked"]["shift"] is None
    assert metadata["adjustments"] == []
    assert metadata["plan"]["stages"]
    assert metadata["report"]["threads"] >= 1
    assert {"load", "text", "denoise", "decode", "total"} <= set(metadata["timings"])
    assert {"kinetile", "python", "torch", "diffusers"} <= set(metadata["versions"])
    assert "rocket-3.mp4" in batch.stdout
    assert "1 of 1 made" in batch.stdout
    assert not batch.stderr


def test_a_clip_fed_back_gives_the_same_frames_with_the_same_plan(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket"), assignments=("accel.vae=stock", "accel.dtype=float32")) == 0
    assert batch.run(str(batch.clips[0])) == 0
    first, second = batch.clips
    assert np.array_equal(decode_frames(first), decode_frames(second))
    plans = [read_metadata(path)["plan"] for path in (first, second)]
    engaged = [
        [(s["stage"], k, s[k]["engaged"]) for s in p["stages"] for k in ("dtype", "linear", "vae")] for p in plans
    ]
    assert engaged[0] == engaged[1]
    assert "It was made with" not in batch.stdout


def test_a_clip_from_another_machine_says_what_differs(batch: Batch) -> None:
    """Row 53, seen too (pytorch issue 183809): another torch may compute other bits, so it is named."""
    assert batch.run(batch.preset("rocket")) == 0
    metadata = read_metadata(batch.clips[0])
    stage = next(stage for stage in metadata["plan"]["stages"] if stage["stage"] == "transformer")
    stage["attention"]["engaged"] = "kernel_of_the_future"
    metadata["versions"]["torch"] = "1.0"
    foreign = video.save(decode_frames(batch.clips[0]), 8, batch.folder, "foreign", metadata)
    assert batch.run(str(foreign.path)) == 0
    assert "It was made with transformer attention kernel_of_the_future, here it is " in batch.stdout
    assert "It was made with torch 1.0 (here 2." in batch.stdout


def test_a_recorded_plan_that_is_nonsense_is_said_and_not_used(batch: Batch) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (5, 64, 64, 3), dtype=np.uint8)
    for number, plan in enumerate(({"stages": 7}, [1], "x")):
        metadata = {"kinetile": 1, "request": SMALL | {"kinetile": 1}, "plan": plan}
        odd = video.save(frames, 8, batch.folder, f"odd-{number}", metadata)
        assert batch.run(str(odd.path)) == 0, batch.stderr
        assert "can't be read" in batch.stdout


def test_a_strange_clip_may_not_flood_or_command_the_terminal(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket")) == 0
    metadata = read_metadata(batch.clips[0])
    for stage in metadata["plan"]["stages"]:
        stage["dtype"]["engaged"] = "\x1b[31m" + "z" * 50_000
    metadata["plan"]["stages"] *= 20
    metadata["versions"] |= {"torch": "\x1b]0;evil\x07" + "9" * 50_000, "python": {"a": [1] * 1000}}
    strange = video.save(decode_frames(batch.clips[0]), 8, batch.folder, "strange", metadata)
    assert batch.run(str(strange.path), dry_run=True) == 0, batch.stderr
    assert batch.stdout.count("It was made with transformer dtype ?[31mzzz") == 1
    assert len(batch.stdout) < 3000, len(batch.stdout)
    assert "\x1b" not in batch.stdout


@pytest.mark.parametrize("assignment", ["accel.gpus=2", "accel.vae=stock"])
def test_more_gpus_leave_the_recorded_plan_and_other_wishes_do_not(batch: Batch, assignment: str) -> None:
    batch.run(batch.preset("rocket"))
    outcomes, problems = prepare([str(batch.clips[0])], BatchSettings(assignments=(assignment,), home=batch.home))
    assert problems == []
    assert (outcomes[0].spec.recorded_plan is None) == (assignment != "accel.gpus=2")


def test_clips_on_several_gpus_are_refused_over_ray_before_anything_is_looked_at(batch: Batch) -> None:
    sources = [batch.preset("one"), batch.preset("two", accel={"gpus": 2}), batch.preset("three", accel={"gpus": 4})]
    assert batch.run(*sources, ray="local") == 2
    assert "two.json: gpus=2 can't be had with --ray, which gives each engine one GPU; leave one" in batch.stderr
    assert "gpus=4" in batch.stderr
    assert "one.json" not in batch.stderr
    assert "Looking at the machines" not in batch.stdout


def test_an_accel_wish_beats_the_recorded_plan(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket"), assignments=("accel.dtype=float32", "accel.vae=stock")) == 0
    assert batch.run(str(batch.clips[0]), assignments=("accel.dtype=bfloat16", "accel.vae=stock")) == 0
    plan = read_metadata(batch.clips[1])["plan"]
    assert {stage["dtype"]["engaged"] for stage in plan["stages"]} == {"bfloat16"}


def test_count_makes_seeds_one_apart_and_stores_each(batch: Batch) -> None:
    """Case 53: one of a series, made again alone, is the same clip."""
    assert batch.run(batch.preset("rocket"), count=3) == 0
    assert [path.name for path in batch.clips] == ["rocket-3.mp4", "rocket-4.mp4", "rocket-5.mp4"]
    assert [read_metadata(path)["request"]["seed"] for path in batch.clips] == [3, 4, 5]
    assert len({decode_frames(path).tobytes() for path in batch.clips}) == 3
    assert [read_metadata(path)["request"]["count"] for path in batch.clips] == [1, 1, 1], "each for itself"
    assert batch.run(str(batch.clips[1])) == 0
    assert np.array_equal(decode_frames(batch.clips[1]), decode_frames(batch.clips[3]))


def test_a_random_seed_is_stored_and_makes_the_clip_again(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket", seed=None)) == 0
    assert batch.run(str(batch.clips[0])) == 0
    first, second = batch.clips
    assert read_metadata(first)["request"]["seed"] == read_metadata(second)["request"]["seed"] is not None
    assert np.array_equal(decode_frames(first), decode_frames(second))


def test_every_kind_of_source_in_one_batch(batch: Batch) -> None:
    lines = batch.folder / "many.jsonl"
    lines.write_text("\n".join(json.dumps(SMALL | {"seed": seed}) for seed in (21, 22)), encoding="utf-8")
    code = encode_code(GenerationRequest.model_validate(SMALL | {"seed": 31}))
    assert batch.run(batch.preset("rocket"), str(lines), code) == 0, batch.stderr
    seeds = sorted(read_metadata(path)["request"]["seed"] for path in batch.clips)
    assert seeds == [3, 21, 22, 31]


def test_nothing_named_makes_the_first_shipped_preset(batch: Batch) -> None:
    small = [f"{key}={SMALL[key]}" for key in ("width", "height", "frames", "steps")]
    assert batch.run(assignments=tuple(small)) == 0, batch.stderr
    assert batch.clips[0].name.startswith("starter-rocket-")


def test_the_output_folder_is_the_home_s_unless_named(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket"), out=None) == 0
    assert [path.name for path in batch.home.outputs.glob("*.mp4")] == ["rocket-3.mp4"]


def test_names_that_are_taken_are_never_overwritten(batch: Batch) -> None:
    assert batch.run(batch.preset("rocket")) == 0
    before = batch.clips[0].read_bytes()
    assert batch.run(batch.preset("rocket")) == 0
    assert len(batch.clips) == 2
    assert batch.out.joinpath("rocket-3.mp4").read_bytes() == before


# -- adjusted ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said", "stored"),
    [
        ({"frames": 15}, "15 frames become 13", ("frames", 15, 13)),
        ({"width": 250, "height": 141}, "250 becomes 256", ("width", 250, 256)),
        ({"prompt": "a red ball " * 1300}, "64 of ", ("prompt", None, "64 tokens")),
    ],
)
def test_adjusted_input_is_said_before_the_run_stored_and_run(
    batch: Batch, changes: dict[str, Any], said: str, stored: tuple[str, Any, Any]
) -> None:
    assert batch.run(batch.preset("odd", **changes)) == 0, batch.stderr
    assert said in batch.stdout
    assert batch.stdout.index(said) < batch.stdout.index("loading the model")
    found = {item["field"]: item for item in read_metadata(batch.clips[0])["adjustments"]}
    field, asked, used = stored
    assert found[field]["used"] == used
    assert asked is None or found[field]["asked"] == asked
    for key, value in changes.items():
        assert read_metadata(batch.clips[0])["asked"][key] == value


def test_strict_refuses_what_would_be_adjusted(batch: Batch, no_loading: None) -> None:
    assert batch.run(batch.preset("odd", frames=15), strict=True) == 2
    assert "--strict" in batch.stderr
    assert "odd.json" in batch.stderr
    assert not batch.files


def test_an_empty_prompt_is_said_to_run_unconditionally(batch: Batch) -> None:
    assert batch.run(batch.preset("empty", prompt="")) == 0
    assert "unconditionally" in batch.stdout


# -- failures and stops among others ----------------------------------------------------------------------------------


def failing(seeds: dict[int, Exception]) -> Callable[[Home], Engine]:
    """An engine that fails for some seeds and works for all others."""

    class Failing(Engine):
        def generate(self, request: GenerationRequest, *arguments: Any, **options: Any) -> Clip:
            if request.seed in seeds:
                raise seeds[request.seed]
            return super().generate(request, *arguments, **options)

    return Failing


def test_one_failing_clip_does_not_stop_the_others(batch: Batch) -> None:
    broken = failing({4: JobFailedError("Out of memory while denoising, step 1 of 2: try a smaller size.")})
    assert batch.run(batch.preset("rocket"), count=3, make_engine=broken) == 1
    assert [path.name for path in batch.clips] == ["rocket-3.mp4", "rocket-5.mp4"]
    assert batch.stderr == "2/3 rocket-4: Out of memory while denoising, step 1 of 2: try a smaller size.\n"
    assert "(rocket-4: failed)" in batch.stdout
    assert "2 of 3 made, 1 failed" in batch.stdout


def test_when_nothing_can_run_here_the_code_says_so(batch: Batch) -> None:
    broken = failing(dict.fromkeys((3, 4), CannotRunError("Not on this machine.")))
    assert batch.run(batch.preset("rocket"), count=2, make_engine=broken) == 3
    assert batch.run(batch.preset("rocket"), count=3, make_engine=broken) == 1


def test_a_decoder_that_fails_leaves_no_file(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 37: the code says that it failed, the reason is told, and nothing looks like a clip."""
    from diffusers import AutoencoderKLWan

    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the decoder broke")

    monkeypatch.setattr(AutoencoderKLWan, "decode", fail)
    assert batch.run(batch.preset("rocket")) == 1
    assert "the decoder broke" in batch.stderr
    assert not batch.files


def test_a_clip_whose_end_failed_goes_on_with_resume(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 52: what to do is told, only decoding is left to do, and the clip is the undisturbed one."""
    from diffusers import AutoencoderKLWan

    def fail(*_: Any, **__: Any) -> None:
        raise MemoryError

    source = batch.preset("rocket")
    assert batch.run(source) == 0
    with monkeypatch.context() as spoiled:
        spoiled.setattr(AutoencoderKLWan, "decode", fail)
        assert batch.run(source, count=2) == 1
    assert batch.stderr.count("goes on from decoding") == 2
    steps: list[int] = []
    monkeypatch.setattr("app.engine.watcher.check_latents", lambda latents, step, backends: steps.append(step))
    assert batch.run(source, count=2, resume=True) == 0, batch.stderr
    assert batch.stdout.count(kept.WENT_ON) == 2
    assert steps == []
    first, again, other = (decode_frames(path) for path in batch.clips)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert list(batch.home.latents.iterdir()) == []


@pytest.mark.parametrize("accelerated", [True, False])
def test_latents_that_turn_to_nan_are_a_failed_clip_and_no_file(
    batch: Batch, monkeypatch: pytest.MonkeyPatch, accelerated: bool
) -> None:
    """Case 16: it must not end as a clip of one flat colour and a success."""
    force_accelerated(monkeypatch, accelerated)
    SpoilStep(monkeypatch, step=3, times=9)
    assert (
        batch.run(
            batch.preset("rocket", steps=4),
            assignments=("accel.vae=direct_conv3d", "accel.linear=stock", "accel.text_encoder_linear=stock"),
        )
        == 1
    )
    assert "latent values are not finite at step 3 of 4, with attention sdpa, vae direct_conv3d" in batch.stderr
    assert ("the reference backends again" in batch.stderr) == accelerated
    assert "1 failed" in batch.stdout
    assert batch.files == []


def test_one_bad_moment_of_a_backend_costs_a_second_try_that_is_told(
    batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 16: by the reference backends, in the summary and in the clip's own file."""
    force_accelerated(monkeypatch, True)
    SpoilStep(monkeypatch, step=1, times=1)
    assert batch.run(batch.preset("rocket")) == 0, batch.stderr
    assert "the clip was made again with the reference backends" in batch.stdout
    assert "at step 1 of 2" in read_metadata(batch.clips[0])["report"]["retried"]


def interrupting(*, at_seed: int, times: int) -> Callable[[Home], Engine]:
    """An engine during whose clip Ctrl-C is pressed at the first denoising step."""

    class Interrupting(Engine):
        def generate(self, request: GenerationRequest, on_progress: Any = None, *others: Any, **options: Any) -> Clip:
            def press(progress: Any) -> None:
                on_progress(progress)
                if request.seed == at_seed and progress.stage == "denoising" and progress.step == 1:
                    for _ in range(times):
                        os.kill(os.getpid(), signal.SIGINT)

            return super().generate(request, press, *others, **options)

    return Interrupting


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send Ctrl-C to itself on Windows")
@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_keeps_what_was_made_and_says_so(batch: Batch, times: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    assert batch.run(batch.preset("rocket", steps=80), count=3, make_engine=interrupting(at_seed=4, times=times)) == 130
    assert [path.name for path in batch.clips] == ["rocket-3.mp4"]
    assert [path.name for path in batch.files] == ["rocket-3.mp4", "rocket-3.png"], "no draft is left"
    assert "Stopping after this step; press Ctrl-C again" in batch.stdout
    assert "(rocket-4: stopped)" in batch.stdout
    assert "(rocket-5: not begun)" in batch.stdout
    assert "Stopped on request: 1 of 3 made, what was made is kept" in batch.stdout
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send Ctrl-C to itself on Windows")
def test_ctrl_c_after_the_last_clip_is_no_failure(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    save = video.save

    def press(*arguments: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return save(*arguments, **options)

    monkeypatch.setattr(video, "save", press)
    assert batch.run(batch.preset("rocket")) == 0, "the clip was finished and kept"
    assert len(batch.clips) == 1


# -- machine-readable -------------------------------------------------------------------------------------------------


def test_json_is_one_document_on_stdout_and_the_rest_on_stderr(batch: Batch) -> None:
    broken = failing({4: JobFailedError("It broke.")})
    assert batch.run(batch.preset("rocket", frames=7), count=2, as_json=True, make_engine=broken) == 1
    document = json.loads(batch.stdout)
    assert document["exit_code"] == 1
    done, failed = document["clips"]
    assert (done["state"], failed["state"]) == ("done", "failed")
    assert Path(done["file"]) == batch.clips[0]
    assert done["adjustments"][0]["used"] == 5
    assert done["timings"]["denoise"] > 0
    assert (failed["error"], failed["file"]) == ("It broke.", None)
    assert "1 of 2 made" in batch.stderr


def test_json_stays_a_document_when_everything_is_refused(batch: Batch, no_loading: None) -> None:
    assert batch.run(batch.preset("zero", steps=0), as_json=True) == 2
    document = json.loads(batch.stdout)
    assert (document["exit_code"], document["clips"]) == (2, [])
    assert "zero.json" in document["errors"][0]


# -- share ------------------------------------------------------------------------------------------------------------


def test_share_prints_a_code_that_holds_the_request(batch: Batch) -> None:
    out = io.StringIO()
    assert share(batch.preset("rocket"), BatchSettings(home=batch.home), out) == 0
    request = decode_code(out.getvalue().strip())
    assert {key: request[key] for key in SMALL} == SMALL


def test_share_of_several_requests_is_refused(batch: Batch) -> None:
    lines = batch.folder / "many.jsonl"
    lines.write_text("{}\n{}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="holds 2 requests"):
        share(str(lines), BatchSettings(home=batch.home), io.StringIO())


def test_where_an_error_came_from_only_on_demand(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = failing({3: JobFailedError("It broke.")})
    assert batch.run(batch.preset("rocket"), make_engine=broken) == 1
    assert "Traceback" not in batch.stderr
    monkeypatch.setenv("KINETILE_DEBUG", "1")
    assert batch.run(batch.preset("rocket"), make_engine=broken) == 1
    assert "Traceback" in batch.stderr


def test_family_fixture_is_the_tiny_one(tiny_family: Family) -> None:
    assert tiny_family.folder is not None
    assert "tiny" in str(tiny_family.folder), "these tests must not depend on the trained weights"
