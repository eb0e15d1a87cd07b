"""Readouts count where they were measured and nowhere else."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accel
from accel.readouts import store
from accel.readouts.results import Results
from accel.types import Cores, Machine, Override
from tests.accel.recorded import NAMES, machine


@pytest.fixture
def here(tmp_path: Path) -> Machine:
    return machine("zen5", tmp_path / "proofs")


def test_what_was_kept_is_there_again(here: Machine, tmp_path: Path) -> None:
    assert store.load(here, tmp_path / "none") == store.Shelf()
    results = Results(store.place(here))
    assert store.save(results, tmp_path) == ""
    assert store.load(here, tmp_path) == store.Shelf(results)
    assert [path.name for path in tmp_path.glob("*.json")] == [store.file_name(results.place)]


def test_other_versions_are_stale_and_name_what_changed(here: Machine, tmp_path: Path) -> None:
    then = store.place(here)
    older = replace(then, versions={**then.versions, "torch": "2.9.0 cpu"})
    store.save(Results(older), tmp_path)
    shelf = store.load(here, tmp_path)
    assert shelf.current is None
    assert shelf.stale[0].why == f"measured with other versions: torch 2.9.0 cpu then, {then.versions['torch']} now"
    assert shelf.stale[0].results == Results(older)
    store.save(Results(then), tmp_path)
    assert store.load(here, tmp_path).current == Results(then), "both are kept"
    assert len(store.load(here, tmp_path).stale) == 1


def test_another_machine_or_another_limit_is_stale(here: Machine, tmp_path: Path) -> None:
    store.save(Results(store.place(here)), tmp_path)
    fewer = replace(here, cores=Cores(2, 2, 2, "two"))
    capped = replace(here, overrides=(Override("ONEDNN_MAX_CPU_ISA", "AVX2", "keeps"),))
    for other, says in (
        (machine("zen3", tmp_path / "zen3"), "measured on another machine (AMD Ryzen"),
        (fewer, "measured on another machine"),
        (capped, "this machine, its driver, its limits or its environment has changed since"),
    ):
        (stale,) = store.load(other, tmp_path).stale
        assert says in stale.why


@pytest.mark.parametrize("pattern", store.CODE)
def test_code_whose_change_makes_figures_stale_is_where_it_is_looked_for(pattern: str) -> None:
    assert list(Path(accel.__file__).parent.glob(pattern))


def test_every_recorded_machine_is_a_place_of_its_own(tmp_path: Path) -> None:
    places = [store.place(machine(name, tmp_path / name)) for name in NAMES]
    assert len({one.fingerprint for one in places}) == len(NAMES)
    assert all(one.name and one.versions["accel"] == store.code() for one in places)


@pytest.mark.parametrize(
    ("text", "says"),
    [("{", "Expecting"), ("[]", "its schema is None"), ('{"schema": 99}', "its schema is 99, this version reads 1"),
     ('{"schema": 1}', "Results.place is missing")],
)  # fmt: skip
def test_files_that_are_no_readouts_are_named(text: str, says: str, here: Machine, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    shelf = store.load(here, tmp_path)
    assert shelf.current is None
    assert "x.json" in shelf.problems[0]
    assert says in shelf.problems[0]


def test_fields_of_later_versions_are_read_over(here: Machine, tmp_path: Path) -> None:
    data = {**Results(store.place(here)).to_dict(), "telepathy": 1}
    (tmp_path / "x.json").write_text(json.dumps(data), encoding="utf-8")
    assert store.load(here, tmp_path).current == Results(store.place(here))


def test_a_folder_that_can_not_be_written_is_told(here: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "The readouts could not be kept" in store.save(Results(store.place(here)), tmp_path / "file")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes in folders on Windows")
def test_what_is_no_file_or_too_large_is_named_and_not_waited_for(here: Machine, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(2 * 1024**3)
    (tmp_path / "zeros.json").symlink_to("/dev/zero")
    told = store.load(here, tmp_path).problems
    assert [one.split()[0] for one in told] == ["pipe.json", "sparse.json", "zeros.json"]
    assert [("not a file" in one, "too long" in one) for one in told] == [(True, False), (False, True), (True, False)]


def test_what_a_file_says_is_quoted_briefly(here: Machine, tmp_path: Path) -> None:
    other = replace(store.place(here), fingerprint="x", name="a\x1b[2J" * 1000)
    store.save(Results(other), tmp_path)
    (tmp_path / "schema.json").write_text(json.dumps({"schema": "s" * 100_000}), encoding="utf-8")
    (tmp_path / "place.json").write_text(json.dumps({"schema": 1, "place": [[]] * 100_000}), encoding="utf-8")
    shelf = store.load(here, tmp_path)
    (stale,) = shelf.stale
    assert stale.why.isprintable()
    assert max(map(len, [stale.why, *shelf.problems])) < 600
    assert len(shelf.problems) == 2


ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["place", "peaks", "measurements", "name", "versions", "rows"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from(["place", "peaks", "measurements", "qualities"]), ANYTHING))
def test_any_fields_are_readouts_or_a_problem(here: Machine, tmp_path: Path, data: dict[str, Any]) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"schema": 1, **data}), encoding="utf-8")
    shelf = store.load(here, tmp_path)
    assert len(shelf.stale) + len(shelf.problems) == 1
