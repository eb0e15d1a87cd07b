"""The Accelerate tab's rows and what the last clip counted."""

from __future__ import annotations

from dataclasses import replace

from app.answers import Accelerator
from app.job_types import JobResult


def with_last_clip(rows: tuple[Accelerator, ...], last: JobResult | None) -> tuple[Accelerator, ...]:
    """The rows with the calls that `last` made through each backend, and how many of them it served itself."""
    return rows if last is None else tuple(_counted(row, last) for row in rows)


def _counted(row: Accelerator, last: JobResult) -> Accelerator:
    kind = "linear" if row.setting == "text_encoder_linear" else row.setting
    engaged = [
        str(stage.get(kind, {}).get("engaged")).partition(":")[0]
        for stage in last.plan.get("stages", ())
        if stage.get("stage") == row.stage
    ]
    if row.name not in engaged:
        return row
    entries = [
        entry
        for component, entry in last.report.get(kind, {}).items()
        if component.removesuffix("_2").removesuffix("_3") == row.stage
    ]
    return replace(
        row,
        calls=sum(int(entry.get("calls", 0)) for entry in entries),
        served=sum(int(entry.get("served", 0)) for entry in entries),
    )
