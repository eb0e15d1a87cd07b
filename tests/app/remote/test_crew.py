"""A crew over hosts in this process: who takes what, and what becomes of a job whose machine is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from app.errors import CannotRunError
from app.paths import Home
from app.queue.service import Service
from app.remote.service import CrewService
from app.video import decode_frames, read_metadata
from app.worker.render import MACHINE
from tests.app.remote.places import NearPlace, crew_service, names_made
from tests.app.services import ended, service_in_process, spec, until

Make = Callable[..., CrewService]


@pytest.fixture
def make(home: Home, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Services that are stopped in the end."""
    monkeypatch.setenv(MACHINE, "")
    with ExitStack() as stack:

        def service(*places: NearPlace) -> CrewService:
            made = crew_service(home, *places)
            stack.callback(made.stop, now=True)
            return made

        yield service


def running_on(service: Service) -> NearPlace | None:
    """The place of a job that is denoising."""
    assert isinstance(service, CrewService)
    for member in service._crew.members:
        if member.running is not None and member.progress is not None and member.progress.stage == "denoising":
            assert isinstance(member.place, NearPlace)
            return member.place
    return None


def test_two_places_share_the_jobs_and_each_clip_comes_home_once(make: Make, home: Home, tmp_path: Path) -> None:
    first, second = NearPlace("a", home), NearPlace("b", home)
    service = make(first, second)
    jobs = ended(service, service.submit([spec(tmp_path / "out", seed=seed) for seed in range(6)]))
    assert [job.state for job in jobs] == ["done"] * 6
    assert names_made(tmp_path / "out") == [f"ball-{seed}.mp4" for seed in range(6)]
    made = [job.result for job in jobs if job.result is not None]
    assert {one.report["ran_on"].split(",")[0] for one in made} == {"a", "b"}
    assert {path.suffix for path in (tmp_path / "out").iterdir()} == {".mp4", ".png"}
    for one, job in zip(made, jobs, strict=True):
        metadata = read_metadata(one.output)
        assert (metadata["job"], metadata["report"]["ran_on"]) == (job.uid, one.report["ran_on"])
        assert one.poster.is_file()
    assert first.host is not None
    assert not list(Path(first.folder).iterdir()), "a clip that came home stayed there"


def test_a_clip_made_there_is_the_one_made_here(make: Make, home: Home, tmp_path: Path) -> None:
    service = make(NearPlace("a", home))
    (there,) = ended(service, service.submit([spec(tmp_path / "there")]))
    service.stop()
    with service_in_process(home) as local:
        (here,) = ended(local, local.submit([spec(tmp_path / "here")]))
    assert there.result is not None
    assert here.result is not None
    assert (decode_frames(there.result.output) == decode_frames(here.result.output)).all()
    assert there.result.output.name == here.result.output.name


def test_a_lost_machines_job_is_made_by_another_one(make: Make, home: Home, tmp_path: Path) -> None:
    places = NearPlace("a", home), NearPlace("b", home)
    service = make(*places)
    jobs = service.submit([spec(tmp_path, seed=seed, steps=20) for seed in range(4)])
    until(lambda: running_on(service)).lose()
    jobs = ended(service, jobs)
    assert [job.state for job in jobs] == ["done"] * 4
    assert names_made(tmp_path) == [f"ball-{seed}.mp4" for seed in range(4)]
    assert not service.stranded
    assert sum(place.host is None for place in places) == 1


def test_a_machine_that_comes_back_makes_the_job_it_lost(make: Make, home: Home, tmp_path: Path) -> None:
    place = NearPlace("a", home, returns=1)
    service = make(place)
    jobs = service.submit([spec(tmp_path, steps=20)])
    until(lambda: running_on(service)).lose()
    (job,) = ended(service, jobs)
    assert (job.state, place.left) == ("done", 0)


def test_a_job_that_ends_every_worker_fails_the_second_time(make: Make, home: Home, tmp_path: Path) -> None:
    service = make(NearPlace("a", home), NearPlace("b", home))
    fatal, good = service.submit([spec(tmp_path, "fault:kill:denoising"), spec(tmp_path, seed=4)])
    fatal, good = ended(service, [fatal, good])
    assert (fatal.state, good.state) == ("failed", "done")
    assert fatal.error is not None
    assert "SIGKILL" in fatal.error.message


def test_a_job_that_fails_by_itself_is_not_made_again(make: Make, home: Home, tmp_path: Path) -> None:
    first, second = NearPlace("a", home), NearPlace("b", home)
    service = make(first, second)
    (job,) = ended(service, service.submit([spec(tmp_path, "fault:fail:denoising")]))
    assert job.state == "failed"
    assert job.error is not None
    assert job.error.message == "It broke."


def test_what_one_machine_cannot_make_goes_to_another(make: Make, home: Home, tmp_path: Path) -> None:
    poor, rich = NearPlace("poor", home), NearPlace("rich", home)
    poor.refusing["free"] = CannotRunError("poor has too little memory.")
    service = make(poor, rich)
    jobs = ended(service, service.submit([spec(tmp_path, seed=seed) for seed in range(4)]))
    assert [job.state for job in jobs] == ["done"] * 4
    assert {str(job.result.report["ran_on"]).split(",")[0] for job in jobs if job.result} == {"rich"}


def test_what_no_machine_can_make_fails_with_its_reason(make: Make, home: Home, tmp_path: Path) -> None:
    places = NearPlace("a", home), NearPlace("b", home)
    for place in places:
        place.refusing["free"] = CannotRunError(f"{place.name} has too little memory.")
    service = make(*places)
    (job,) = ended(service, service.submit([spec(tmp_path)]))
    assert job.state == "failed"
    assert job.error is not None
    assert "has too little memory." in job.error.message


def test_without_a_machine_left_jobs_stay_queued_and_it_is_said(make: Make, home: Home, tmp_path: Path) -> None:
    service = make(NearPlace("a", home))
    jobs = service.submit([spec(tmp_path, seed=seed, steps=20) for seed in range(3)])
    until(lambda: running_on(service)).lose()
    until(lambda: service.stranded)
    assert "a has left the cluster." in service.stranded
    assert [job.state for job in service.get([job.id for job in jobs])] == ["queued"] * 3
    assert names_made(tmp_path) == []


def test_stopping_at_once_leaves_no_process_and_no_file(make: Make, home: Home, tmp_path: Path) -> None:
    place = NearPlace("a", home)
    service = make(place)
    service.submit([spec(tmp_path / "out", steps=200)])
    until(lambda: running_on(service))
    host = place.host
    assert host is not None
    worker, folder = host._worker, host._root
    assert worker is not None
    service.stop(now=True)
    assert worker.wait(5)
    assert not folder.exists()
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_a_plan_is_asked_of_every_machine(make: Make, home: Home, tmp_path: Path) -> None:
    first, second = NearPlace("a", home), NearPlace("b", home)
    service = make(first, second)
    answer = service.plan(spec(tmp_path).request)
    assert answer.summary
    assert "start" in first.calls
    assert "start" in second.calls
