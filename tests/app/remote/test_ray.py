"""Batches over a Ray that runs here: real actors, one of which is killed midway, and a batch that is stopped."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from app.headless import BatchSettings, run_batch
from app.paths import Home
from app.video import read_metadata
from app.worker.supervisor import ROOT
from tests.app.headless.batches import SMALL
from tests.app.services import until
from tests.app.standin import COMMAND

pytest.importorskip("ray", reason="Ray is an extra that is not installed here: pip install 'ray>=2.50,<3'")


def lines(folder: Path, count: int, **changes: Any) -> str:
    """A batch of that many clips."""
    path = folder / "batch.jsonl"
    path.write_text("\n".join(json.dumps({"kinetile": 1, **SMALL, **changes, "seed": seed}) for seed in range(count)))
    return str(path)


def hosts(root: psutil.Process, module: str) -> list[psutil.Process]:
    """The actors below `root` whose worker's process runs `module`."""
    found = []
    for one in root.children(recursive=True):
        try:
            if module in one.cmdline() and "--home" in one.cmdline():
                found.append(one.parent())
        except psutil.Error:
            continue
    return [one for one in found if one is not None and "EngineHost" in " ".join(one.cmdline())]


def run(
    folder: Path, source: str, home: Home, during: Callable[[io.StringIO], None], **options: Any
) -> tuple[int, str, str]:
    """A batch on two engines; exit code, what was printed and what was complained of. `during` runs beside it."""
    stdout, stderr = io.StringIO(), io.StringIO()
    beside = threading.Thread(target=during, args=(stdout,), daemon=True)
    beside.start()
    resume = options.pop("resume", False)
    settings = BatchSettings(out=folder, home=home, ray="local:2", resume=resume)
    code = run_batch([source], settings, stdout=stdout, stderr=stderr, **options)
    beside.join(5)
    return code, stdout.getvalue(), stderr.getvalue()


def kill_one(module: str, begun: int) -> Callable[[io.StringIO], None]:
    """Kill an actor once that many clips were begun, while two are being made."""

    def act(stdout: io.StringIO) -> None:
        until(lambda: stdout.getvalue().count(": begun") >= begun, 240)
        time.sleep(0.3)
        victim = until(lambda: hosts(psutil.Process(), module))[0]
        victim.kill()

    return act


def check(folder: Path, count: int) -> None:
    """Every clip once, whole, and none left half-written."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        f"batch-{line}-{line - 1}{suffix}" for line in range(1, count + 1) for suffix in (".mp4", ".png")
    )
    for path in folder.glob("*.mp4"):
        metadata = read_metadata(path)
        assert path.stem.endswith(f"-{metadata['request']['seed']}")
        assert " #" in metadata["report"]["ran_on"]


@pytest.mark.long
def test_four_clips_on_two_engines_one_of_which_is_killed(home: Home, tmp_path: Path) -> None:
    source, out = lines(tmp_path, 4, steps=60), tmp_path / "out"
    code, said, complained = run(out, source, home, kill_one(COMMAND[-1], 2), far_module=COMMAND[-1])
    assert code == 0, complained + said
    check(out, 4)
    assert "4 of 4 made." in said
    assert said.count(": begun") == 5, "the lost job was not begun again"
    assert not hosts(psutil.Process(), COMMAND[-1]), "an engine was left behind"


@pytest.mark.long
@pytest.mark.timeout(900)
def test_twenty_clips_of_the_starter_with_one_engine_killed_midway(home: Home, tmp_path: Path) -> None:
    source, out = lines(tmp_path, 20, steps=4), tmp_path / "out"
    code, said, complained = run(out, source, home, kill_one("app.worker.process", 10))
    assert code == 0, complained + said
    check(out, 20)
    assert "20 of 20 made." in said
    assert said.count(": begun") == 21
    for stem in ("batch-4-3", "batch-8-7"):
        (out / f"{stem}.mp4").unlink()
        (out / f"{stem}.png").unlink()
    code, said, _ = run(out, source, home, lambda _: None, resume=True)
    assert code == 0
    assert "Skipping 18 clips that an earlier run made." in said
    check(out, 20)


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C is sent as a signal")
@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_once_waits_for_what_runs_and_twice_stops_at_once(home: Home, tmp_path: Path, presses: int) -> None:
    source, out = lines(tmp_path, 6, steps=40), tmp_path / "out"
    command = [sys.executable, "launch.py", "--no-install", "--headless", source, "--ray", "local:2"]
    command += ["--home", str(home.root), "--out", str(out)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    ) as batch:
        whole = psutil.Process(batch.pid)
        assert batch.stdout is not None
        said = []
        for line in batch.stdout:
            said.append(line)
            if sum(": begun" in one for one in said) == 2:
                break
        time.sleep(1)
        below = whole.children(recursive=True)
        for press in range(presses):
            os.killpg(batch.pid, signal.SIGINT)
            time.sleep(1.0 * (press == 0))
        said.append(batch.stdout.read())
        code = batch.wait(60)
    text = "".join(said)
    assert code == 130, text
    made = len(list(out.glob("*.mp4"))) if out.exists() else 0
    assert made == (2 if presses == 1 else 0), text
    assert "still queued" in text
    _, alive = psutil.wait_procs(below, timeout=20)
    assert not alive, [one.cmdline() for one in alive]


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_cluster_is_joined_and_outlives_the_loss_of_a_node(home: Home, tmp_path: Path) -> None:
    from ray.cluster_utils import Cluster

    source, out = lines(tmp_path, 6, steps=4), tmp_path / "out"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        second = cluster.add_node(num_cpus=1)

        def lose(stdout: io.StringIO) -> None:
            until(lambda: stdout.getvalue().count(": begun") >= 3, 400)
            cluster.remove_node(second, allow_graceful=False)

        stdout, stderr = io.StringIO(), io.StringIO()
        threading.Thread(target=lose, args=(stdout,), daemon=True).start()
        settings = BatchSettings(out=out, home=home, ray=cluster.address)
        code = run_batch([source], settings, stdout=stdout, stderr=stderr)
    finally:
        cluster.shutdown()
    assert code == 0, stderr.getvalue() + stdout.getvalue()
    assert "2 to make clips: " in stdout.getvalue()
    assert "6 of 6 made." in stdout.getvalue()
    assert len(list(out.glob("*.mp4"))) == 6
