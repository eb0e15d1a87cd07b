"""A record of this machine, probed again from the record, gives the same machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel.probe import probe
from accel.probing import proving, record
from accel.probing.host import Recorded


def test_a_record_repeats_the_probe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proving, "PROCESSOR", ("torch", "fp32"))
    recorder = record.Recorder()
    found = probe(host=recorder, cache_folder=tmp_path / "a", patience=120.0)
    data = json.loads(json.dumps(recorder.data))
    again = probe(host=Recorded(data), cache_folder=tmp_path / "b", patience=120.0)
    assert again == found
    assert found.proofs["fp32"].ok


def test_a_record_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    serial = "GPU-0a1b2c3d-0000-1111-2222-333344445555"
    mounts = f"1 2 0:1 / /home/someone rw - ext4 disk rw\n3 4 0:2 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n{serial}\n"
    monkeypatch.setattr("accel.probing.host.LocalHost.read", lambda self, path: mounts)
    recorder = record.Recorder()
    recorder.read("/proc/self/mountinfo")
    recorder.read("/home/someone/.venv/lib/site-packages/torch/version.py")
    text = json.dumps(recorder.data)
    assert "/home/someone/.venv" not in text
    assert "ext4" not in recorder.data["files"]["/proc/self/mountinfo"]
    assert serial not in text
