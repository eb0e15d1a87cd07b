"""Pictures and LoRAs on their way there, clips on their way home."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.errors import CannotRunError, JobFailedError, UsageError
from app.job_types import Job, JobResult
from app.paths import Home
from app.pictures import keep
from app.remote import host as hosting
from app.remote.cluster import LostError
from app.remote.host import FOLDER, digest_of, remove_leftovers
from app.remote.travel import Parcel, bring, land, parcels_for
from app.request import GenerationRequest, Lora
from tests.app.drawn import saved
from tests.app.lora_files import save, tensors
from tests.app.remote.places import NearPlace
from tests.app.services import spec


def never() -> bool:
    return False


@pytest.fixture
def place(home: Home) -> Iterator[NearPlace]:
    """An open place."""
    made = NearPlace("far", home)
    made.open()
    yield made
    made.close()


def there(place: NearPlace) -> Path:
    """The folder of its files."""
    assert place.host is not None
    return place.host._root


@pytest.fixture
def made(place: NearPlace, tmp_path: Path) -> tuple[Job, JobResult]:
    """A job, and its clip there: 100 bytes and a poster."""
    folder = Path(place.folder)
    folder.mkdir()
    for suffix, size in ((".mp4", 100), (".png", 30)):
        (folder / f"ball-3{suffix}").write_bytes(bytes(range(size)))
    job = Job(1, "0123456789abcdef", spec(tmp_path / "out"), "running", 0.0)
    return job, JobResult(folder / "ball-3.mp4", folder / "ball-3.png", {}, {}, {})


def test_pictures_and_loras_of_a_request_travel(home: Home) -> None:
    kept = keep(home, saved(), "dog.png", "dog.png", "image")
    path = home.loras / "styles" / "soft.safetensors"
    path.parent.mkdir()
    save(path, tensors())
    request = GenerationRequest(image=kept, last_image=kept, loras=(Lora(name="styles/soft.safetensors"),))
    assert parcels_for(request, home) == (
        Parcel("pictures", kept, (home.pictures / kept).resolve()),
        Parcel("loras", "styles/soft.safetensors", path.resolve()),
    )


def test_a_lora_that_is_missing_here_is_said_here(home: Home) -> None:
    request = GenerationRequest(loras=(Lora(name="soft.safetensors"),))
    with pytest.raises(UsageError, match=f"put the file into {home.loras}"):
        parcels_for(request, home)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=300), part=st.integers(1, 100))
def test_a_file_arrives_as_it_was_sent(place: NearPlace, tmp_path: Path, data: bytes, part: int) -> None:
    (tmp_path / "sent").write_bytes(data or b"x")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("app.remote.travel.PART", part)
        bring((Parcel("loras", "a/b.safetensors", tmp_path / "sent"),), place, never)
    assert digest_of(there(place) / "loras/a/b.safetensors") == digest_of(tmp_path / "sent")


def test_a_file_goes_once_and_again_when_it_has_changed(place: NearPlace, tmp_path: Path) -> None:
    parcel = Parcel("loras", "soft.safetensors", tmp_path / "soft.safetensors")
    for content, sent in ((b"one", 1), (b"one", 1), (b"two", 2)):
        parcel.path.write_bytes(content)
        bring((parcel,), place, never)
        assert place.calls.count("put") == sent
        assert (there(place) / "loras/soft.safetensors").read_bytes() == content


def test_a_damaged_file_gets_no_name_there(place: NearPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.remote.travel._parts", lambda path: iter([(0, b"other")]))
    (tmp_path / "soft").write_bytes(b"right")
    with pytest.raises(CannotRunError, match="arrived damaged at far"):
        bring((Parcel("loras", "soft", tmp_path / "soft"),), place, never)
    assert list((there(place) / "loras").iterdir()) == []


def test_no_name_leads_out_of_the_folder(place: NearPlace, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    with pytest.raises(CannotRunError):
        bring((Parcel("loras", "../../of-the-test", tmp_path / "x"),), place, never)
    assert not (there(place).parent / "of-the-test").exists()


@pytest.mark.parametrize("part", [7, 100, 4096])
def test_a_clip_comes_home_under_its_name(
    place: NearPlace, made: tuple[Job, JobResult], monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(hosting, "PART", part)
    job, result = made
    landed = land(job, result, place, never)
    assert landed.output == job.spec.folder / "ball-3.mp4"
    assert landed.output.read_bytes() == bytes(range(100))
    assert landed.poster.read_bytes() == bytes(range(30))
    assert sorted(path.name for path in job.spec.folder.iterdir()) == ["ball-3.mp4", "ball-3.png"]
    assert list(Path(place.folder).iterdir()) == []


def test_a_taken_name_is_numbered_as_here(place: NearPlace, made: tuple[Job, JobResult]) -> None:
    job, result = made
    job.spec.folder.mkdir()
    (job.spec.folder / "ball-3.mp4").write_bytes(b"older")
    assert land(job, result, place, never).output.name == "ball-3-2.mp4"
    assert (job.spec.folder / "ball-3.mp4").read_bytes() == b"older"


def test_a_damaged_clip_gets_no_name(
    place: NearPlace, made: tuple[Job, JobResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, result = made
    assert place.host is not None
    monkeypatch.setattr(place.host, "part", lambda output, suffix, at: bytes(100 - at))
    with pytest.raises(JobFailedError, match="came damaged from far"):
        land(job, result, place, never)
    assert list(job.spec.folder.iterdir()) == []


def test_a_clip_whose_machine_goes_midway_gets_no_name(place: NearPlace, made: tuple[Job, JobResult]) -> None:
    job, result = made
    place.refusing["part"] = LostError("far is gone.")
    with pytest.raises(LostError):
        land(job, result, place, never)
    assert list(job.spec.folder.iterdir()) == []


def test_a_clip_that_is_home_stays_so_when_its_machine_goes_then(place: NearPlace, made: tuple[Job, JobResult]) -> None:
    job, result = made
    place.refusing["forget"] = LostError("far is gone.")
    assert land(job, result, place, never).output.is_file()


def test_folders_of_killed_hosts_are_removed_and_no_others(tmp_path: Path) -> None:
    gone, living, strange = (tmp_path / f"{FOLDER}{name}" for name in ("4194303-a", f"{os.getpid()}-b", "x-c"))
    for folder in (gone, living, strange):
        folder.mkdir()
    assert remove_leftovers(tmp_path) == [gone]
    assert sorted(tmp_path.iterdir()) == sorted([living, strange])
