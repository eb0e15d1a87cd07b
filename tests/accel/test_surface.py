"""accel's public surface, frozen; and its values' way to JSON and back."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import accel
from accel.codec import decode, encode
from accel.types import Choice, LinearShape, ModelTraits, Plan, Preferences, StageTraits


def test_the_surface_is_what_it_was() -> None:
    assert accel.__all__ == sorted(accel.__all__)
    assert accel.__all__ == [
        "AccelError",
        "Choice",
        "Installation",
        "Machine",
        "ModelTraits",
        "NonFiniteError",
        "Plan",
        "PlanError",
        "Preferences",
        "StagePlan",
        "StageTraits",
        "install",
        "make_plan",
        "probe",
        "traits_of",
    ]
    assert all(getattr(accel, name) is not None for name in accel.__all__)


def test_install_stays_a_function_though_a_module_has_its_name() -> None:
    from accel.install import Installation

    assert callable(accel.install)
    assert accel.Installation is Installation


def test_importing_and_planning_load_no_torch() -> None:
    code = (
        "import sys, accel, accel.doctor, accel.threads\n"
        "machine = accel.probe(prove=False)\n"
        "accel.make_plan(machine, accel.doctor.TYPICAL)\n"
        "heavy = {'torch', 'diffusers', 'numpy', 'gradio', 'app'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = accel.nothing_like_this


# -- JSON --

TEXT = st.text(max_size=8)
LINEARS = st.builds(LinearShape, st.integers(), st.integers(), st.integers(), st.booleans())
TRAITS = st.builds(
    StageTraits,
    st.sampled_from(["text_encoder", "transformer", "vae"]),
    TEXT,
    st.lists(TEXT).map(tuple),
    linears=st.lists(LINEARS).map(tuple),
)


@given(st.builds(ModelTraits, TEXT, TEXT, st.lists(TRAITS, max_size=3).map(tuple)))
def test_any_value_survives_json(traits: ModelTraits) -> None:
    assert ModelTraits.from_dict(json.loads(json.dumps(traits.to_dict()))) == traits


@dataclass(frozen=True)
class Sample:
    number: int
    kind: Literal["a", "b"]
    maybe: int | str | None = None
    ratio: float = 1.0
    inner: dict[str, tuple[Choice, ...]] = field(default_factory=dict)


@pytest.mark.parametrize("maybe", [None, 3, "three"])
def test_unions_literals_and_nesting(maybe: int | str | None) -> None:
    value = Sample(1, "a", maybe, 2.5, {"x": (Choice("s", "t", "auto", "y", ("why",)),)})
    assert decode(Sample, json.loads(json.dumps(encode(value)))) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"kind": "a"}, "Sample.number is missing"),
        ({"number": "1", "kind": "a"}, "Sample.number is '1', expected int"),
        ({"number": True, "kind": "a"}, "Sample.number is True, expected int"),
        ({"number": 1, "kind": "c"}, "Sample.kind is 'c'; allowed: a, b"),
        ({"number": 1, "kind": "a", "maybe": []}, "Sample.maybe is [], which fits none of 3 types"),
        ({"number": 1, "kind": "a", "ratio": "x"}, "Sample.ratio is 'x', expected int or float"),
        ({"number": 1, "kind": "a", "inner": {"x": [{}]}}, "Sample.inner.x[0].stage is missing"),
        ([], "Sample is [], expected dict"),
    ],
)
def test_what_does_not_fit_is_named_by_its_path(data: object, message: str) -> None:
    with pytest.raises(ValueError, match="Sample") as caught:
        decode(Sample, data)
    assert str(caught.value) == message


def test_keys_of_newer_versions_are_ignored() -> None:
    assert Preferences.from_dict({"linear": "stock", "telepathy": "yes"}) == Preferences(linear="stock")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
    )
)
def test_any_json_is_read_or_refused_with_a_value_error(data: object) -> None:
    try:
        Plan.from_dict(data)  # type: ignore[arg-type]
    except ValueError as error:
        assert "Plan" in str(error)  # noqa: PT017
