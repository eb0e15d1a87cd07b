"""Readouts as a person reads them: cells of tables, and the tables as plain text.

Terminal, page and chart take their words from here, so that a figure looks the same everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accel.backends import REGISTRY
from accel.figures import duration, figure
from accel.readouts.results import GAIN, Clip, Measurement, Quality, Results, Row, Verdict
from accel.readouts.store import PACKAGES
from accel.types import StageName

COLUMNS = ("Backend", "in", "Time", "Speed-up", "over fp32", "TFLOP/s", "of peak", "Error", "Memory", "Verdict", "Ran")
CLIP_COLUMNS = ("Plan", "Step", "Text", "Decode", "Your clip", "PSNR", "SSIM", "Served", "Runs")
STAGES: dict[StageName, str] = {"text_encoder": "Text encoder", "transformer": "Transformer", "vae": "VAE"}
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
VERDICTS = {"reference": "plain PyTorch", "unclear": "inside the spread"}
NOTHING = "–"
NAMES = frozenset({*PACKAGES, *(item.name for item in REGISTRY)})
"""Names that are written as they are typed, at the beginning of a sentence too."""


def capital(text: str) -> str:
    """With a capital, unless it begins with a name that has none: one of NAMES, "linear=stock", "oneDNN"."""
    first = text.partition(" ")[0]
    named = first.rstrip(":,.") in NAMES or first != first.lower() or any(sign in first for sign in "_=0123456789")
    return text if named else f"{text[:1].upper()}{text[1:]}"


def ratio(value: float | None) -> str:
    """A speed-up; under 5 % it is none, and what it is measured against is "1x"."""
    if value is None:
        return NOTHING
    if value == 1:
        return "1x"
    if 1 / GAIN < value < GAIN:
        return "no gain"
    return f"{value:.2f}x"


def size(value: int | None) -> str:
    if value is None:
        return NOTHING
    return f"{value / 2**20:.1f} MiB" if value < 2**30 else f"{value / 2**30:.2f} GiB"


def place(row: Row) -> str:
    """The call's stage, title and how often it is made; and what part of it was measured."""
    part = "" if row.call.share == 1 else f", measured on {row.call.share:.0%} of it"
    return f"{STAGES[row.call.stage]}: {row.call.title} ({row.call.count} a pass{part})"


def cells(row: Row) -> tuple[str, ...]:
    """One row of the table, as COLUMNS name them."""
    time = NOTHING if row.time is None else f"{duration(row.time.median)} ±{min(row.time.width / 2, 9.99):.0%}"
    error = NOTHING if row.error is None else f"{row.error:.1e}"
    fallen = f"{row.served} of {row.calls} served: {row.fallback}" if row.calls > row.served else ""
    return (
        row.backend,
        DTYPES.get(row.dtype, row.dtype),
        time,
        ratio(row.speedup),
        ratio(row.over_fp32),
        NOTHING if row.teraflops is None else figure(row.teraflops),
        NOTHING if row.share_of_peak is None else f"{row.share_of_peak:.0%}",
        error,
        size(row.memory),
        verdict(row),
        "; ".join(filter(None, (row.executed, fallen, row.note))) or NOTHING,
    )


def says(verdict: Verdict) -> str:
    """A verdict in words."""
    return VERDICTS.get(verdict, verdict)


def verdict(row: Row) -> str:
    """The verdict, which is about plain PyTorch in the row's own precision."""
    told = says(row.verdict)
    return f"{told} than plain {DTYPES.get(row.dtype, row.dtype)}" if row.verdict in ("faster", "slower") else told


def clip_cells(clip: Clip) -> tuple[str, ...]:
    """One row of the table of clips, as CLIP_COLUMNS name them."""
    if clip.failed:
        return (clip.plan, *[NOTHING] * 7, f"failed: {clip.failed}")
    return (
        clip.plan,
        duration(clip.per_step),
        duration(clip.seconds.get("text", 0.0)),
        duration(clip.seconds.get("decode", 0.0)),
        duration(clip.predicted),
        "it is the reference" if clip.psnr is None else f"{clip.psnr:.1f} dB",
        "" if clip.ssim is None else f"{clip.ssim:.3f}",
        f"{clip.served} of {clip.calls}" if clip.calls else NOTHING,
        clip.engaged or NOTHING,
    )


def comparison(clips: Sequence[Clip]) -> str:
    """The last clip against the first, the reference, as a sentence."""
    first, last = clips[0], clips[-1]
    failed = next((clip for clip in (first, last) if clip.failed), None)
    if failed is not None:
        return f"There is nothing to compare: the clip with the plan {failed.plan} failed ({failed.failed})."
    then, now = (clip.seconds["total"] - clip.seconds.get("load", 0.0) for clip in (first, last))
    speed = f"{then / now:.2f} times as fast" if then / now >= GAIN else "not faster" if now < then * GAIN else "slower"
    text = f"{last.plan} is {speed}: {duration(now)} a clip once it is loaded, {first.plan} {duration(then)}"
    if last.psnr is not None and last.ssim is not None:
        text += f"; its frames reach {last.psnr:.1f} dB and {last.ssim:.3f} SSIM against it"
    return f"{text}."


def quality(one: Quality) -> str:
    """What the clips with an approximate backend showed, as a sentence."""
    found = f"{one.psnr:.1f} dB and {one.ssim:.3f} SSIM (worst {one.worst_psnr:.1f} dB, {one.worst_ssim:.3f})"
    end = "automatic may take it where it is faster" if not one.why_not else "so automatic never takes it"
    return f"{one.backend}: {one.prompts} clips of {one.model} ({one.size}) reach {found}; {end}."


def groups(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Rows by their call, in the order of the measurement."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(place(row), []).append(row)
    return found


def remarks(results: Results, made: Measurement) -> list[str]:
    """Sentences below the tables: peaks, quality, how quiet the machine was, what was left out."""
    lines = [
        f"Peak in {DTYPES.get(one.dtype, one.dtype)}: {figure(one.teraflops)} TFLOP/s, {one.how}."
        for one in results.peaks
    ]
    lines += [quality(one) for one in results.qualities if one.model == made.model]
    if made.busy is not None and not made.quiet:
        lines.append(f"Other programs kept {made.busy:.0%} of the cores busy meanwhile: the figures are noisy.")
    lines += [f"{capital(note).rstrip('.')}." for note in made.notes]
    return [*lines, f"Measured on {results.place.name} in {duration(made.took)}, {made.when}."]


def text(results: Results, made: Measurement) -> str:
    """Everything as plain text."""
    lines = [f"{made.title}: every backend at the calls that the model makes", ""]
    for title, rows in groups(made.rows).items():
        lines += [title, *_aligned([COLUMNS, *map(cells, rows)]), ""]
    if made.clips:
        lines += ["Whole clips, one seed", *_aligned([CLIP_COLUMNS, *map(clip_cells, made.clips)]), ""]
    return "\n".join([*lines, *remarks(results, made)])


def _aligned(table: Sequence[Sequence[str]]) -> list[str]:
    """Columns as wide as their widest cell but for the last; numbers are not set apart."""
    widths = [max(len(line[at]) for line in table) for at in range(len(table[0]) - 1)]
    return ["  " + "  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]) for line in table]
