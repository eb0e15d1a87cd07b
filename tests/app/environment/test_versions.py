"""The launcher's own reading of versions, held against the ``packaging`` library."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement as Theirs
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from packaging.version import Version as TheirVersion

from app.environment.versions import Requirement, Version, normal_name

number = st.integers(0, 12)


@st.composite
def versions(draw: st.DrawFn, local: bool = True) -> str:
    """Version texts, normal and odd ones."""
    text = draw(st.sampled_from(["", "", "", "1!", "v"]))
    text += ".".join(str(n) for n in draw(st.lists(number, min_size=1, max_size=4)))
    if draw(st.booleans()):
        text += draw(st.sampled_from(["a", "b", "rc", ".alpha", "-beta_", "c", ".pre"])) + str(draw(number))
    if draw(st.booleans()):
        text += draw(st.sampled_from([".post", "-", "rev", ".r"])) + str(draw(number))
    if draw(st.booleans()):
        text += draw(st.sampled_from([".dev", "dev", "_dev"])) + str(draw(number))
    if local and draw(st.booleans()):
        text += "+" + draw(st.sampled_from(["cpu", "cu130", "rocm7.2", "1.0", "1a", "a.1"]))
    return text


@given(versions(), versions())
def test_versions_are_ordered_as_packaging_orders_them(left: str, right: str) -> None:
    ours, theirs = (Version.parse(left), Version.parse(right)), (TheirVersion(left), TheirVersion(right))
    assert (ours[0] < ours[1], ours[0] == ours[1]) == (theirs[0] < theirs[1], theirs[0] == theirs[1])


@given(
    st.sampled_from(["==", "!=", ">=", "<=", "<", "~="]),
    versions(local=False).filter(lambda text: not text.startswith("v")),
    versions(),
)
def test_clauses_hold_as_packaging_says(op: str, bound: str, version: str) -> None:
    if op == "~=" and len(TheirVersion(bound).release) < 2:
        bound = f"{TheirVersion(bound).major}.{TheirVersion(bound).minor}"
    text = f"thing{op}{bound}"
    assert Requirement.parse(text).allows(version) == SpecifierSet(f"{op}{bound}").contains(version, prereleases=True)


@pytest.mark.parametrize("text", ["torch==2.*", "torch==2.13.*", "torch!=2.13.*", "torch==2.13.0+cpu", "torch==2.13.0"])
@pytest.mark.parametrize("version", ["2.13.0", "2.13.0+cpu", "2.13.1+cu130", "2.1", "3.0", "2.13.0rc1"])
def test_the_clauses_that_torch_needs(text: str, version: str) -> None:
    assert Requirement.parse(text).allows(version) == Theirs(text).specifier.contains(version, prereleases=True)


@given(st.text(max_size=12))
def test_what_is_no_version_is_refused_as_packaging_refuses_it(text: str) -> None:
    try:
        TheirVersion(text)
    except InvalidVersion:
        with pytest.raises(ValueError, match="not a version"):
            Version.parse(text)
    else:
        Version.parse(text)


@pytest.mark.parametrize("name", ["huggingface_hub", "HuggingFace-Hub", "imageio.ffmpeg", "a__b-._c"])
def test_names_compare_as_on_an_index(name: str) -> None:
    assert normal_name(name) == canonicalize_name(name)


@pytest.mark.parametrize(
    "text", ["torch; os_name == 'nt'", "torch @ file:///x.whl", "torch>=x", ">=2", "torch>2", "torch>=2.*"]
)
def test_requirements_outside_this_projects_needs_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        Requirement.parse(text)


def test_a_requirement_keeps_its_words() -> None:
    requirement = Requirement.parse("Gradio[mcp] >=6, <7")
    assert (requirement.name, requirement.clauses) == ("gradio", ((">=", "6"), ("<", "7")))


def test_local_and_public_part() -> None:
    version = Version.parse("2.13.0+cpu")
    assert (version.public, version.local) == ("2.13.0", "cpu")
