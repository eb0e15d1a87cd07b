"""Fetching from a hub that is slow, breaks off, refuses, lies or is not there; each fetch in a process of its own."""

from __future__ import annotations

import errno
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from app.errors import Cancelled, CannotRunError
from app.models.sources import fetching
from app.models.sources.cache import PARTIAL, in_cache, storage_of
from app.models.sources.fetching import FetchProgress, fetch_repo
from app.models.sources.hub import SPEED_SECONDS, Pace, fetch
from tests.app.models.sources.fake_hub import COMMIT, NEEDED, Hub, model

SHARD = "transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
VAE = "vae/diffusion_pytorch_model.safetensors"


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def partials(cache: Path) -> list[Path]:
    return sorted((storage_of("someone/model", cache) / "blobs").glob(f"*{PARTIAL}"))


def after(count: int) -> Callable[[FetchProgress], None]:
    """Raises once so many bytes have come."""

    def hear(progress: FetchProgress) -> None:
        if progress.done >= count:
            raise KeyboardInterrupt

    return hear


def test_a_model_is_fetched_whole_with_nothing_it_does_not_need(hub: Hub, cache: Path) -> None:
    told: list[FetchProgress] = []
    folder = fetch_repo(hub.repo, told.append)
    assert files_in(folder) == sorted(NEEDED)
    assert all((folder / name).read_bytes() == hub.files[name] for name in NEEDED)
    found = in_cache(hub.repo, cache)
    assert (found.folder, found.problems, found.is_whole) == (folder, (), True)
    assert told[0].stage == "listing"
    assert (told[-1].done, told[-1].fraction) == (told[-1].total, 1.0)
    assert partials(cache) == []


def test_the_library_itself_finds_it_without_the_network(here: Hub, cache: Path) -> None:
    from huggingface_hub import snapshot_download

    folder = fetch(here.repo)
    assert Path(snapshot_download(here.repo, allow_patterns=NEEDED, cache_dir=cache, local_files_only=True)) == folder


def test_what_is_here_is_not_fetched_again(here: Hub, cache: Path) -> None:
    fetch(here.repo)
    here.asked.clear()
    fetch(here.repo)
    assert [path for _, path, _ in here.asked if "/resolve/" in path] == []


def test_what_is_here_needs_no_room(here: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch(here.repo)
    monkeypatch.setattr("app.models.sources.hub.SPARE", 2**62)
    assert fetch(here.repo) == folder


def test_another_program_s_files_count(here: Hub, cache: Path) -> None:
    """What huggingface_hub fetched on its own is found, and only the rest is fetched."""
    fetch(here.repo)
    folder = in_cache(here.repo, cache).folder
    assert folder is not None
    (folder / VAE).resolve().unlink()
    (folder / VAE).unlink()
    assert in_cache(here.repo, cache).problems == (f"{VAE} is missing",)
    here.asked.clear()
    fetch(here.repo)
    assert [path for _, path, _ in here.asked if path.endswith(".safetensors")] == [here.asked[-1][1]]
    assert in_cache(here.repo, cache).is_whole


def test_a_slow_hub_is_told_of_with_speed_and_time_left(hub: Hub) -> None:
    hub.files, hub.delay = model(6_000_000), 0.02
    told: list[FetchProgress] = []
    fetch_repo(hub.repo, told.append)
    counts = [one.done for one in told if one.stage == "downloading"]
    assert len(set(counts)) >= 4
    assert counts == sorted(counts)
    timed = [one for one in told if one.speed is not None and one.eta_seconds is not None and one.done < one.total]
    assert any("/s, about " in one.sentence() for one in timed)


def test_a_connection_that_breaks_off_is_gone_on_with(here: Hub) -> None:
    here.files = model(3_000_000)
    here.cut[SHARD] = [1_500_000, 1_100_000]
    folder = fetch(here.repo)
    assert (folder / SHARD).read_bytes() == here.files[SHARD]
    spans = here.gets(SHARD)
    assert spans[0] == ""
    assert all(span.startswith("bytes=") for span in spans[1:])
    assert len(spans) == 3


def test_weights_that_lie_elsewhere_are_gone_on_with_there_and_learn_no_token(
    here: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    here.elsewhere, here.files = True, model(3_000_000)
    here.cut[SHARD] = [1_500_000]
    folder = fetch(here.repo)
    assert (folder / SHARD).read_bytes() == here.files[SHARD]
    spans = [span for _, path, span in here.asked if path == f"/elsewhere/{COMMIT}/{SHARD}"]
    assert spans[0] == ""
    assert spans[1].startswith("bytes=1")
    assert {token for path, token in here.tokens if path.startswith("/api/")} == {"Bearer hf_secret"}
    assert {token for path, token in here.tokens if path.startswith("/elsewhere/")} == {""}


def test_a_fetch_that_was_ended_goes_on_where_it_was(hub: Hub, cache: Path) -> None:
    """Case 49: within a file, too."""
    hub.files, hub.delay = model(6_000_000), 0.01
    with pytest.raises(KeyboardInterrupt):
        fetch_repo(hub.repo, after(9_000_000))
    kept = {path.name: path.stat().st_size for path in partials(cache)}
    assert max(kept.values()) >= 2**20
    before = in_cache(hub.repo, cache)
    assert not before.is_whole
    assert f"{SHARD} is missing" in before.problems
    assert before.fetched >= sum(kept.values())

    hub.delay = 0.0
    hub.asked.clear()
    folder = fetch_repo(hub.repo)
    assert all((folder / name).read_bytes() == hub.files[name] for name in NEEDED)
    begun = {span for name in NEEDED for span in hub.gets(name) if span}
    assert begun == {f"bytes={size}-" for size in kept.values() if size}


def test_a_stop_ends_it_soon_even_when_the_hub_is_silent(hub: Hub) -> None:
    hub.hangs = True
    begun = time.monotonic()
    with pytest.raises(Cancelled, match="what came of someone/model is kept"):
        fetch_repo(hub.repo, should_stop=lambda: time.monotonic() - begun > 1.0)
    assert time.monotonic() - begun < 10


def test_a_hub_that_never_answers_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.hangs = True
    monkeypatch.setattr(fetching, "SILENCE_SECONDS", 3.0)
    with pytest.raises(CannotRunError, match="No answer came while someone/model was fetched"):
        fetch_repo(hub.repo)


def test_a_hub_that_ignores_ranges_does_not_spoil_the_file(here: Hub) -> None:
    here.files = model(3_000_000)
    here.cut[SHARD] = [1_500_000]
    here.ignores_range = True
    told: list[FetchProgress] = []
    folder = fetch(here.repo, told.append)
    assert (folder / SHARD).read_bytes() == here.files[SHARD]
    assert max(one.done for one in told) <= told[-1].total


def test_a_spoiled_part_is_thrown_away_and_fetched_anew(here: Hub, cache: Path) -> None:
    blob = next(row["lfs"]["oid"] for row in here.listing() if row["path"] == VAE)
    partial = storage_of(here.repo, cache) / "blobs" / f"{blob}{PARTIAL}"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"rubbish" * 1000)
    folder = fetch(here.repo)
    assert (folder / VAE).read_bytes() == here.files[VAE]
    assert here.gets(VAE) == ["bytes=7000-", ""]


def test_content_that_is_not_what_the_hub_lists_is_refused(here: Hub, cache: Path) -> None:
    here.spoiled.add(VAE)
    with pytest.raises(CannotRunError, match=f"{VAE} of someone/model arrived with another content"):
        fetch(here.repo)
    assert not in_cache(here.repo, cache).is_whole
    here.spoiled.clear()
    fetch(here.repo)
    assert in_cache(here.repo, cache).is_whole


@pytest.mark.parametrize(
    ("status", "words"),
    [
        ((403, "GatedRepo"), "wants its licence accepted first: open {url}/someone/model in a browser"),
        ((401, "GatedRepo"), "wants its licence accepted first"),
        ((404, "RepoNotFound"), "has no repository someone/model, or keeps it private"),
        ((401, ""), r"refused someone/model \(401\): let this machine in"),
        ((429, ""), r"refused someone/model \(429\): it was asked too often"),
        ((500, ""), r"refused someone/model \(500\): try again later"),
        ((403, ""), r"refused someone/model \(403\): let this machine in"),
    ],
)
def test_a_refusal_is_one_sentence_with_what_to_do(here: Hub, status: tuple[int, str], words: str) -> None:
    here.status = status
    with pytest.raises(CannotRunError, match=words.format(url=here.url)) as raised:
        fetch(here.repo)
    assert "\n" not in str(raised.value)


def test_a_listed_file_that_is_not_there_is_named(here: Hub) -> None:
    here.missing.add(VAE)
    with pytest.raises(CannotRunError, match="lists a file of someone/model that it does not have"):
        fetch(here.repo)


@pytest.mark.parametrize(
    ("host", "why"),
    [("127.0.0.1:9", "Connection refused"), ("no-such-host.invalid", "no machine of that name was found")],
)
def test_no_hub_at_all(hub: Hub, monkeypatch: pytest.MonkeyPatch, host: str, why: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://{host}")
    with pytest.raises(CannotRunError, match=rf"^There is no connection to {host} \({why}\): .* and HF_ENDPOINT"):
        fetch_repo(hub.repo)


def test_offline_means_no_request(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(CannotRunError, match="HF_HUB_OFFLINE is set, so nothing is fetched: unset it"):
        fetch_repo(hub.repo)
    assert hub.asked == []


def test_a_process_that_went_offline_by_itself_may_still_be_asked_to_fetch(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "KINETILE_OFFLINE": "1"}.items():
        monkeypatch.setenv(name, value)
    fetch_repo(hub.repo)
    assert in_cache(hub.repo, cache).is_whole


def test_pickled_weights_are_refused_before_anything_is_fetched(here: Hub, cache: Path) -> None:
    here.files = {name: content for name, content in model().items() if name != "text_encoder/model.safetensors"}
    del here.files["text_encoder/model.fp16.safetensors"]
    with pytest.raises(
        CannotRunError, match=r"text_encoder has only pickled weights \(pytorch_model.bin\), which can run"
    ):
        fetch(here.repo)
    assert [path for _, path, _ in here.asked if path.endswith((".bin", ".safetensors"))] == []


def test_a_repository_without_an_index_is_no_model(here: Hub) -> None:
    here.files = {"README.md": b"hello", "model.safetensors": b"x"}
    with pytest.raises(CannotRunError, match=r"is no diffusers model, for it has no model_index\.json"):
        fetch(here.repo)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full on this system")
def test_a_disk_that_fills_up_is_told(here: Hub, cache: Path) -> None:
    blob = next(row["lfs"]["oid"] for row in here.listing() if row["path"] == VAE)
    partial = storage_of(here.repo, cache) / "blobs" / f"{blob}{PARTIAL}"
    partial.parent.mkdir(parents=True)
    partial.symlink_to("/dev/full")
    with pytest.raises(CannotRunError, match="is full, so someone/model is not whole; what came is kept: free some"):
        fetch(here.repo)
    partial.unlink()
    fetch(here.repo)
    assert in_cache(here.repo, cache).is_whole


def test_a_cache_on_a_read_only_disk_is_told(here: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(cache))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(CannotRunError, match=r"can't be written .*Read-only.*: set HF_HOME to another folder\.$"):
        fetch(here.repo)


def test_a_disk_that_is_too_small_is_told_before(here: Hub, cache: Path) -> None:
    here.files = Listed(here.files)
    with pytest.raises(CannotRunError, match=r"someone/model needs \d+\.\d GiB more on the disk that holds .*HF_HOME"):
        fetch(here.repo)
    assert here.gets(VAE) == []


class Listed(dict[str, bytes]):
    """Files, one of which is listed as larger than any disk."""

    def items(self):  # type: ignore[no-untyped-def]
        return [(name, Vast(content) if name == VAE else content) for name, content in super().items()]


class Vast(bytes):
    def __len__(self) -> int:
        return 2**60


def test_a_folder_that_can_t_be_written_is_told(here: Hub, cache: Path) -> None:
    cache.parent.mkdir(parents=True)
    cache.write_text("a file in the place of the folder", encoding="utf-8")
    with pytest.raises(CannotRunError, match="someone/model could not be fetched"):
        fetch(here.repo)


def test_a_second_fetch_of_the_same_is_refused(here: Hub, cache: Path) -> None:
    lock = cache / ".locks" / storage_of(here.repo, cache).name / "kinetile.lock"
    lock.parent.mkdir(parents=True)
    with FileLock(lock), pytest.raises(CannotRunError, match="is being fetched already, by another Kinetile: wait"):
        fetch(here.repo)
    fetch(here.repo)
    assert in_cache(here.repo, cache).is_whole


def test_a_fetch_that_dies_is_told(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os; os.write(2, b'out of luck'); os._exit(9)", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CannotRunError, match=r"ended before it was done \(out of luck\): start it again"):
        fetch_repo(hub.repo)


# -- the speed --


@given(st.lists(st.tuples(st.floats(0.1, 5), st.integers(0, 10**8)), min_size=2, max_size=60))
def test_the_speed_is_what_came_in_the_last_seconds(steps: list[tuple[float, int]]) -> None:
    moment, done = 0.0, 0
    seen = [(0.0, 0)]
    pace = Pace(lambda: moment)
    pace.speed(0)
    for seconds, count in steps:
        moment, done = moment + seconds, done + count
        seen.append((moment, done))
        found = pace.speed(done)
        if found is None:
            continue
        recent = [one for one in seen if one[0] >= moment - SPEED_SECONDS - 5]
        fastest = max(
            (later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in itertools.pairwise(recent)
        )
        assert 0 < found <= fastest * 1.001


@pytest.mark.parametrize(
    ("progress", "sentence"),
    [
        (FetchProgress("listing"), "asking what there is to fetch"),
        (FetchProgress("downloading", 2**30, 2**32), "1.0 GiB of 4.0 GiB"),
        (
            FetchProgress("downloading", 2**30, 2**32, 12 * 2**20, 250.0),
            "1.0 GiB of 4.0 GiB, 12 MiB/s, about 4:10 min left",
        ),
        (FetchProgress("checking", 2**32, 2**32, 1.0, 0.0, "vae/x"), "4.0 GiB of 4.0 GiB, checking vae/x"),
    ],
)
def test_progress_in_words(progress: FetchProgress, sentence: str) -> None:
    assert progress.sentence() == sentence
    assert FetchProgress(**json.loads(fetching.line_of(progress))) == progress
