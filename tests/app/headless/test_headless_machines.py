"""Batches in processes of their own, from launch.py on, on processors that are not what they say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from app.video import read_metadata
from tests.app.headless.batches import SMALL

ROOT = Path(__file__).parents[3]

LYING = """
import os, signal
from accel.probing import proving, runs
from accel.probing.host import LocalHost

proving.PROCESSOR = ("torch", "fp32", "bf16", "packed_bf16")
runs.TASKS["bf16"] = lambda: os.kill(os.getpid(), signal.SIGILL)
read = LocalHost.read


def claiming(self, path):
    text = read(self, path)
    more = "avx2 avx512f avx512_bf16 amx_tile amx_bf16 amx_int8"
    return text.replace(" avx2", " " + more) if text and path == "/proc/cpuinfo" else text


LocalHost.read = claiming
"""
"""For every process: a virtual machine that advertises AMX, and whose first bf16 product dies of it."""


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="signals are POSIX, and the claim stands in /proc/cpuinfo")
def test_a_processor_that_lies_about_amx_makes_its_clip_without(tmp_path: Path) -> None:
    """Case 1: the first product dies in a child of the probe and nowhere else, and the job ends with exit code 0."""
    (tmp_path / "sitecustomize.py").write_text(LYING, encoding="utf-8")
    preset = tmp_path / "small.json"
    preset.write_text(json.dumps({"kinetile": 1, "request": {**SMALL, "model": "starter", "steps": 1}}))
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "ONEDNN_", "DNNL_"))}
    environ |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "ACCEL_CACHE": str(tmp_path / "probed")}
    command = [sys.executable, "launch.py", "--headless", str(preset), "--home", str(tmp_path / "home")]
    command += ["--out", str(tmp_path / "clips"), "--no-install"]
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    (clip,) = (tmp_path / "clips").glob("*.mp4")
    plan = read_metadata(clip)["plan"]
    assert {stage["dtype"]["engaged"] for stage in plan["stages"]} == {"float32"}
    assert "not bf16: its test process was killed by SIGILL" in plan["stages"][1]["dtype"]["reasons"]
    assert plan["environment"]["ONEDNN_MAX_CPU_ISA"] == "AVX512_CORE_BF16", "the real run is kept off AMX too"
