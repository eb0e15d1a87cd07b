"""The service, as its owner has it and as another process has it: the same answers through the door."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import CannotRunError, KinetileError, UsageError
from app.models import family_for
from app.paths import Home
from app.queue import handing_over
from app.queue.handing_over import CALLS, RemoteService
from app.queue.jobs import JobState
from app.queue.owner import LocalService
from app.queue.service import Event, OwnerGoneError, Service, open_service, with_preferences
from app.request import AccelPreferences, GenerationRequest
from app.worker.supervisor import ROOT
from app.worker.wire import Channel, Closed
from tests.app.services import QUICK, ended, spec, until
from tests.app.standin import StandIn
from tests.app.workers import in_thread

SMALL = family_for("starter").normalise(GenerationRequest(prompt="a red ball", width=64, height=64, frames=5)).request


# -- both alike -------------------------------------------------------------------------------------------------------


def test_a_job_is_made_told_and_found_again(service: Service, home: Home) -> None:
    with service.subscribe() as news:
        (job,) = service.submit([spec(home.outputs, batch="b", key="k:0/1")])
        seen: list[Event] = []
        while not (seen and seen[-1].kind == "job" and seen[-1].job is not None and seen[-1].job.is_over):
            event = news.get(30)
            assert event is not None
            seen.append(event)
    states = [event.job.state for event in seen if event.job is not None and event.job.id == job.id]
    assert states == ["queued", "running", "done"]
    told = list(dict.fromkeys(event.progress.stage for event in seen if event.progress is not None))
    order = ["loading", "text", "denoising", "decoding", "saving"]
    # A listener that is slower than the clip hears the newest progress only, so a short stage may be passed over.
    assert told == [stage for stage in order if stage in told]
    assert {"loading", "denoising"} <= set(told)
    (now,) = service.get([job.id])
    assert now.result is not None
    assert now.result.output == home.outputs / "ball-3.mp4"
    assert service.history("RED ball").jobs == (now,)
    assert service.known(["k:0/1"]) == {"k:0/1": now}
    again = service.duplicate(job.id)
    assert ended(service, [again])[0].state == "done"


def test_queue_and_history_are_changed_through_it(service: Service, home: Home) -> None:
    jobs = service.submit([spec(home.outputs, seed=i) for i in range(3)], held=True)
    first, second, third = (job.id for job in jobs)
    service.move(third, 0)
    assert [job.id for job in service.snapshot().waiting] == [third, first, second]
    removal = service.remove([first])
    assert service.get([first])[0].removed
    assert [job.id for job in service.undo(removal)] == [first]
    with pytest.raises(UsageError, match="too late"):
        service.undo(removal)
    service.cancel([second])
    assert service.get([second])[0].state == "cancelled"
    assert service.retry(second).spec == jobs[1].spec
    service.hold([first], held=False)
    assert ended(service, jobs[:1])[0].state == "done"
    with pytest.raises(UsageError, match="There is no job 77"):
        service.get([77])


def test_previews_are_pictures_of_the_running_job(service: Service, home: Home) -> None:
    (job,) = service.submit([spec(home.outputs, steps=60)])
    found = until(lambda: service.preview(job.id))
    assert found.job == job.id
    assert (found.frames.shape, found.frames.dtype) == ((2, 8, 8, 3), np.uint8)
    later = until(lambda: (now := service.preview(job.id)) is not None and now.number > found.number and now)
    assert later.frames.max() > found.frames.max()
    assert service.preview(job.id + 1) is None
    service.cancel([job.id])
    ended(service, [job])
    assert service.preview(job.id) is None


def test_plans_estimates_and_rows_come_from_the_worker(service: Service, home: Home) -> None:
    plan = service.plan(SMALL)
    assert {stage["stage"] for stage in plan.plan["stages"]} == {"text_encoder", "transformer", "vae"}
    assert plan.memory.weights > 10_000_000
    before = service.estimate(SMALL)
    assert before.seconds is None
    assert "no such clip was made here yet" in before.basis
    ended(service, service.submit([spec(home.outputs, steps=SMALL.steps)]))
    after = service.estimate(SMALL)
    assert after.seconds is not None
    assert after.seconds > 0
    assert after.fits
    rows = service.accelerators(SMALL)
    assert {row.state for row in rows} <= {"on", "off", "unavailable"}
    assert [row.name for row in rows if row.setting == "attention" and row.state == "on"]
    assert all(row.reasons for row in rows if row.state == "unavailable")
    with pytest.raises(UsageError, match="nonsense is not known"):
        service.plan(SMALL.model_copy(update={"accel": AccelPreferences(vae="nonsense")}))
    with pytest.raises(CannotRunError, match="float16"):
        service.plan(SMALL.model_copy(update={"accel": AccelPreferences(dtype="float16")}))
    assert service.doctor()["machine"]["cores"]["usable"] >= 1


def test_preferences_are_kept_and_refused_when_they_can_not_be(service: Service, home: Home) -> None:
    assert service.preferences() == AccelPreferences()
    wished = AccelPreferences(linear="stock")
    service.set_preferences(wished)
    with pytest.raises(CannotRunError):
        service.set_preferences(AccelPreferences(dtype="float16"))
    assert service.preferences() == wished
    request = with_preferences(GenerationRequest(accel=AccelPreferences(vae="stock")), service.preferences())
    assert (request.accel.linear, request.accel.vae, request.accel.attention) == ("stock", "stock", "auto")


def test_what_does_not_fit_is_refused_before_it_loads_and_the_next_one_runs(
    service: Service, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.queue.owner.free_memory", lambda: (10_000_000, "the machine"))
    blocked = service.estimate(SMALL)
    assert not blocked.fits
    (job,) = ended(service, service.submit([spec(home.outputs)]))
    assert job.state == "failed"
    assert job.error is not None
    assert job.error.kind == "CannotRunError"
    assert "Not enough memory for this clip (64x64, 5 frames)" in job.error.message
    assert "10 MiB" in job.error.message
    monkeypatch.undo()
    assert ended(service, service.submit([spec(home.outputs)]))[0].state == "done"


def test_a_folder_that_can_not_be_written_fails_its_job_only(service: Service, home: Home, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("x", encoding="utf-8")
    jobs = service.submit([spec(in_the_way / "clips"), spec(home.outputs)])
    blocked, fine = ended(service, jobs)
    assert blocked.error is not None
    assert "not a folder" in blocked.error.message
    assert fine.state == "done"


def test_the_time_left_is_reckoned_from_earlier_clips_of_this_machine(service: Service, home: Home) -> None:
    told: list[list[float | None]] = []
    for seed in (1, 2):
        with service.subscribe() as news:
            (job,) = service.submit([spec(home.outputs, seed=seed, steps=10)])
            seen: list[float | None] = []
            while not service.get([job.id])[0].is_over:
                event = news.get(1)
                if event is not None and event.progress is not None and event.progress.stage in ("text", "denoising"):
                    seen.append(event.progress.eta_seconds)
        told.append(seen)
    first, second = told
    assert set(first) == {None}, "nothing was measured yet"
    assert second
    assert all(seconds is not None and seconds > 0.1 for seconds in second)


# -- the owner --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [False, True])
def test_stop_puts_the_running_clip_back_and_the_next_start_makes_it_first(home: Home, now: bool) -> None:
    first = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    jobs = first.submit([spec(home.outputs, steps=200), spec(home.outputs, seed=4)])
    until(lambda: (seen := first.snapshot().progress) is not None and seen.stage == "denoising")
    first.move(jobs[1].id, 0)
    first.stop(now)
    second = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        stopped, made = ended(second, jobs)
        assert (stopped.state, made.state) == ("done", "done"), stopped.error
        assert [job.id for job in second.history().jobs] == [made.id, stopped.id], "newest first"
    finally:
        second.stop()


def test_a_clip_that_a_person_cancelled_stays_so_when_the_program_ends(home: Home) -> None:
    owner = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    (job,) = owner.submit([spec(home.outputs, steps=300)])
    until(lambda: (seen := owner.snapshot().progress) is not None and seen.stage == "denoising")
    owner.cancel([job.id])
    owner.stop()
    heir = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    assert heir.get([job.id])[0].state == "cancelled"
    heir.stop()


def test_an_owner_of_its_own_batches_leaves_the_others_alone(home: Home) -> None:
    service = open_service(home, launch=in_thread(StandIn), patience=QUICK, all_batches=False)
    try:
        other = service.submit([spec(home.outputs, batch="other", seed=1)], held=True)
        service.stop()
        service = open_service(home, launch=in_thread(StandIn), patience=QUICK, all_batches=False)
        service.hold([other[0].id], held=False)
        mine = service.submit([spec(home.outputs, batch="mine", seed=2)])
        assert ended(service, mine)[0].state == "done"
        assert service.get([other[0].id])[0].state == "queued"
        service.want("other")
        assert ended(service, other)[0].state == "done"
    finally:
        service.stop()


def test_files_go_only_when_a_removal_can_not_be_undone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    service = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    assert isinstance(service, LocalService)
    try:
        jobs = ended(service, service.submit([spec(home.outputs, seed=1), spec(home.outputs, seed=2)]))
        service.remove([jobs[0].id])
        service._purged = 0.0
        service._purge()
        assert (home.outputs / "ball-1.mp4").exists()
        monkeypatch.setattr("app.queue.owner.UNDO_SECONDS", -1.0)
        service._purged = 0.0
        service._purge()
        assert sorted(path.name for path in home.outputs.iterdir()) == ["ball-2.mp4", "ball-2.png"]
    finally:
        service.stop()


def test_a_listener_that_lags_gets_the_newest_progress_and_every_change(owner: LocalService, home: Home) -> None:
    news = owner.subscribe()
    jobs = owner.submit([spec(home.outputs, steps=30), spec(home.outputs, seed=4, steps=30)])
    ended(owner, jobs)
    waiting = []
    while (event := news.get(0.2)) is not None:
        waiting.append(event)
    assert [event.job.state for event in waiting if event.job is not None] == [
        "queued", "queued", "running", "done", "running", "done",
    ]  # fmt: skip
    assert sum(event.kind == "progress" for event in waiting) <= 6


def test_the_server_imports_neither_torch_nor_diffusers(home: Home) -> None:
    script = f"""if True:
        import sys
        from pathlib import Path
        from app.paths import Home
        from app.queue.service import open_service
        from tests.app.services import ended, spec, until
        from app.worker.supervisor import ProcessWorker
        from tests.app.standin import COMMAND
        home = Home(Path({str(home.root)!r}))
        with open_service(home, launch=lambda where: ProcessWorker(where, COMMAND)) as service:
            (job,) = ended(service, service.submit([spec(home.outputs)]))
            assert job.state == "done", job.error
            assert service.estimate(job.spec.request).fits
            assert service.accelerators(job.spec.request)
        print(sorted({{"torch", "diffusers", "transformers"}} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.stdout == "[]\n", done.stderr


# -- the door ---------------------------------------------------------------------------------------------------------


def test_every_call_of_the_service_goes_through_the_door() -> None:
    own = {"stop", "subscribe", "preview"}
    assert set(CALLS) == Service.__abstractmethods__ - own


def test_only_who_knows_the_key_is_heard(owner: LocalService, home: Home) -> None:
    card = json.loads((home.root / "owner.json").read_text(encoding="utf-8"))
    if os.name != "nt":
        assert (home.root / "owner.json").stat().st_mode & 0o077 == 0
    for proof in ("", "0" * 64, handing_over._proof("wrong", "client", "x")):
        with socket.create_connection(("127.0.0.1", card["port"]), 5) as stranger:
            channel: Channel = handing_over._channel(stranger)
            channel.receive()
            channel.send({"proof": proof, "nonce": "n"})
            with pytest.raises(Closed):
                channel.receive()
    with socket.create_connection(("127.0.0.1", card["port"]), 5) as stranger:
        channel = handing_over._channel(stranger)
        channel.receive()
        channel.send({"proof": "x" * 5000})
        with pytest.raises(Closed):
            channel.receive()
    assert open_service(home).snapshot().waiting == ()


def test_a_false_owner_is_not_believed(home: Home) -> None:
    with socket.create_server(("127.0.0.1", 0)) as false:

        def answer() -> None:
            caller, _ = false.accept()
            with caller:
                channel = handing_over._channel(caller)
                channel.send({"nonce": "n"})
                channel.receive()
                channel.send({"proof": "made up", "version": "1"})

        threading.Thread(target=answer, daemon=True).start()
        card = {"pid": 1, "port": false.getsockname()[1], "key": "secret"}
        (home.root / "owner.json").write_text(json.dumps(card), encoding="utf-8")
        with pytest.raises(OwnerGoneError, match="Another program answers"):
            RemoteService(home)


def test_another_version_is_refused(owner: LocalService, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    real = handing_over._Connection.receive

    def older(self: handing_over._Connection) -> tuple[dict[str, object], bytes]:
        message, blob = real(self)
        return ({**message, "version": "0.0.1"} if "version" in message else message), blob

    monkeypatch.setattr(handing_over._Connection, "receive", older)
    with pytest.raises(CannotRunError, match=r"version 0\.0\.1"):
        RemoteService(home)


def test_a_call_that_nobody_knows_is_refused(owner: LocalService, home: Home) -> None:
    client = RemoteService(home)
    with client._connect() as connection:
        for call in ("stop", "__init__", "_queue", "nonsense"):
            connection.send({"call": call, "arguments": {}})
            answer, _ = connection.receive()
            assert "knows no call" in answer["message"]
        connection.send({"call": "get", "arguments": {"ids": "nonsense"}})
        assert "get failed" in connection.receive()[0]["message"]
    assert owner.snapshot().running is None


def test_an_owner_that_goes_is_noticed_and_replaced(home: Home) -> None:
    owner = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    client = open_service(home)
    news = client.subscribe()
    (job,) = client.submit([spec(home.outputs)], held=True)
    owner.stop()
    with pytest.raises(OwnerGoneError):
        until(lambda: news.get(0.1) and None)
    with pytest.raises(OwnerGoneError):
        client.snapshot()
    heir = open_service(home, launch=in_thread(StandIn), patience=QUICK)
    try:
        assert heir.owner
        assert [one.id for one in heir.snapshot().waiting] == [job.id]
    finally:
        heir.stop()


@pytest.mark.skipif(os.name == "nt", reason="stops a process with SIGSTOP")
def test_an_owner_that_does_not_answer_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"""if True:
        import os, signal
        from pathlib import Path
        from app.paths import Home
        from app.queue.service import open_service
        open_service(Home(Path({str(home.root)!r})))
        print("ready", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    """
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline() == "ready\n"
            monkeypatch.setattr(handing_over, "HANDSHAKE_SECONDS", 0.3)
            with pytest.raises(CannotRunError, match=f"process {frozen.pid}.*does not answer: end it"):
                open_service(home, seconds=0.5)
        finally:
            frozen.kill()


def test_opening_twice_at_once_makes_one_owner(home: Home) -> None:
    made: list[Service] = []
    threads = [
        threading.Thread(target=lambda: made.append(open_service(home, launch=in_thread(StandIn), patience=QUICK)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert sorted(service.owner for service in made) == [False] * 5 + [True]
    finally:
        for service in made:
            service.stop()


def test_states_are_checked_at_the_door(owner: LocalService, home: Home) -> None:
    states: tuple[JobState, ...] = ("done",)
    assert RemoteService(home).history(states=states).total == 0
    wrong: Any = ("nonsense",)
    with pytest.raises(KinetileError, match="history failed"):
        RemoteService(home)._call("history", states=wrong)
