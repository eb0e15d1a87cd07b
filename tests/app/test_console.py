"""What stands on the terminal: plain lines that are few and whole, and a bar where someone is watching."""

import io

import pytest
from rich.console import Console

from app.console import PlainReporter, RichReporter, describe, duration, reporter_for
from app.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.96, "10.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1:00 min"),
        (61, "1:01 min"),
        (3599.4, "59:59 min"),
        (3599.6, "1 h 0 min"),
        (8140, "2 h 16 min"),
        (7199, "2 h 0 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_describe_counts_only_what_has_steps() -> None:
    assert describe(Progress("denoising", 5, 20, 0.3, eta_seconds=6.12)) == "denoising 5 of 20, about 6.1 s left"
    assert describe(Progress("text", 0, 1, 0.1)) == "reading the prompt"


def test_plain_lines_come_at_each_stage_and_then_rarely() -> None:
    moment = 0.0
    out = io.StringIO()
    reporter = PlainReporter(out, now=lambda: moment)
    reporter.begin("1/1 rocket")
    for step in range(1, 101):
        moment = step * 0.2
        reporter.update(Progress("denoising", step, 100, step / 100))
    reporter.update(Progress("decoding", 0, 1, 0.9))
    lines = out.getvalue().splitlines()
    assert lines[0] == "1/1 rocket: denoising 1 of 100"
    assert lines[-1] == "1/1 rocket: decoding"
    assert len(lines) == 1 + 3 + 1, "one line per 5 s of 20 s, and one for the new stage"


def test_plain_table_is_aligned_without_trailing_spaces() -> None:
    out = io.StringIO()
    PlainReporter(out).table(("file", "seconds"), [("a-long-name.mp4", "8.1"), ("b.mp4", "12.0")])
    assert out.getvalue() == "file             seconds\na-long-name.mp4  8.1\nb.mp4            12.0\n"


def test_no_name_commands_the_terminal() -> None:
    said = "clip\x1b[31m \u202egpm.evil\x07\r\n \ud800 née 火箭 👩\u200d🚀"
    pipe, terminal = io.StringIO(), Terminal()
    rich = RichReporter(Console(file=terminal, force_terminal=True, width=200, color_system=None))
    for reporter in (PlainReporter(pipe), rich):
        reporter.say(said)
        reporter.begin(said)
        reporter.update(Progress("denoising", 1, 2, 0.5))
        reporter.end()
        reporter.table(("file",), [(said,)])
    for text in (pipe.getvalue(), terminal.getvalue()):
        assert text.count("clip?[31m ?gpm.evil??? ? née 火箭 👩\u200d🚀") >= 3
        assert not {"\x07", "\u202e", "\ud800"} & set(text)
        assert "\x1b[31m" not in text


def test_a_pipe_gets_plain_lines_and_a_terminal_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    assert isinstance(reporter_for(io.StringIO()), PlainReporter)
    assert isinstance(reporter_for(Terminal()), RichReporter)
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(reporter_for(Terminal()), PlainReporter)


def test_rich_shows_names_with_brackets_as_they_are() -> None:
    out = Terminal()
    reporter = RichReporter(Console(file=out, force_terminal=True, width=200, color_system=None))
    reporter.say("clip [red]one[/red]")
    reporter.begin("1/1 [bold]odd[/bold]")
    reporter.update(Progress("denoising", 1, 2, 0.5))
    reporter.end()
    reporter.end()
    reporter.table(("file",), [("[blue]x[/blue].mp4",)])
    text = out.getvalue()
    for piece in ("clip [red]one[/red]", "1/1 [bold]odd[/bold]: denoising 1 of 2", "[blue]x[/blue].mp4"):
        assert piece in text
