"""The table of preferences: complete, honest about exactness, printable."""

from __future__ import annotations

import itertools

from accel import policy
from accel.backends import backend
from accel.types import Kind, LinearShape, StageTraits


def test_the_table_names_only_exact_backends_that_exist() -> None:
    for rule in policy.RULES:
        for name in rule.order:
            assert backend(rule.kind, name).exact, (rule, name)


def test_the_table_always_ends_in_a_reference() -> None:
    kinds: tuple[Kind, ...] = ("attention", "linear", "vae")
    for hardware, kind, tokens in itertools.product(
        ("cpu-amx", "cpu-bf16", "cpu-fp32", "sm_90", "gfx950", "mps"), kinds, (64, 2048, 7800, 32760)
    ):
        order = policy.rule_for(hardware, kind, traits(tokens)).order
        held = any(backend(kind, name).reference for name in order)
        assert held or order[-1] == "sgl_amx_bf16", (hardware, kind, tokens)


def traits(tokens: int, width: int = 1536) -> StageTraits:
    return StageTraits("transformer", "WanTransformer3DModel", tokens=tokens, linears=(LinearShape(4 * width, width),))


def test_small_models_and_few_tokens_are_left_to_what_was_faster() -> None:
    """On 16 cores with AMX packed linears made the starter's denoising 3.4 times as long as stock bf16; on an H200
    FlashAttention-3 made it 1.3 times as long."""
    assert policy.shapes(traits(520, 320)) == ("short", "small")
    assert policy.rule_for("cpu-amx", "linear", traits(520, 320)).order[0] == "stock"
    assert policy.rule_for("cpu-amx", "linear", traits(512, 4096)).order[0] == "onednn_bf16"
    assert policy.rule_for("sm_90", "attention", traits(7800)).order == ("sdpa",)
    assert policy.rule_for("sm_90", "attention", traits(32760)).order[0] == "fa3"


def test_the_table_can_be_printed() -> None:
    text = policy.printed()
    assert all(rule.figures in text for rule in policy.RULES)
