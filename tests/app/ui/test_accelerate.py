"""Accelerate: when its table and the state of a measurement are shown anew."""

from __future__ import annotations

import gradio as gr
import pytest

from app.answers import Accelerator
from app.measuring import Measuring
from app.request import AccelPreferences, GenerationRequest
from app.ui.accelerate import _Tab
from app.ui.context import Context
from app.ui.readouts import Readouts
from tests.app.ui.desk import Desk
from tests.app.ui.test_queue_view import Reader


def test_a_model_that_is_not_here_empties_the_table_and_says_why(desk: Desk) -> None:
    readouts = Readouts(Context(desk, desk.home), None)
    tab = _Tab(readouts.context, readouts)
    for gpus in (1, 2):
        seen, table, problem = tab.show("wan2.1-i2v-14b-720p", gpus)
        assert table == ""
        assert "Wan 2.1 I2V 14B 720p is not on this machine" in Reader(problem).text
    again = tab.refresh(seen, "wan2.1-i2v-14b-720p", 1, None, 0)
    assert again[1:3] == [table, problem], "it may have been fetched meanwhile"
    assert "Nothing was measured for this model on this machine yet" in readouts.show("wan2.1-i2v-14b-720p")[1]
    seen, table, problem = tab.show("starter")
    assert (problem, tab.refresh(seen, "starter", 1, None, 0)[1]) == ("", gr.skip())
    assert table


@pytest.mark.parametrize("tables", [1, 2])
def test_a_measurement_that_begins_while_a_table_is_made_is_shown(
    tables: int, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that just started takes long for the first table, and none tells how a measurement stands."""
    planned, readouts = desk.accelerators, Readouts(Context(desk, desk.home), None)
    tab = _Tab(readouts.context, readouts)
    measuring = readouts.show("starter")[4]

    def begun(request: GenerationRequest) -> tuple[Accelerator, ...]:
        desk.state = Measuring(1, "bench", "running", text="the machine's peak")
        return planned(request)

    monkeypatch.setattr(desk, "accelerators", begun)
    seen = [tab.load("starter")[0] for _ in range(tables)][-1]
    seen, table, _, panel, *_, measuring, _, _, _, _ = tab.refresh(seen, "starter", 1, measuring, 0)
    assert "the machine's peak" in Reader(panel).text
    assert table == gr.skip(), "it is the same until there are figures"
    assert tab.refresh(seen, "starter", 1, measuring, 0)[1:] == [gr.skip()] * 11


def test_a_switch_that_is_moved_elsewhere_while_the_table_is_made_is_in_the_next(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned, readouts = desk.accelerators, Readouts(Context(desk, desk.home), None)
    tab = _Tab(readouts.context, readouts)

    def moved(request: GenerationRequest) -> tuple[Accelerator, ...]:
        made = planned(request)
        desk.set_preferences(AccelPreferences(vae="stock"))
        return made

    monkeypatch.setattr(desk, "accelerators", moved)
    seen, before, _ = tab.load("starter")
    seen, after, *_ = tab.refresh(seen, "starter", 1, None, 0)
    assert "chosen by you" in Reader(after).text
    assert "chosen by you" not in Reader(before).text
    assert tab.refresh(seen, "starter", 1, None, 0)[1] == gr.skip()


def test_the_table_has_the_figures_of_a_measurement_whose_end_its_bar_heard_first(desk: Desk) -> None:
    readouts = Readouts(Context(desk, desk.home), None)
    tab = _Tab(readouts.context, readouts)
    desk.state = Measuring(1, "bench", "running")
    seen = tab.load("starter")[0]
    desk.state = Measuring(1, "bench", "done")
    measuring = readouts.show("starter")[4]
    seen, table, *_ = tab.refresh(seen, "starter", 1, measuring, 0)
    assert "<table" in table
    assert tab.refresh(seen, "starter", 1, measuring, 0)[1:] == [gr.skip()] * 11
