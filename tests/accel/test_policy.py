"""The table of preferences: complete, honest about exactness, printable."""

from __future__ import annotations

import itertools

from accel import policy
from accel.backends import backend
from accel.types import Kind


def test_the_table_names_only_exact_backends_that_exist() -> None:
    for rule in policy.RULES:
        for name in rule.order:
            assert backend(rule.kind, name).exact, (rule, name)


def test_the_table_always_ends_in_a_reference() -> None:
    kinds: tuple[Kind, ...] = ("attention", "linear", "vae")
    for hardware, kind, shape in itertools.product(
        ("cpu-amx", "cpu-bf16", "cpu-fp32", "sm_90", "gfx950", "mps"), kinds, ("long", "short")
    ):
        last = policy.rule_for(hardware, kind, shape).order[-1]
        held = any(backend(kind, name).reference for name in policy.rule_for(hardware, kind, shape).order)
        assert held or last == "sgl_amx_bf16", (hardware, kind, shape)


def test_the_table_can_be_printed() -> None:
    text = policy.printed()
    assert all(rule.figures in text for rule in policy.RULES)
