"""The Hugging Face cache on disk: what lies there, whoever wrote it, on systems with and without links."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from app.models.sources.cache import Located, in_cache, storage_of
from app.models.sources.hub import fetch
from tests.app.models.sources.fake_hub import COMMIT, NEEDED, Hub, model

REPO = "someone/model"
OLDER = "a" * 40


def snapshot(cache: Path, commit: str = COMMIT, names: list[str] | None = None) -> Path:
    """Files as another program's older library leaves them: no listing, no links."""
    folder = storage_of(REPO, cache) / "snapshots" / commit
    for name in NEEDED if names is None else names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(model(3000)[name])
    return folder


def mean(cache: Path, commit: str) -> None:
    main = storage_of(REPO, cache) / "refs" / "main"
    main.parent.mkdir(parents=True, exist_ok=True)
    main.write_text(commit, encoding="utf-8")


def test_nothing_there(cache: Path) -> None:
    assert in_cache(REPO) == Located(repo=REPO)


def test_a_snapshot_without_a_listing_is_judged_by_its_own_files(cache: Path) -> None:
    folder = snapshot(cache)
    found = in_cache(REPO)
    assert (found.folder, found.is_whole) == (folder, True)
    assert found.fetched == sum(len(model(3000)[name]) for name in NEEDED)
    (folder / "vae" / "diffusion_pytorch_model.safetensors").unlink()
    assert in_cache(REPO).problems == ("vae has no safetensors weights",)


def test_main_means_the_snapshot_it_names(cache: Path) -> None:
    older = snapshot(cache, OLDER)
    newer = snapshot(cache, COMMIT, ["model_index.json"])
    os.utime(newer)
    assert in_cache(REPO).folder == newer, "without a name for it, the newest"
    mean(cache, OLDER)
    assert in_cache(REPO).folder == older
    for broken in ("", "../../../etc", "b" * 40):
        mean(cache, broken)
        assert in_cache(REPO).folder == newer


def test_a_model_whose_listing_has_pickles_only_says_so(here: Hub, cache: Path) -> None:
    fetch(here.repo)
    folder = in_cache(here.repo).folder
    assert folder is not None
    tree = storage_of(here.repo, cache) / "trees" / f"{COMMIT}.json"
    tree.write_text(tree.read_text(encoding="utf-8").replace("vae/diffusion_pytorch_model.safetensors", "vae/x.bin"))
    from huggingface_hub import _tree_cache

    _tree_cache._IN_MEMORY_TREE_CACHE.clear()
    (told,) = in_cache(here.repo).problems
    assert told.startswith("someone/model: vae has only pickled weights (x.bin), which can run code")


def test_without_links_the_files_themselves_lie_in_the_snapshot(
    here: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.file_download.are_symlinks_supported", lambda *_: False)
    folder = fetch(here.repo)
    assert not [path for path in folder.rglob("*") if path.is_symlink()]
    found = in_cache(here.repo)
    assert found.is_whole
    assert found.fetched == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    here.asked.clear()
    fetch(here.repo)
    assert [path for _, path, _ in here.asked if "/resolve/" in path] == []
    shutil.rmtree(folder)
    assert in_cache(here.repo).folder is None


HALF = [b"", b"\0" * 64, b"{", b"[]", b"{}", b"[1]", b'{"siblings": 3}', b"\xff\xfe", b"[" * 100_000]


@pytest.mark.parametrize("content", HALF, ids=lambda content: repr(content[:20]))
def test_whatever_is_half_written_in_the_cache_is_told_and_fetched_anew(here: Hub, cache: Path, content: bytes) -> None:
    from huggingface_hub import _tree_cache

    fetch(here.repo)
    storage = storage_of(here.repo, cache)
    small = [path for path in sorted(storage.rglob("*")) if path.is_file() and path.suffix != ".safetensors"]
    assert {"main", "model_index.json"} <= {path.name for path in small}
    for path in small:
        whole = path.read_bytes()
        path.write_bytes(content)
        _tree_cache._IN_MEMORY_TREE_CACHE.clear()
        found = in_cache(here.repo, cache)
        assert found.is_whole or found.problems, path
        path.write_bytes(whole)
    assert in_cache(here.repo, cache).is_whole
