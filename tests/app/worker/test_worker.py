"""The worker in a process of its own: it dies, hangs and runs out of memory, and the next job runs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil
import pytest

from accel.waiting import WAITING, WAITING_ENVIRONMENT
from app.paths import Home
from app.queue.owner import LocalService
from app.worker.supervisor import ROOT, ProcessWorker
from app.worker.wire import Closed
from tests.app.services import ended, service_in_process, spec, until
from tests.app.standin import COMMAND

pytestmark = pytest.mark.skipif(os.name == "nt", reason="faults are signals")


@pytest.fixture
def service(home: Home) -> Iterator[LocalService]:
    made = service_in_process(home)
    yield made
    made.stop(now=True)


FAULTS = {
    "abort:denoising": ["died (SIGABRT)", "denoising, step 1 of 2", "gave up", "--accel attention=sdpa"],
    "segfault:decoding": ["died (SIGSEGV)", "while decoding", "crashed"],
    "kill:text": ["SIGKILL", "reading the prompt", "memory ran out", "fewer frames"],
    "exit:loading": ["exit code 7", "loading the model", "goodbye from a library"],
    "memory:denoising": ["Out of memory while denoising", "smaller size or fewer frames"],
    "value:denoising": ["an unforeseen thing"],
    "fail:denoising": ["It broke."],
    "freeze:denoising": ["hung", "denoising, step 1 of 2", "replaced"],
    "hang:decoding": ["hung", "while decoding", "replaced"],
}


def test_whatever_becomes_of_the_worker_the_job_says_it_and_the_next_one_runs(
    service: LocalService, home: Home
) -> None:
    specs = []
    for seed, fault in enumerate(FAULTS):
        specs += [spec(home.outputs, f"fault:{fault}", name="broken"), spec(home.outputs, seed=seed, name="next")]
    jobs = ended(service, service.submit(specs), 120)
    for fault, broken, following in zip(FAULTS, jobs[::2], jobs[1::2], strict=True):
        assert broken.state == "failed"
        assert broken.error is not None
        for word in FAULTS[fault]:
            assert word in broken.error.message, fault
        assert following.state == "done", following.error
    names = {f"next-{seed}{suffix}" for seed in range(len(FAULTS)) for suffix in (".mp4", ".png")}
    assert {path.name for path in home.outputs.iterdir()} == names


def test_a_traceback_and_what_was_printed_are_kept_as_detail(service: LocalService, home: Home) -> None:
    wrong, dead = ended(
        service,
        service.submit([spec(home.outputs, "fault:value:text"), spec(home.outputs, "fault:abort:text")]),
    )
    assert wrong.error is not None
    assert dead.error is not None
    assert "misbehave" in wrong.error.detail
    assert "Fatal Python error: Aborted" in dead.error.detail


def test_a_deaf_worker_is_replaced_when_a_job_is_cancelled(service: LocalService, home: Home) -> None:
    """Case 40: a job reads "cancelled" once it has stopped, not before."""
    jobs = service.submit([spec(home.outputs, "fault:deaf:denoising"), spec(home.outputs, seed=4)])
    until(lambda: (found := service.snapshot().progress) is not None and found.stage == "denoising" and found.step == 1)
    worker = service.snapshot().worker.pid
    assert worker is not None
    service.cancel([jobs[0].id])
    until(lambda: service.get([jobs[0].id])[0].state != "running" or not psutil.pid_exists(worker))
    assert service.get([jobs[0].id])[0].state != "cancelled" or not psutil.pid_exists(worker)
    cancelled, fine = ended(service, jobs)
    assert (cancelled.state, fine.state) == ("cancelled", "done")
    assert service.snapshot().worker.pid != worker
    assert "did not stop in time" in service.snapshot().worker.note


@pytest.mark.parametrize("stage", ["loading", "text", "denoising", "decoding"])
def test_cancel_acts_in_every_stage_and_the_worker_stays(service: LocalService, home: Home, stage: str) -> None:
    """Case 40: a job that is cancelled leaves no file, and the next one runs in the same worker."""
    jobs = service.submit([spec(home.outputs, steps=200), spec(home.outputs, seed=4)])
    until(lambda: (found := service.snapshot().progress) is not None and (found.stage == stage or found.step > 100))
    worker = service.snapshot().worker.pid
    service.cancel([jobs[0].id])
    cancelled, fine = ended(service, jobs)
    assert (cancelled.state, fine.state) == ("cancelled", "done")
    assert service.snapshot().worker.pid == worker
    assert not list(home.outputs.glob("*-3.*"))


def test_stop_now_ends_the_worker_at_once(service: LocalService, home: Home) -> None:
    (job,) = service.submit([spec(home.outputs, "fault:deaf:text")])
    until(lambda: (found := service.snapshot().progress) is not None and found.stage == "text" and found.step == 1)
    pid = service.snapshot().worker.pid
    assert pid is not None
    service.cancel([job.id], now=True)
    assert ended(service, [job])[0].state == "cancelled"
    assert not psutil.pid_exists(pid)


def test_a_worker_alone_ends_by_itself(home: Home) -> None:
    code = f"""if True:
        import sys, time
        from pathlib import Path
        from app.paths import Home
        from tests.app.services import service_in_process, spec, until
        home = Home(Path({str(home.root)!r}))
        service = service_in_process(home)
        service.submit([spec(home.outputs, steps=500)])
        until(lambda: (now := service.snapshot()).progress is not None and now.progress.stage == "denoising")
        print(service.snapshot().worker.pid, flush=True)
        time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        worker = psutil.Process(pid)
        owner.send_signal(signal.SIGKILL)
        owner.wait()
    gone, _ = psutil.wait_procs([worker], timeout=15)
    assert gone, "an orphan is left"


def test_what_a_library_prints_is_no_message(home: Home) -> None:
    script = """if True:
        from tests.app.standin import StandIn, main

        class Loud(StandIn):
            def close(self):
                print("noise on stdout", flush=True)

        main(make_engine=Loud)
    """
    worker = ProcessWorker(home, (sys.executable, "-c", script))
    assert worker.channel.receive()[0]["say"] == "hello"
    worker.channel.send({"do": "quit"})
    assert worker.wait(30)
    with pytest.raises(Closed):
        worker.channel.receive()
    assert "noise on stdout" in worker.death().printed


def test_ctrl_c_in_the_terminal_does_not_reach_it(home: Home) -> None:
    worker = ProcessWorker(home, COMMAND)
    worker.channel.receive()
    assert os.getpgid(worker.pid) != os.getpgid(0)
    os.kill(worker.pid, signal.SIGINT)
    time.sleep(0.2)
    worker.channel.send({"do": "quit"})
    assert worker.wait(30)
    assert worker.death().code == 0


def test_the_worker_imports_torch_only_when_it_makes_a_clip(home: Home) -> None:
    script = """if True:
        import sys
        from app.worker import questions
        from app.models import family_for
        from app.paths import Home
        from app.plain import to_data
        from app.request import GenerationRequest
        from pathlib import Path
        request = family_for("starter").normalise(GenerationRequest(width=64, height=64, frames=5)).request
        home = Home(Path(sys.argv[1]))
        answer = questions.answer({"do": "plan", "request": to_data(request)}, home)
        assert answer["plan"]["stages"]
        assert questions.answer({"do": "accelerators", "request": to_data(request)}, home)
        print(sorted({"torch", "diffusers", "transformers"} & set(sys.modules)))
    """
    done = subprocess.run(
        [sys.executable, "-c", script, str(home.root)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="libgomp tells what it took")
def test_how_threads_wait_is_settled_before_torch_loads(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", *WAITING_ENVIRONMENT["brief"]):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "VERBOSE")
    worker = ProcessWorker(home)
    worker.channel.send({"do": "warm"})
    worker.channel.send({"do": "quit"})
    assert worker.wait(90)
    told = dict(re.findall(r"(\w+) *= *'(.*)'", worker.death().printed))
    wanted = WAITING_ENVIRONMENT[WAITING]
    assert told["GOMP_SPINCOUNT"] == wanted["GOMP_SPINCOUNT"]
    assert told["OMP_WAIT_POLICY"] == "PASSIVE"
