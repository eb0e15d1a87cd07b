"""The queue and the history as markup: whatever a prompt holds is text, a page is a page."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import JobFailedError
from app.paths import Home
from app.queue.jobs import ENDED, History, JobError, JobResult, JobState
from app.queue.service import JobProgress
from app.request import GenerationRequest
from app.ui.accelerate_view import machine_html
from app.ui.context import MOST_SERVED, Context, told
from app.ui.live import ended_data
from app.ui.queue_view import MOST_SHOWN, PAGE, View, clip_html, history_html, queue_html
from app.video import outputs, save
from tests.app.ui.desk import Desk, spec


class Reader(HTMLParser):
    """Elements and text of a piece of markup."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def buttons(self, do: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.tags if tag == "button" and attributes.get("data-do") == do]


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    with Desk(Home(tmp_path)) as desk:
        yield Context(desk, desk.home)


def finish(context: Context, prompt: str, seed: int = 1, folder: Path | None = None) -> int:
    """A done job whose files are there, in the outputs if nothing else is said; returns its id."""
    folder = folder or context.home.outputs
    desk = context.service
    assert isinstance(desk, Desk)
    (job,) = desk.submit([spec(prompt, folder, seed)])
    desk.queue.take()
    clip, poster = folder / f"{job.id}.mp4", folder / f"{job.id}.png"
    clip.write_bytes(b"clip")
    poster.write_bytes(b"poster")
    desk.queue.finish(job.id, JobResult(clip, poster, {"stages": []}, {}, {"denoise": 3.9, "total": 5.0}))
    return job.id


def history(context: Context, offset: int = 0, search: str = "") -> Reader:
    found = context.service.history(search, offset, PAGE, ENDED)
    return Reader(history_html(found, View(offset, search=search), context))


def test_running_and_waiting_jobs_have_their_buttons(context: Context) -> None:
    desk = context.service
    assert isinstance(desk, Desk)
    jobs = desk.submit([spec("one", context.home.outputs, seed) for seed in range(3)])
    desk.queue.take()
    desk.progress = JobProgress(jobs[0].id, "denoising", 5, 20, 0.33, 3.1)
    desk.hold([jobs[2].id])
    page = Reader(queue_html(desk.snapshot()))
    assert [one["data-job"] for one in page.buttons("cancel")] == [str(jobs[0].id)]
    assert [one["data-job"] for one in page.buttons("remove")] == [str(job.id) for job in jobs[1:]]
    assert [one.get("aria-disabled") for one in page.buttons("up")] == ["true", None]
    assert [one.get("aria-disabled") for one in page.buttons("down")] == [None, "true"]
    assert [one["data-job"] for one in page.buttons("release")] == [str(jobs[2].id)]
    assert "denoising 5 of 20, about 3.1 s left" in page.text
    bars = [attributes for tag, attributes in page.tags if attributes.get("role") == "progressbar"]
    assert [bar["aria-valuenow"] for bar in bars] == ["33"]


def test_a_long_queue_is_cut_and_says_so(context: Context) -> None:
    context.service.submit([spec("one", context.home.outputs, seed) for seed in range(MOST_SHOWN + 7)])
    page = Reader(queue_html(context.service.snapshot()))
    assert len(page.buttons("remove")) == MOST_SHOWN
    assert "and 7 more jobs behind them" in page.text


@pytest.mark.parametrize(("state", "word"), [("cancelled", "cancelled"), ("failed", "✕ failed")])
def test_what_was_not_made_says_so_without_a_stray_mark(context: Context, state: JobState, word: str) -> None:
    desk = context.service
    assert isinstance(desk, Desk)
    (job,) = desk.submit([spec("one", context.home.outputs)])
    desk.queue.take()
    desk.queue.fail(job.id, state, JobError("Cancelled", "Stopped."))
    (ended,) = desk.get([job.id])
    assert Reader(clip_html(ended, context)).text.startswith(word)
    assert re.search(rf"\d\d:\d\d · {word}$", history(context).text)


def test_the_empty_states_teach(context: Context) -> None:
    assert "Press Generate" in queue_html(context.service.snapshot())
    assert "No clips yet" in history(context).text
    assert "No clip has “kite”" in history(context, search="kite").text


def test_a_page_of_the_history(context: Context) -> None:
    ids = [finish(context, f"clip {number}") for number in range(PAGE + 5)]
    first, second = history(context), history(context, PAGE)
    assert [one["data-job"] for one in first.buttons("open")] == [str(one) for one in reversed(ids[5:])]
    assert [one["data-job"] for one in second.buttons("open")] == [str(one) for one in reversed(ids[:5])]
    assert f"1 to {PAGE} of {PAGE + 5} clips" in first.text
    assert [one.get("aria-disabled") for one in first.buttons("page")] == ["true", None]
    assert [one.get("aria-disabled") for one in second.buttons("page")] == [None, "true"]


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        ({"done": 1}, "1 clip"),
        ({"done": 3, "cancelled": 1}, "3 clips, 1 cancelled"),
        ({"failed": 2, "crashed": 1}, "2 failed, 1 crashed"),
        ({"done": PAGE, "cancelled": 2}, f"1 to {PAGE} of {PAGE + 2}: {PAGE} clips, 2 cancelled"),
        ({"cancelled": 1_000}, f"1 to {PAGE} of 1,000 cancelled"),
    ],
)
def test_only_what_was_made_counts_as_a_clip(context: Context, counts: dict[JobState, int], words: str) -> None:
    page = Reader(history_html(History((), counts), View(), context))
    assert page.text.removesuffix("‹ NewerOlder ›") == words


def test_the_history_tells_how_its_jobs_ended(context: Context) -> None:
    desk = context.service
    assert isinstance(desk, Desk)
    finish(context, "one")
    (job,) = desk.submit([spec("two", context.home.outputs)])
    desk.queue.cancel_queued([job.id], JobError("Cancelled."))
    assert history(context).text.startswith("1 clip, 1 cancelled")
    assert history(context, search="two").text.startswith("1 cancelled")


def test_a_clip_tells_what_is_known_of_it(context: Context) -> None:
    (job,) = context.service.get([finish(context, "a red ball", 7)])
    page = Reader(clip_html(job, context))
    assert [attributes["src"] for tag, attributes in page.tags if tag == "video"] == [
        f"/gradio_api/file={job.result.output.as_posix()}" if job.result else ""
    ]
    assert "seed 7" in page.text
    assert "5.0 s (denoise 3.9 s)" in page.text
    assert page.buttons("restore")[0]["data-event"] == "apply"
    assert not page.buttons("retry")


def test_a_failed_clip_says_why_and_can_be_retried(context: Context) -> None:
    desk = context.service
    assert isinstance(desk, Desk)
    (job,) = desk.submit([spec("x", context.home.outputs)])
    desk.queue.take()
    desk.queue.fail(job.id, "failed", JobError("Not enough memory.", detail="Traceback <b>"))
    page = Reader(clip_html(desk.get([job.id])[0], context))
    assert "Not enough memory." in page.text
    assert "Traceback <b>" in page.text
    assert page.buttons("retry")


def test_files_that_are_gone_or_elsewhere_are_not_linked(context: Context, tmp_path: Path) -> None:
    (job,) = context.service.get([finish(context, "x")])
    assert job.result is not None
    job.result.output.unlink()
    assert "is no longer there" in Reader(clip_html(job, context)).text
    outside = tmp_path / "elsewhere.mp4"
    outside.write_bytes(b"clip")
    job.result.output.symlink_to(outside)
    page = Reader(clip_html(job, context))
    assert "lies outside the outputs folder" in page.text
    assert not [tag for tag, _ in page.tags if tag == "video"]
    assert not context.served


@pytest.mark.skipif(os.name == "nt", reason="there it can't be told who may change a folder")
def test_a_clip_in_another_folder_is_served_where_it_is_its_owner_s_alone(context: Context, tmp_path: Path) -> None:
    folder = tmp_path / "clips"
    folder.mkdir()
    (job,) = context.service.get([finish(context, "x", folder=folder)])
    assert job.result is not None
    folder.chmod(0o777)
    assert "where others may change it" in clip_html(job, context)
    assert not context.served
    folder.chmod(0o755)
    assert "<video" in clip_html(job, context)
    assert sorted(context.served) == [str(job.result.output), str(job.result.poster)]


def test_of_the_files_in_other_folders_the_newest_are_served(context: Context) -> None:
    context.served.append("outputs")
    for number in range(MOST_SERVED + 5):
        context.serve(Path(f"/clips/{number}.mp4"))
    assert context.served[:2] == ["outputs", str(Path("/clips/5.mp4"))]
    assert len(context.served) == MOST_SERVED + 1


HOSTILE = st.one_of(
    st.text(max_size=60),
    st.sampled_from(
        ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "${alert(1)} {{value}}", "' onfocus='x", "</p>"]
    ),
)


@given(HOSTILE)
def test_whatever_a_prompt_holds_is_text(tmp_path_factory: pytest.TempPathFactory, prompt: str) -> None:
    with Desk(Home(tmp_path_factory.mktemp("home"))) as desk:
        context = Context(desk, desk.home)
        identity = finish(context, prompt)
        desk.submit([spec(prompt, context.home.outputs)])
        for markup in (
            queue_html(desk.snapshot()),
            history_html(desk.history(), View(search=prompt), context),
            history_html(desk.history(prompt + " nowhere"), View(search=prompt), context),
            clip_html(desk.get([identity])[0], context),
        ):
            page = Reader(markup)
            allowed = {"div", "p", "span", "ol", "ul", "li", "button", "b", "i", "a", "img", "video", "article", "dl"}
            assert {tag for tag, _ in page.tags} <= allowed | {"dt", "dd"}
            assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on")]


@pytest.mark.parametrize("prompt", ["红" * 120, "🚀" * 90, 'a/b: c*d? "e"', "line\nbreak"])
def test_a_clip_s_file_is_named_after_its_prompt(context: Context, prompt: str) -> None:
    """Case 31: from the page's prompt to a file that every system takes."""
    (made,) = context.specs(GenerationRequest(prompt=prompt, seed=5))
    clip = save(np.zeros((5, 16, 16, 3), np.uint8), 8, made.folder, made.stem, {})
    assert clip.path.parent == context.home.outputs
    assert clip.path.name.endswith("-5.mp4")
    assert len(clip.path.name.encode()) <= 130
    assert clip.path.name[:2] in prompt.replace("/", "-")


def test_the_page_names_no_option_of_a_command_line(context: Context, tmp_path: Path) -> None:
    """A full disk, wherever a person reads of it; and what the doctor would have them add."""
    desk = context.service
    assert isinstance(desk, Desk)
    full = outputs.disk_full(tmp_path)
    desk.submit([spec("a ball", tmp_path)])
    job = desk.queue.take()
    assert job is not None
    ended = desk.queue.fail(job.id, "failed", JobError(str(full)))

    def fails() -> None:
        raise JobFailedError(str(full))

    with pytest.raises(gr.Error) as caught:
        told(fails)()
    doctor = machine_html({"could": ["Int8: add `--accel linear=dynamic_int8`; twice as fast."]}, names=["could"])
    said = [
        ended_data(ended)["why"],
        Reader(clip_html(ended, Context(desk, desk.home))).text,
        str(caught.value.message),
        Reader(doctor).text,
    ]
    assert ["is full: free some space." in text for text in said[:3]] == [True] * 3, said
    assert "Int8: switch it on above; twice as fast." in said[3]
    assert not any("--" in text for text in said)
