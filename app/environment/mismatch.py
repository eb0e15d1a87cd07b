"""A GPU that is here and a torch that can't use it: told at every start, with the command that changes it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from app.environment import machine
from app.environment.builds import choose_build, load_table
from app.environment.packages import torch_facts
from app.errors import CannotRunError


def unused_gpu(sites: Iterable[Path], chosen: str, venv: Path | None = None) -> str:
    """One sentence when torch is a build for the CPU and a GPU is here that another build fits, else "".

    ``sites``: folders to look for torch in; ``chosen``: the build that a person asked for, who is not told when that
    was the CPU's; ``venv``: the folder that Kinetile made and may be deleted, None for a person's own environment.
    Quick where no GPU is in sight.
    """
    vendor = machine.gpu_in_sight()
    site = next((site for site in sites if (site / "torch/version.py").is_file()), None) if vendor else None
    if site is None or chosen == "cpu":
        return ""
    try:
        facts = torch_facts(site)
    except CannotRunError:
        return ""
    if facts["cuda"] or facts["hip"]:
        return ""
    build = choose_build(machine.read_host(), load_table()).build
    if build.kind == "cpu":  # the GPU or its driver is too old for any
        return ""
    wanted = build.attempts[0]
    index = f" --index-url {wanted.index}" if wanted.index else ""
    # accel.advice writes it shorter, but nothing of accel can be imported before all is installed
    fix = (
        f"delete {venv} and start again: python launch.py --torch-build {build.name}"
        if venv is not None
        else f'"{sys.executable}" -m pip install --force-reinstall {wanted.requirement}{index}'
    )
    return f"an {vendor.upper()} GPU is here, but torch {facts['version']} is a build for the CPU; to use it, {fix}"
