"""`--models`, `--fetch` and `--headless --download`: told, fetched, refused with the command that helps."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from app import catalogue, cli
from app.errors import CannotRunError, UsageError
from app.models import all_families, sources, starter
from app.models.base import Family, Figure
from app.models.sources.cache import in_cache, storage_of
from app.models.sources.fetching import FetchProgress, fetch_repo
from tests.accel.recorded import machine
from tests.app.headless.batches import Batch
from tests.app.models.sources.conftest import cache, hub  # noqa: F401
from tests.app.models.sources.fake_hub import Hub, model
from tests.app.tiny import TOKENS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("cache")


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def remote(tiny_folder: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Family:  # noqa: F811
    """A model of the catalogue that lies on the hub only: the tiny pipeline."""
    hub.files = files_of(tiny_folder)
    size = Figure(sum(map(len, hub.files.values())), "counted")
    family = replace(
        starter.STARTER, name="tiny", title="Tiny", called="", folder=None, repos=(hub.repo,), download=size
    )
    monkeypatch.setattr(starter, "FAMILIES", (starter.STARTER, replace(family, token_limit=TOKENS)))
    return family


# -- the list --


def test_every_model_is_listed_with_licence_size_and_place(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--models"]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line for line in text.splitlines() if line}
    for family in all_families():
        assert family.licence in lines[family.name]
    assert str(starter.WEIGHTS) in lines["starter"]
    assert "python launch.py --fetch MODEL" in text


def test_the_list_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--models", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [family.name for family in all_families()]
    assert (rows[0]["state"], rows[0]["problems"], rows[0]["remedy"]) == ("here", [], "")
    away = next(row for row in rows if row["repo"])
    assert away["state"] == "not here"
    assert f"--fetch {away['name']}" in away["remedy"]


@pytest.mark.parametrize(
    ("figure", "said"),
    [
        (Figure(None), "unverified"),
        (Figure(0, "part of the repository"), "none"),
        (Figure(2**30), "about 1.0 GiB"),
        (Figure(3 * 2**30, "listing of the repository, 2026"), "3.0 GiB"),
    ],
)
def test_sizes_that_nobody_checked_say_so(figure: Figure, said: str) -> None:
    family = replace(starter.STARTER, name="x", folder=None, repos=("a/b",), download=figure)
    assert catalogue.download_text(catalogue.listed(family)) == said


# -- fetching --


def test_a_model_is_fetched_and_can_be_used(remote: Family, hub: Hub) -> None:  # noqa: F811
    out, err = io.StringIO(), io.StringIO()
    assert "Tiny is not on this machine: fetch it" in sources.why_not_here(remote)
    assert catalogue.run_fetch("tiny", stdout=out, stderr=err) == 0
    folder = sources.locate(remote).folder
    assert out.getvalue() == f"tiny is on this machine: {folder}\n"
    assert "Fetching Tiny" in err.getvalue()
    assert catalogue.listed(remote).state == "here"
    hub.asked.clear()
    assert catalogue.run_fetch("tiny", stdout=out, stderr=err) == 0
    assert hub.asked == [], "what is whole is not asked for"


def test_an_interrupted_fetch_is_listed_as_partly_here(remote: Family, hub: Hub) -> None:  # noqa: F811
    hub.missing.add("vae/config.json")
    with pytest.raises(CannotRunError, match="lists a file"):
        catalogue.run_fetch("tiny", stdout=io.StringIO(), stderr=io.StringIO())
    found = catalogue.listed(remote)
    assert found.state == "partly"
    assert "vae/config.json is missing" in found.problems
    assert "fetch the rest" in found.remedy
    out = io.StringIO()
    catalogue.list_models(stdout=out)
    assert "partly, " in out.getvalue()


def test_ctrl_c_ends_a_fetch_and_keeps_what_came(hub: Hub, cache: Path) -> None:  # noqa: F811
    hub.files, hub.delay = model(8_000_000), 0.02
    command = [sys.executable, "-m", "app.cli", "--fetch", f"hf:{hub.repo}"]
    child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while in_cache(hub.repo, cache).fetched < 2_000_000:
        assert time.monotonic() < end
        time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert f"Stopped; what came of {hub.repo} is kept, and the next fetch goes on there." in err
    assert out == ""
    assert in_cache(hub.repo, cache).fetched >= 2_000_000


def test_any_repository_can_be_fetched_by_name(remote: Family, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:  # noqa: F811
    hub.repo = "some-one/else"
    assert cli.main(["--fetch", "hf:some-one/else", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "hf:some-one/else"
    assert catalogue.how_to_fetch("hf:some-one/else")[0] == "some-one/else"
    assert catalogue.how_to_fetch(f"hf:{remote.repo}")[0] == "Tiny", "a repository of the catalogue is its model"
    with pytest.raises(UsageError, match="nonsense"):
        catalogue.how_to_fetch("nonsense")


# -- a batch --


def test_a_batch_says_how_to_get_its_model(remote: Family, tmp_path: Path) -> None:
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball", model="tiny")) == 3
    assert "Tiny is not on this machine: fetch it (" in batch.stderr
    assert "python launch.py --fetch tiny" in batch.stderr
    assert batch.clips == []


def test_a_dry_run_fetches_nothing(remote: Family, tmp_path: Path, hub: Hub) -> None:  # noqa: F811
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball", model="tiny"), download=True, dry_run=True) == 3
    assert "--download would fetch tiny first." in batch.stdout
    assert hub.asked == []


def test_a_batch_fetches_its_model_when_it_may_and_makes_the_clip(remote: Family, tmp_path: Path) -> None:
    batch = Batch(tmp_path)
    preset = batch.preset("ball", model="tiny", height=32, frames=5, steps=1)
    assert batch.run(preset, download=True) == 0, batch.stderr
    assert "Fetching Tiny" in batch.stdout
    (clip,) = batch.clips
    assert batch.run(str(clip), download=True) == 0
    assert "Fetching" not in batch.stdout


def test_a_batch_ends_where_its_model_can_t_be_fetched(
    remote: Family,
    tmp_path: Path,
    hub: Hub,  # noqa: F811
) -> None:
    hub.status = (403, "GatedRepo")
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball", model="tiny"), download=True) == 3
    assert "wants its licence accepted first" in batch.stderr


@pytest.fixture
def too_new(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Kinetile runs where torch names the GPU and has no code for it."""
    found = machine("rtx5090-old-torch", tmp_path / "probed")
    monkeypatch.setattr("app.engine.acceleration.machine", lambda: found)


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ("attention=fa3", "attention=fa3 can't be used here: "),
        ("linear=fp8", "linear=fp8 can't be used here: "),
        ("offload=group", "offload=group can't be used here: "),
        ("gpus=2", "gpus=2: this machine has no GPU that can be used here ("),
    ],
)
@pytest.mark.parametrize("download", [True, False])
def test_no_model_is_fetched_that_this_machine_could_not_run_as_asked(
    remote: Family,
    too_new: None,
    tmp_path: Path,
    hub: Hub,  # noqa: F811
    wish: str,
    said: str,
    download: bool,
) -> None:
    """Case 7: exit code 3, and nothing asked of the network, not even by a person who is told to fetch first."""
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball", model="tiny"), assignments=(f"accel.{wish}",), download=download) == 3
    assert said in batch.stderr
    assert "RTX 5090 is not used: this torch build (2.6.0+cu124) has no sm_120 code" in batch.stderr
    assert "fetch" not in batch.stderr
    assert hub.asked == []
    assert batch.files == []


def test_a_gpu_that_is_left_out_is_said_before_the_run_and_the_cpu_taken(
    tiny_family: Family, too_new: None, tmp_path: Path
) -> None:
    """Case 7: `auto` never fails, and says what would bring the GPU back."""
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball"), dry_run=True) == 0, batch.stderr
    (note,) = [line for line in batch.stdout.splitlines() if "RTX 5090" in line]
    assert note.startswith("  note: NVIDIA GeForce RTX 5090 is not used: this torch build (2.6.0+cu124) has no sm_120")
    assert "pip install" in note


def test_nothing_is_fetched_for_a_batch_that_is_refused(
    remote: Family,
    tmp_path: Path,
    hub: Hub,  # noqa: F811
) -> None:
    batch = Batch(tmp_path)
    assert batch.run(batch.preset("ball", model="tiny"), str(tmp_path / "gone.json"), download=True) == 2
    assert "gone.json" in batch.stderr
    assert hub.asked == []


def test_what_is_missing_is_told_once_and_nonsense_is_left_to_others(remote: Family) -> None:
    models = ["tiny", "starter", "tiny", "nonsense", "hf:a/b", "hf:..", "/nowhere"]
    assert catalogue.missing(models) == ["tiny", "hf:a/b"]


def test_a_model_that_lies_here_under_its_other_name_is_not_missing(
    remote: Family, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renamed = replace(remote, folder=tiny_folder, repos=("new/tiny", "old/tiny"))
    monkeypatch.setattr(starter, "FAMILIES", (renamed,))
    assert catalogue.missing(["new/tiny", "hf:new/tiny", "hf:old/tiny"]) == []


def test_a_fetch_that_was_killed_is_never_taken_for_whole(
    remote: Family,
    hub: Hub,  # noqa: F811
    cache: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Case 49: offline it is refused file by file, online it goes on, and once whole it needs no network."""
    hub.delay = 0.2

    def kill(progress: FetchProgress) -> None:
        if in_cache(hub.repo, cache).problems and progress.done > 100_000:  # some files are there, and more began
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # which kills the process that fetches
        fetch_repo(hub.repo, kill)
    (storage_of(hub.repo, cache) / "blobs" / f"{'a' * 64}.incomplete").write_bytes(b"of another program")
    cut = in_cache(hub.repo, cache)
    assert cut.folder is not None
    there, problems = list(files_of(cut.folder)), cut.problems
    assert there
    assert problems
    batch = Batch(tmp_path)
    preset = batch.preset("ball", model="tiny", height=32, frames=5, steps=1)

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert batch.run(preset) == batch.run(preset, download=True) == 3
    assert "HF_HUB_OFFLINE is set" in batch.stderr
    assert batch.run(preset) == 3
    assert problems[0] in batch.stderr
    assert (hub.asked, batch.clips) == ([], [])

    monkeypatch.delenv("HF_HUB_OFFLINE")
    hub.delay = 0.0
    assert catalogue.run_fetch("tiny", stdout=io.StringIO(), stderr=io.StringIO()) == 0
    assert not any(hub.gets(name) for name in there), "it goes on where it was"

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    hub.asked.clear()
    assert batch.run(preset) == 0, batch.stderr
    assert (hub.asked, len(batch.clips)) == ([], 1)
