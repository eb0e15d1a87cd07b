"""Errors against float64 computed in another way, and what is planted is found."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from accel.backends import backend
from accel.measuring.blocks import parts_of
from accel.measuring.trials import ROWS, NotTakenError, Trial
from accel.readouts.results import Call, limit
from tests import builders
from tests.accel.measuring.planted import Planted


def attention(mask: str = "", tokens: int = 600, keys: int = 77, kv_heads: int = 4) -> Call:
    sizes = {"batch": 2, "tokens": tokens, "kv_tokens": keys, "heads": 4, "kv_heads": kv_heads, "head_dim": 16}
    return Call("transformer", "attention", "attention", sizes, 1.0, mask=mask)


LINEAR = Call("transformer", "linear", "linear", {"rows": 700, "in_features": 96, "out_features": 80, "bias": 1}, 1.0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", [attention(), attention("keys"), attention("queries"), attention(kv_heads=2), LINEAR])
def test_plain_torch_is_right_within_its_rounding(call: Call, dtype: str) -> None:
    trial = Trial(call, dtype, "cpu")
    found = trial.candidate(backend(call.kind, "sdpa" if call.kind == "attention" else "stock"))
    error = trial.error(found.run())
    found.close()
    print(f"{call.kind} {call.mask} {dtype}: {error:.1e}")
    assert 1e-9 < error < limit(True, dtype)


def test_the_exact_result_agrees_with_torchs_own_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = Trial(attention("keys"), "float32", "cpu")
    given: list[Any] = []

    def listen(self: Planted, call: Any) -> Any:
        given.append(call)
        return call.query.clone()

    monkeypatch.setattr(Planted, "run", listen)
    trial.candidate(Planted()).run()
    call = given[0]
    q, k, v = (tensor.double().transpose(1, 2) for tensor in (call.query, call.key, call.value))
    want = F.scaled_dot_product_attention(q, k, v, attn_mask=call.mask).transpose(1, 2)
    assert trial.error(want) < 1e-12


@pytest.mark.parametrize("wrong", [0.2, 0.05])
def test_a_planted_error_is_measured_as_it_is(wrong: float) -> None:
    trial = Trial(attention(), "float32", "cpu")
    assert trial.error(trial.candidate(Planted(wrong=wrong)).run()) == pytest.approx(wrong, rel=1e-3)


def test_what_is_not_finite_is_infinitely_wrong() -> None:
    trial = Trial(LINEAR, "float32", "cpu")
    result = trial.candidate(backend("linear", "stock")).run()
    result[0, 0] = float("nan")
    assert trial.error(result) == float("inf")


def test_long_results_are_compared_in_rows_spread_over_all_of_them() -> None:
    trial = Trial(attention(tokens=5000), "float32", "cpu")
    result = trial.candidate(backend("attention", "sdpa")).run()
    assert trial._part(result).shape[1] == ROWS
    result[:, 2500:] = 0  # half of them are wrong
    assert trial.error(result) > 0.5


def test_approximate_linears_err_as_much_as_they_are_known_to() -> None:
    trial = Trial(LINEAR, "float32", "cpu")
    found = trial.candidate(backend("linear", "dynamic_int8"))
    error = trial.error(found.run())
    print(f"dynamic_int8: {error:.1e}")
    assert 1e-3 < error < limit(False, "float32")
    assert found.tally is not None
    assert found.tally.served_calls == 1
    found.close()


def test_a_linear_that_a_backend_leaves_alone_says_why() -> None:
    small = Call("transformer", "linear", "x", {"rows": 3, "in_features": 32, "out_features": 32, "bias": 0}, 1.0)
    with pytest.raises(NotTakenError, match="too small to gain from int8"):
        Trial(small, "float32", "cpu").candidate(backend("linear", "dynamic_int8"))
    outside = Call("transformer", "linear", "x", LINEAR.sizes, 1.0, blocks=False)
    with pytest.raises(NotTakenError, match="outside the repeated blocks"):
        Trial(outside, "float32", "cpu").candidate(backend("linear", "dynamic_int8"))


@pytest.mark.parametrize("path", ["conv_in", "mid_block", "up_blocks.1", "conv_out"])
def test_parts_of_a_vae_through_torch_and_through_onednn(path: str) -> None:
    vae = builders.wan().vae
    with torch.device("meta"):
        blank = type(vae).from_config(vae.config).eval()
    block = parts_of(blank, torch.empty(1, 8, 3, 4, 4, device="meta"))[path]
    _, channels, frames, height, width = block.shape
    sizes = {"channels": channels, "frames": frames, "height": height, "width": width}
    call = Call("vae", "vae", "block", sizes, block.flops())
    trial = Trial(call, "float32", "cpu", block)
    with torch.inference_mode():
        for name in ("stock", "direct_conv3d"):
            found = trial.candidate(backend("vae", name))
            error = trial.error(found.run())
            print(f"{path}, {name}: {error:.1e}")
            assert error < limit(True, "float32")
            found.close()
            if found.tally is not None:
                assert found.tally.served_calls > 0
    with pytest.raises(ValueError, match="the module behind 'block' is needed"):
        Trial(call, "float32", "cpu")
