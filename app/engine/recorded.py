"""A plan from a clip's metadata again: what of it can be forced here, and what is another choice on this machine."""

from dataclasses import replace

import accel
from accel.types import Machine, ModelTraits, Plan, Preferences

# Where a recorded plan's choice came from: the preference that forces it again.
_FORCES: dict[str, tuple[str, str]] = {
    "attention": ("transformer", "attention"),
    "linear": ("transformer", "linear"),
    "text_encoder_linear": ("text_encoder", "linear"),
    "vae": ("vae", "vae"),
    "dtype": ("transformer", "dtype"),
    "compile": ("transformer", "compile"),
    "cache": ("transformer", "cache"),
}
# Settings whose engaged choice can change a clip's pixels.
_SHAPING = ("device", "dtype", "attention", "linear", "vae", "memory_format", "compile", "cache", "tiling")


def as_recorded(machine: Machine, then: Plan, traits: ModelTraits) -> Preferences:
    """Preferences that force again what `then` engaged, as far as each can be forced here."""
    forced = Preferences()
    for name, (stage_name, setting) in _FORCES.items():
        stage = then.stage(stage_name)
        # one preference holds for the dtypes of all stages, so it can only say what was the same for all
        if stage is None or (name == "dtype" and len({one.dtype.engaged for one in then.stages}) > 1):
            continue
        wanted = replace(forced, **{name: getattr(stage, setting).engaged})
        forced = wanted if _possible(machine, traits, wanted) else forced
    tiled = replace(forced, tiling="on")
    return tiled if then.tiling.engaged == "on" and _possible(machine, traits, tiled) else forced


def _possible(machine: Machine, traits: ModelTraits, wanted: Preferences) -> bool:
    try:
        accel.make_plan(machine, traits, wanted)
    except accel.PlanError:
        return False
    return True


def differences(then: Plan, now: Plan) -> tuple[str, ...]:
    """One sentence per choice that is another one here."""
    # The file may come from anywhere: one sentence for each choice there is here, and no name longer than names are.
    recorded = {(choice.stage, choice.setting): choice.engaged for choice in then.choices()}
    found = []
    for choice in now.choices():
        before = recorded.get((choice.stage, choice.setting), choice.engaged)
        if choice.setting in _SHAPING and before != choice.engaged:
            why = f": {choice.reasons[0]}" if choice.reasons else ""
            label = f"{choice.stage.replace('_', ' ')} {choice.setting.replace('_', ' ')}"
            found.append(f"It was made with {label} {before[:40]}, here it is {choice.engaged}{why}")
    return tuple(found)
