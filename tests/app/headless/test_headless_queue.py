"""The batch as a client of the queue: resume, fail-fast, estimates, and a queue that another process owns."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.paths import Home
from app.progress import Progress
from app.queue.owner import LocalService
from app.queue.service import Service, open_service
from app.video import read_metadata
from app.worker.supervisor import ROOT
from tests.app.headless.batches import SMALL, Batch
from tests.app.services import QUICK, ended, spec, until
from tests.app.standin import StandIn
from tests.app.workers import in_thread


def pressing(times: int, at_seed: int) -> Any:
    """Stand-in engines during whose clip Ctrl-C is pressed."""

    class Pressing(StandIn):
        def generate(self, request: Any, on_progress: Any = None, *others: Any, **options: Any) -> Any:
            def press(progress: Progress) -> None:
                on_progress(progress)
                if request.seed == at_seed and (progress.stage, progress.step) == ("denoising", 1):
                    for _ in range(times):
                        os.kill(os.getpid(), signal.SIGINT)

            return super().generate(request, press, *others, **options)

    return Pressing


# -- resume -----------------------------------------------------------------------------------------------------------


def test_resume_makes_what_is_missing_and_nothing_twice(runs: Batch) -> None:
    broken = runs.preset("broken", prompt="fault:fail:text")
    lines = runs.folder / "many.jsonl"
    lines.write_text("\n".join(json.dumps(SMALL | {"seed": 8}) for _ in range(2)), encoding="utf-8")
    sources = (runs.preset("ball"), broken, str(lines))
    assert runs.run(*sources) == 1
    assert runs.names == ["ball-3.mp4", "many-1-8.mp4", "many-2-8.mp4"]
    assert runs.run(*sources, resume=True) == 1
    assert "Skipping 3 clips that an earlier run made" in runs.stdout
    assert "Making 1 clip " in runs.stdout
    assert runs.names == ["ball-3.mp4", "many-1-8.mp4", "many-2-8.mp4"]
    for name in ("many-2-8.mp4", "many-2-8.png"):
        (runs.out / name).unlink()
    assert runs.run(*sources[2:], resume=True, as_json=True) == 0
    document = json.loads(runs.stdout)
    assert [(clip["state"], clip["skipped"]) for clip in document["clips"]] == [("done", True), ("done", False)]
    assert runs.names == ["ball-3.mp4", "many-1-8.mp4", "many-2-8.mp4"]


def test_resume_knows_a_random_seed_and_goes_on_with_its_series(runs: Batch) -> None:
    source = runs.preset("ball", seed=None, steps=1)
    assert runs.run(source, count=3) == 0
    before = {read_metadata(path)["request"]["seed"] for path in runs.out.glob("*.mp4")}
    assert max(before) - min(before) == 2
    assert runs.run(source, count=3, resume=True) == 0
    assert "Skipping 3 clips" in runs.stdout
    next(runs.out.glob(f"*-{min(before) + 1}.mp4")).unlink()
    assert runs.run(source, count=3, resume=True) == 0
    assert {read_metadata(path)["request"]["seed"] for path in runs.out.glob("*.mp4")} == before
    assert runs.run(source, count=3) == 0, "without --resume it is a new series"
    assert len(runs.names) == 6


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send Ctrl-C to itself on Windows")
@pytest.mark.parametrize("named", [True, False])
def test_ctrl_c_keeps_the_rest_queued_and_resume_goes_on(runs: Batch, named: bool) -> None:
    source = runs.preset("ball", seed=40, steps=50)
    assert runs.run(source, count=3, make_engine=pressing(1, 40)) == 130
    assert "2 clips still queued" in runs.stdout
    assert not runs.names
    settings: dict[str, Any] = {"count": 3} if named else {}
    assert runs.run(*([source] if named else []), **settings, resume=True) == 0
    seeds = {read_metadata(path)["request"]["seed"] for path in runs.out.glob("ball-4*.mp4")}
    assert {41, 42} <= seeds
    assert (40 in seeds) == named, "the stopped one is made again where it is asked for"


def test_ctrl_c_before_anything_is_queued_does_not_claim_that_it_is(
    runs: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(LocalService, "plan", interrupted)
    assert runs.run(runs.preset("ball")) == 130
    assert "0 of 1 made" in runs.stdout
    assert "queued" not in runs.stdout
    assert runs.run(resume=True) == 0
    assert "Nothing is queued" in runs.stdout


def test_resume_with_an_empty_queue_says_so(runs: Batch) -> None:
    assert runs.run(resume=True) == 0
    assert runs.stdout == "Nothing is queued, so there is nothing to go on with.\n"


# -- failing ----------------------------------------------------------------------------------------------------------


def test_one_failure_stops_nothing_unless_fail_fast(runs: Batch) -> None:
    sources = (runs.preset("a", seed=1), runs.preset("b", prompt="fault:fail:text"), runs.preset("c", seed=2))
    assert runs.run(*sources) == 1
    assert "2 of 3 made, 1 failed" in runs.stdout
    assert "2/3 b-3: It broke." in runs.stderr
    assert runs.run(*sources, fail_fast=True) == 1
    assert "1 of 3 made, 1 failed" in runs.stdout
    assert "(c-2: not begun)" in runs.stdout
    assert "1 clip still queued" in runs.stdout


def test_an_out_of_memory_fails_one_clip_and_says_which_knob(runs: Batch) -> None:
    sources = (runs.preset("a", prompt="fault:memory:denoising"), runs.preset("b", seed=2))
    assert runs.run(*sources) == 1
    assert "Out of memory while denoising" in runs.stderr
    assert "smaller size or fewer frames" in runs.stderr
    assert runs.names == ["b-2.mp4"]


# -- dry run ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_estimates_and_queues_nothing(runs: Batch) -> None:
    source = runs.preset("ball")
    assert runs.run(source, count=3, dry_run=True) == 0
    assert "Estimate: the time is not known, as no such clip was made here yet" in runs.stdout
    assert "MiB of " in runs.stdout
    assert "nothing was made" in runs.stdout
    assert not runs.out.exists()
    assert runs.run(source) == 0
    assert runs.run(source, count=3, dry_run=True, as_json=True) == 0
    clips = json.loads(runs.stdout)["clips"]
    assert [clip["state"] for clip in clips] == ["waiting"] * 3
    assert all(clip["estimate"]["seconds"] > 0 for clip in clips)
    assert "Estimate: about " in runs.stderr
    assert ", from 1 clip made here; memory " in runs.stderr
    assert runs.run(resume=True) == 0
    assert "Nothing is queued" in runs.stdout


def test_a_dry_run_says_what_is_blocked_and_why(runs: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 4: refused before anything loads, by what the container has."""
    monkeypatch.setattr("app.queue.owner.free_memory", lambda: (10_000_000, "the container"))
    assert runs.run(runs.preset("ball"), count=3, dry_run=True) == 3
    assert runs.stderr.count("is blocked") == 1, "said once"
    assert "ball-3 is blocked: Not enough memory" in runs.stderr
    assert "the container has 10 MiB free" in runs.stderr


def test_a_dry_run_from_the_command_line_imports_no_torch(runs: Batch, home: Home) -> None:
    preset = runs.preset("ball")
    script = f"""if True:
        import sys
        from app import cli
        code = cli.main(["--headless", {preset!r}, "--dry-run", "--home", {str(home.root)!r}])
        print(code, sorted({{"torch", "diffusers", "transformers"}} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout.endswith("Dry run: nothing was made.\n0 []\n"), done.stdout + done.stderr
    assert "Estimate:" in done.stdout


# -- a queue of another process ---------------------------------------------------------------------------------------


@pytest.fixture
def page(home: Home) -> Iterator[Service]:
    """Something that owns the queue, as the page does."""
    made = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    yield made
    made.stop(now=True)


def test_a_batch_hands_its_clips_to_the_owner_and_follows_them(runs: Batch, page: Service) -> None:
    assert runs.run(runs.preset("ball"), count=2) == 0, runs.stderr
    assert "handed over" in runs.stdout
    assert "denoising" in runs.stdout
    assert "2 of 2 made" in runs.stdout
    assert runs.names == ["ball-3.mp4", "ball-4.mp4"]
    assert [job.spec.name for job in page.history().jobs] == ["ball", "ball"]


def test_a_batch_behind_others_says_behind_how_many_and_when_it_begins(runs: Batch, page: Service) -> None:
    page.submit([spec(runs.out, seed=80, steps=60), spec(runs.out, seed=81), spec(runs.out, seed=82)])
    until(lambda: page.snapshot().running is not None)
    page.submit([spec(runs.out, seed=83)], held=True)
    assert runs.run(runs.preset("ball")) == 0, runs.stderr
    _, _, after = runs.stdout.partition("Waiting behind 3 clips.\n")
    assert after.startswith("The wait is over: the first clip begins.\n"), runs.stdout
    assert "1 of 1 made" in after


def test_who_need_not_wait_hears_nothing_of_waiting(runs: Batch, page: Service) -> None:
    assert runs.run(runs.preset("ball"), count=2) == 0, runs.stderr
    assert "handed over" in runs.stdout
    assert "Waiting behind" not in runs.stdout
    assert "wait is over" not in runs.stdout


def test_nothing_is_said_to_be_handed_over_that_is_not(runs: Batch, page: Service) -> None:
    assert runs.run(runs.preset("ball"), count=2, dry_run=True) == 0
    assert f"Would make 2 clips in {runs.out}" in runs.stdout
    assert "handed over" not in runs.stdout
    assert runs.run(resume=True) == 0
    assert "handed over" not in runs.stdout
    assert runs.run(runs.preset("ball", accel={"attention": "fa3"})) == 3
    assert "handed over" not in runs.stdout
    assert page.history().total == 0


@pytest.mark.skipif(os.name == "nt", reason="there it can't be told who may change a folder")
@pytest.mark.parametrize("shared", [False, True])
def test_a_folder_whose_clips_the_page_can_t_play_is_named_before_they_are_made(
    runs: Batch, page: Service, shared: bool
) -> None:
    runs.out.mkdir()
    runs.out.chmod(0o777 if shared else 0o755)
    assert runs.run(runs.preset("ball"), dry_run=True) == 0
    assert ("without playing them" in runs.stdout) == shared
    assert runs.run(runs.preset("ball"), dry_run=True, out=None) == 0
    assert "without playing them" not in runs.stdout


def test_what_is_taken_up_from_the_queue_is_said_to_go_where_it_goes(runs: Batch, page: Service, home: Home) -> None:
    page.submit([spec(home.outputs, seed=99)], held=True)
    assert runs.run(resume=True, dry_run=True, out=None) == 0
    assert f"Would make 1 clip in {home.outputs}" in runs.stdout
    page.submit([spec(runs.out, seed=98)], held=True)
    assert runs.run(resume=True, dry_run=True, out=None) == 0
    assert "Would make 2 clips in 2 folders" in runs.stdout


@pytest.mark.skipif(os.name == "nt", reason="os.kill cannot send Ctrl-C to itself on Windows")
def test_ctrl_c_of_a_batch_stops_its_own_clips_only(runs: Batch, home: Home) -> None:
    page = open_service(home, launch=in_thread(pressing(1, 40)), patience=QUICK)
    try:
        (other,) = page.submit([spec(home.outputs, seed=99)])
        assert runs.run(runs.preset("ball", seed=40, steps=60), count=2) == 130
        assert ended(page, [other])[0].state == "done"
        (waiting,) = page.snapshot().waiting
        assert waiting.held, "it is not begun behind the back of who stopped it"
    finally:
        page.stop(now=True)


def test_a_clip_that_the_page_cancels_or_removes_is_no_riddle(runs: Batch, page: Service) -> None:
    def meddle() -> None:
        running = until(lambda: (now := page.snapshot()).running is not None and len(now.waiting) == 1 and now)
        page.remove([running.waiting[0].id])
        page.cancel([running.running.id])

    helper = threading.Thread(target=meddle)
    helper.start()
    assert runs.run(runs.preset("ball", steps=80), count=2) == 1
    helper.join()
    assert "(ball-3: stopped)" in runs.stdout
    assert "0 of 2 made" in runs.stdout


def test_a_batch_goes_on_when_the_owner_goes(runs: Batch, home: Home) -> None:
    owner = open_service(home, launch=in_thread(StandIn), patience=QUICK)

    def go() -> None:
        until(lambda: owner.history().total == 1)
        owner.stop()

    helper = threading.Thread(target=go)
    helper.start()
    code = runs.run(runs.preset("ball", steps=20), count=4)
    helper.join()
    assert "has ended: going on here" in runs.stdout
    made = len(runs.names)
    # The clip that ran when the owner stopped waits again.
    assert (code, made) == (0, 4), runs.stdout + runs.stderr


def test_an_owning_batch_finishes_what_it_was_making_for_another(runs: Batch, home: Home) -> None:
    handed: list[Any] = []

    def hand_over() -> None:
        client = until(lambda: open_if_owned(home))
        handed.extend(client.submit([spec(home.outputs, seed=77, steps=60), spec(home.outputs, seed=78)]))

    helper = threading.Thread(target=hand_over)
    helper.start()
    assert runs.run(runs.preset("ball", steps=60)) == 0
    helper.join()
    after = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        assert isinstance(after, LocalService)
        first, second = ended(after, handed)
        assert (first.state, second.state) == ("done", "done")
        assert "Finishing a clip that another process handed over" in runs.stdout
    finally:
        after.stop()


def open_if_owned(home: Home) -> Service | None:
    """A client of whoever owns the queue; None while nobody does."""
    from app.queue.handing_over import RemoteService
    from app.queue.service import OwnerGoneError

    try:
        client = RemoteService(home)
        return client if client.snapshot().running is not None else None
    except OwnerGoneError:
        return None
