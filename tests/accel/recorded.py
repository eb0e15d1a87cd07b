"""Machines from tests/accel/machines, as hosts that the probe can read, and models to plan for.

Two records were taken on real machines (their `origin` says so); the others are composed from what such machines
publish of themselves.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from accel.errors import PlanError
from accel.plan import make_plan
from accel.probe import probe
from accel.probing.host import Recorded
from accel.types import LinearShape, Machine, ModelTraits, Plan, Preferences, StageTraits

FOLDER = Path(__file__).parent / "machines"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def record(name: str, **changes: Any) -> dict[str, Any]:
    """A machine's record. `changes` are merged into its top-level dictionaries; None removes an entry."""
    data: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for key, value in copy.deepcopy(changes).items():
        if isinstance(value, dict):
            merged = {**data.get(key, {}), **value}
            data[key] = {entry: item for entry, item in merged.items() if item is not None}
        else:
            data[key] = value
    return data


def machine(name: str, cache_folder: Path, **changes: Any) -> Machine:
    """The probe's answer for a recorded machine; nothing may have gone wrong on the way."""
    found = probe(host=Recorded(record(name, **changes)), cache_folder=cache_folder, patience=3600.0)
    assert found.problems == ()
    return found


def model(tokens: int = 7800, **transformer: Any) -> ModelTraits:
    """A Wan-like model; 7800 tokens make its shapes long, 704 short."""
    traits: dict[str, Any] = {
        "class_name": "WanTransformer3DModel",
        "dtypes": ("float32", "bfloat16", "float16"),
        "heads": 12,
        "kv_heads": 12,
        "head_dim": 128,
        "tokens": tokens,
        "kv_tokens": tokens,
        "attention_calls": 60,
        "reachable": True,
        "linears": (LinearShape(1536, 1536, 240), LinearShape(8960, 1536, 30), LinearShape(1536, 8960, 30)),
    }
    return ModelTraits(
        "Wan",
        "WanPipeline",
        (
            StageTraits(
                "text_encoder",
                "UMT5EncoderModel",
                heads=64,
                head_dim=64,
                tokens=512,
                linears=(LinearShape(4096, 4096, 96), LinearShape(10240, 4096, 48), LinearShape(4096, 10240, 24)),
            ),
            StageTraits("transformer", **{**traits, **transformer}),
            StageTraits("vae", "AutoencoderKLWan", ("float32", "bfloat16", "float16"), conv3d=60, channels=96),
        ),
    )


SHORTHAND = {"te": "text_encoder", "tr": "transformer", "vae": "vae"}


def engaged(plan: Plan, where: str) -> str:
    """What a plan engages for "tr.dtype" and the like, or "threads" of the process."""
    if where == "threads":
        return plan.threads.engaged
    stage, setting = where.split(".")
    found = plan.stage(SHORTHAND[stage])
    assert found is not None
    return str(getattr(found, setting).engaged)


def refusals(found: Machine, traits: ModelTraits | None = None, **wishes: str) -> list[str]:
    """The reasons for which a plan with these wishes is refused."""
    with pytest.raises(PlanError) as caught:
        make_plan(found, traits or model(), Preferences(**wishes))
    return caught.value.reasons
