"""The queue: order and states; against a plain model of it, from threads, and killed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.errors import UsageError
from app.queue.jobs import ENDED, JobError, JobQueue, JobState, Removal
from app.worker.supervisor import ROOT
from tests.app.queue.filled import RESULT, ids, queued
from tests.app.services import spec

# -- order and states -------------------------------------------------------------------------------------------------


def test_a_job_comes_back_as_it_was_submitted(queue: JobQueue, tmp_path: Path) -> None:
    asked = spec(tmp_path, "ein roter Ball äöü 🚀", key="k:0/1", batch="b", origin="x.json")
    (job,) = queue.submit([asked])
    assert (job.spec, job.state, job.held, job.result, job.error) == (asked, "queued", False, None, None)
    assert queue.get([job.id]) == (job,)


def test_the_first_in_is_the_first_out_unless_moved(queue: JobQueue) -> None:
    first, second, third = queued(queue, 3)
    queue.move(third, 0)
    assert ids(queue.waiting()) == [third, first, second]
    queue.move(third, 99)
    assert ids(queue.waiting()) == [first, second, third]
    taken = queue.take()
    assert taken is not None
    assert (taken.id, taken.state) == (first, "running")
    assert taken.started is not None
    (fourth,) = queued(queue)
    assert ids(queue.waiting()) == [second, third, fourth]


def test_each_end_is_final(queue: JobQueue) -> None:
    ways: list[tuple[JobState, JobError]] = [
        ("failed", JobError("It broke.", "JobFailedError", "Traceback")),
        ("cancelled", JobError("Stopped.", "Cancelled")),
        ("crashed", JobError("Gone.")),
    ]
    queued(queue, 4)
    for state, error in ways:
        job = queue.take()
        assert job is not None
        over = queue.fail(job.id, state, error)
        assert (over.state, over.error, over.is_over) == (state, error, True)
        with pytest.raises(UsageError, match=f"Job {job.id} is {state}"):
            queue.finish(job.id, RESULT)
    job = queue.take()
    assert job is not None
    done = queue.finish(job.id, RESULT)
    assert (done.state, done.result) == ("done", RESULT)
    assert done.seconds is not None
    assert queue.take() is None


def test_held_jobs_are_passed_over_and_batches_can_be_chosen(queue: JobQueue) -> None:
    first, second, third = ids(queue.submit([spec(Path("/x"), batch=name) for name in ("a", "b", "a")]))
    queue.hold([first])
    taken = queue.take({"a"})
    assert taken is not None
    assert taken.id == third
    assert queue.take({"c"}) is None
    queue.hold([first], held=False)
    assert queue.get([first])[0].held is False
    taken = queue.take()
    assert taken is not None
    assert taken.id == first
    with pytest.raises(UsageError, match=f"Job {first} is running and can't be held"):
        queue.hold([second, first])
    assert queue.get([second])[0].held is False, "all or none"


def test_what_can_not_be_is_one_sentence(queue: JobQueue) -> None:
    (job,) = queued(queue)
    with pytest.raises(UsageError, match="There is no job 77"):
        queue.get([77])
    with pytest.raises(UsageError, match="is queued and can't be retried"):
        queue.retry(job)
    queue.take()
    with pytest.raises(UsageError, match="cancel it first"):
        queue.remove([job])
    with pytest.raises(UsageError, match="can't be moved"):
        queue.move(job, 0)


def test_retry_and_duplicate_leave_the_old_one(queue: JobQueue) -> None:
    (job,) = queued(queue, key="k:0/1", batch="b")
    queue.take()
    queue.fail(job, "failed", JobError("It broke."))
    again = queue.retry(job)
    assert (again.spec, again.state) == (queue.get([job])[0].spec, "queued")
    same = queue.duplicate(job)
    assert same.spec.request == again.spec.request
    assert same.spec.key == "", "a copy is nothing that a batch asked for"
    sibling = queue.duplicate(job, new_seed=True)
    assert sibling.spec.request.seed != same.spec.request.seed
    assert sibling.spec.asked.seed == sibling.spec.request.seed
    assert sibling.spec.stem == f"ball-{sibling.spec.request.seed}"
    assert queue.get([job])[0].state == "failed"


def test_cancelling_what_is_queued(queue: JobQueue) -> None:
    first, second = queued(queue, 2)
    queue.take()
    over = queue.cancel_queued([first, second], JobError("Cancelled before it began.", "Cancelled"))
    assert ids(over) == [second], "the running one is the dispatcher's business"
    assert over[0].state == "cancelled"
    assert queue.history().total == 1


# -- against a model, threads, kill -9 --------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "take", "finish", "fail", "move", "hold", "release", "remove", "undo", "retry"]),
        st.integers(0, 7),
        st.integers(0, 7),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(STEPS)
def test_any_use_of_the_queue_matches_a_plain_list(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    queue = JobQueue(tmp_path_factory.mktemp("model") / "jobs.sqlite3")
    waiting: list[int] = []
    held: set[int] = set()
    states: dict[int, str] = {}
    removals: list[Removal] = []
    for step, one, two in steps:
        queued = waiting[one % len(waiting)] if waiting else None
        running = [job for job, state in states.items() if state == "running"]
        over = [job for job, state in states.items() if state in ("failed",)]
        if step == "submit":
            (job,) = ids(queue.submit([spec(Path("/x"), seed=one)]))
            waiting.append(job)
            states[job] = "queued"
        elif step == "take":
            free = next((job for job in waiting if job not in held), None)
            taken = queue.take()
            assert (taken and taken.id) == free
            if free is not None:
                waiting.remove(free)
                states[free] = "running"
        elif step in ("finish", "fail") and running:
            if step == "finish":
                queue.finish(running[0], RESULT)
            else:
                queue.fail(running[0], "failed", JobError("x"))
            states[running[0]] = "done" if step == "finish" else "failed"
        elif step == "move" and queued is not None:
            queue.move(queued, two)
            waiting.remove(queued)
            waiting.insert(two, queued)
        elif step == "hold" and queued is not None:
            queue.hold([queued])
            held.add(queued)
        elif step == "release" and queued is not None:
            queue.hold([queued], held=False)
            held.discard(queued)
        elif step == "remove" and queued is not None and not removals:
            removals.append(queue.remove([queued]))
            waiting.remove(queued)
        elif step == "undo" and removals:
            removal = removals.pop()
            queue.undo(removal)
            waiting = ids(queue.waiting())
            assert removal.ids[0] in waiting
        elif step == "retry" and over:
            again = queue.retry(over[0]).id
            waiting.append(again)
            states[again] = "queued"
        assert ids(queue.waiting()) == waiting
        assert queue.history(states=ENDED).total == sum(state in ENDED for state in states.values())
    queue.close()


def test_from_many_threads_every_job_is_taken_once(queue: JobQueue) -> None:
    queued(queue, 40)
    taken: list[int] = []

    def work() -> None:
        while (job := queue.take()) is not None:
            queue.submit(
                [spec(Path("/x"), seed=1, batch="later")]
            ) if job.spec.batch == "" and job.id % 8 == 0 else None
            queue.finish(job.id, RESULT)
            taken.append(job.id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 46))


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_kill_minus_nine_while_writing_loses_nothing_that_was_told(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "jobs.sqlite3"
    code = f"""if True:
        import itertools
        from pathlib import Path
        from app.queue.jobs import JobQueue
        from tests.app.services import spec
        queue = JobQueue(Path({str(path)!r}))
        print("ready", flush=True)
        for i in itertools.count():
            (job,) = queue.submit([spec(Path("/x"), seed=i)])
            print(job.id, flush=True)
    """
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=ROOT) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
        time.sleep(seconds)
        writer.kill()
        told = [int(line) for line in writer.stdout.read().split()]
    queue = JobQueue(path)
    assert queue._base.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    kept = ids(queue.waiting())
    assert set(told) <= set(kept)
    assert len(kept) <= len(told) + 1
    queue.close()
