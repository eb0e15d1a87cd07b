"""The custom ops: fake kernels agree with what runs, slots are numbered again, errors speak as torch does."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accel.backends import backend
from accel.linears import pack_linears
from accel.ops import ATTENTION, CONVS, AttentionSlot, Lease, Slots, attention, conv3d
from accel.report import Tally


@given(st.lists(st.booleans(), max_size=40))
def test_slots_hand_out_the_lowest_free_number(steps: list[bool]) -> None:
    slots: Slots[int] = Slots()
    used: set[int] = set()
    for add in steps:
        if add or not used:
            number = slots.add(len(used))
            assert number == min(set(range(len(used) + 1)) - used)
            used.add(number)
        else:
            number = max(used)
            slots.remove(number)
            used.remove(number)
    assert len(slots) == len(used)


def test_a_lease_ends_with_its_last_holder() -> None:
    slots: Slots[str] = Slots()
    ended: list[int] = []
    lease = Lease(slots, slots.add("x"), lambda: ended.append(1))
    other = copy.deepcopy(lease)
    del lease
    gc.collect()
    assert (len(slots), ended) == (1, [])
    del other
    gc.collect()
    assert (len(slots), ended) == (0, [1])


def test_attention_op_agrees_with_its_fake() -> None:
    slot = ATTENTION.add(AttentionSlot(backend("attention", "sdpa"), Tally("t", "attention", "sdpa")))  # type: ignore[arg-type]
    q, k = torch.randn(2, 5, 2, 16), torch.randn(2, 7, 2, 16)
    for mask in (None, torch.ones(2, 1, 5, 7, dtype=torch.bool)):
        torch.library.opcheck(torch.ops.accel.attention, (q, k, k, mask, 0.3, False, slot))
    ATTENTION.remove(slot)


def test_attention_is_contiguous_whatever_came_in() -> None:
    slot = ATTENTION.add(AttentionSlot(backend("attention", "sdpa"), Tally("t", "attention", "sdpa")))  # type: ignore[arg-type]
    q = torch.randn(2, 2, 5, 16).transpose(1, 2)
    out = attention(q, q, q, torch.randn(5, 5), None, False, slot)
    ATTENTION.remove(slot)
    assert out.is_contiguous()
    assert out.shape == q.shape


@pytest.mark.parametrize("last", [False, True])
def test_conv3d_op_agrees_with_its_fake(last: bool) -> None:
    slot = CONVS.add(Tally("v", "vae", "direct_conv3d"))
    inputs, weight, bias = torch.randn(1, 4, 5, 6, 7), torch.randn(8, 4, 3, 3, 3), torch.randn(8)
    for padding, stride in (([0, 1, 1], [1, 1, 1]), ([1, 0, 1], [2, 2, 1])):
        arguments = (inputs, weight, bias, padding, stride, [1, 1, 1], 1, last, slot)
        torch.library.opcheck(torch.ops.accel.conv3d, arguments)
    CONVS.remove(slot)


def test_conv3d_off_the_cpu_is_counted_as_fallen_back() -> None:
    tally = Tally("v", "vae", "direct_conv3d")
    slot = CONVS.add(tally)
    out = conv3d(
        torch.randn(0, 4, 3, 5, 5), torch.randn(8, 4, 3, 3, 3), None, [0, 0, 0], [1, 1, 1], [1, 1, 1], 1, True, slot
    )
    CONVS.remove(slot)
    assert out.shape == (0, 8, 1, 3, 3)
    assert dict(tally.reasons) == {"no input": 1}


def packed(tally: Tally, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    model = (
        torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([torch.nn.Linear(64, 80)])}).requires_grad_(False).to(dtype)
    )
    chosen: Any = backend("linear", "dynamic_int8" if dtype == torch.float32 else "onednn_bf16")
    return model["blocks"][0], pack_linears(model, chosen, tally, None)  # type: ignore[index]


def test_linear_op_agrees_with_its_fake() -> None:
    linear, linears = packed(Tally("t", "linear", "dynamic_int8"))
    for shape in ((3, 64), (2, 5, 64), (64,)):
        arguments = (torch.randn(shape), linear.bias, linear.accel_number, 80)
        torch.library.opcheck(torch.ops.accel.packed_linear, arguments)
    linears.undo()


def test_linear_takes_every_shape_that_a_linear_takes() -> None:
    tally = Tally("t", "linear", "dynamic_int8")
    linear, linears = packed(tally)
    for inputs in (torch.randn(64), torch.randn(0, 64), torch.randn(2, 3, 64), torch.randn(64, 5).t()):
        assert linear(inputs).shape == (*inputs.shape[:-1], 80)
    assert (tally.served_calls, dict(tally.reasons)) == (3, {"no rows": 1})
    linears.undo()


def test_a_wrong_dtype_raises_as_torch_does() -> None:
    linear, linears = packed(Tally("t", "linear", "dynamic_int8"))
    with pytest.raises(RuntimeError, match="expected input and weight to have the same dtype"):
        linear(torch.randn(2, 64).bfloat16())
    linears.undo()


def test_compiling_many_layers_makes_one_graph() -> None:
    """The slot goes in as a tensor: as a number, every layer would compile anew and stop at torch's limit of eight."""
    torch.compiler.reset()
    model = torch.nn.ModuleDict({"blocks": torch.nn.ModuleList([torch.nn.Linear(64, 64) for _ in range(12)])})
    chosen: Any = backend("linear", "dynamic_int8")
    tally = Tally("t", "linear", "dynamic_int8")
    linears = pack_linears(model.requires_grad_(False), chosen, tally, None)
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    inputs = torch.randn(3, 64)
    blocks: Any = model["blocks"]
    want = [block(inputs) for block in blocks]
    with torch.inference_mode():
        for block in blocks:
            block.compile(backend=count, fullgraph=True)
        got = [block(inputs) for block in blocks]
    assert len(graphs) == 1
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(got, want, strict=True))
    assert tally.served_calls == 24
    linears.undo()
    torch.compiler.reset()
