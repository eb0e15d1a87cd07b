"""How tokens and heads are dealt out, and who is refused."""

from __future__ import annotations

import copy
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.install import install
from accel.parallel.exchange import bounds
from accel.parallel.ranks import joined, why_not
from accel.parallel.sharing import branches_split
from tests import builders


@given(total=st.integers(0, 10_000), count=st.integers(1, 64))
def test_parts_cover_everything_and_differ_by_one_at_most(total: int, count: int) -> None:
    found = bounds(total, count)
    sizes = [last - first for first, last in pairwise(found)]
    assert (found[0], found[-1], len(sizes)) == (0, total, count)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("count", "guided", "split"), [(2, True, True), (2, False, False), (3, True, False), (8, True, True)]
)
def test_branches_come_first_where_ranks_are_even(count: int, guided: bool, split: bool) -> None:
    assert branches_split(count, guided) == split


def test_who_is_refused() -> None:
    wan = builders.wan_transformer(heads=2)
    assert why_not(wan, 2, False) == ""
    assert why_not(wan, 4, True) == ""
    assert why_not(wan, 3, True) == "2 heads can't be dealt to 3 GPUs: take at most 2"
    assert "LTXVideoTransformer3DModel can't be run on several GPUs" in why_not(builders.ltx_transformer(), 2, True)
    foreign = copy.deepcopy(wan)
    foreign._parallel_config = SimpleNamespace()
    assert "diffusers' own parallelism" in why_not(foreign, 2, False)


def test_attention_of_others_is_refused() -> None:
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    wan = builders.wan_transformer()
    wan.set_attention_backend("_native_math")
    try:
        assert "given to diffusers' _native_math" in why_not(wan, 2, False)
        assert why_not(wan, 2, True) == "", "no tokens are dealt out"
    finally:
        wan.reset_attention_backend()
        _AttentionBackendRegistry.set_active_backend(AttentionBackendName.NATIVE)


@pytest.mark.parametrize(("cache", "refused"), [("first_block", True), ("pyramid", False)])
def test_caches_that_look_at_tokens_are_refused(cache: str, refused: bool) -> None:
    wan = builders.wan_transformer()
    plan = builders.plan(cache=cache)
    put = install(builders.Holder(transformer=wan), plan)
    assert ("looks at tokens" in why_not(wan, 2, False)) == refused
    assert why_not(wan, 2, True) == ""
    put.remove()


def test_without_a_job_there_are_no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(Exception, match=r"RANK.* not set: start this with python -m torch\.distributed\.run"), joined():
        pass
    assert not torch.distributed.is_initialized()
