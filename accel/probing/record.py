"""Writes down everything a probe reads of this machine: `python -m accel.probing.record > machine.json`.

The file lets the probe be repeated anywhere (`host.Recorded`), which is how a report from an unknown machine becomes a
test. It holds what the readers asked for and no more; serial numbers of GPUs are left out.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from accel.probe import probe
from accel.probing import overrides
from accel.probing.host import DONE, START, Distribution, LocalHost, Outcome

SERIAL = re.compile(r"GPU-[0-9a-f-]{36}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Recorder(LocalHost):
    """This machine, noting each question and its answer."""

    def __init__(self) -> None:
        super().__init__()
        named = {name: value for name, value in self.environ.items() if name in overrides.EFFECTS}
        self.data: dict[str, Any] = {
            "system": self.system,
            "arch": self.arch,
            "python": self.python,
            "environ": named,
            "numbers": {},
            "files": {},
            "commands": {},
            "programs": [],
            "distributions": {},
            "runs": {},
        }

    def read(self, path: str) -> str | None:
        text = super().read(path)
        if text is not None:
            # the site folder's name is private and differs everywhere
            inside = re.sub(r"^.*site-packages/", "/site/", path)
            self.data["files"][inside] = SHORTENED.get(path, lambda whole: whole)(SERIAL.sub("", text))
        return text

    def glob(self, pattern: str) -> list[str]:
        found = super().glob(pattern)
        for path in found:
            self.data["files"].setdefault(path, "")
        return found

    def run(self, *command: str, timeout: float = 5.0) -> str | None:
        text = super().run(*command, timeout=timeout)
        if text is not None:
            self.data["commands"][" ".join(command)] = SERIAL.sub("", text)
        return text

    def number(self, name: str) -> int | None:
        value = super().number(name)
        if value is not None:
            self.data["numbers"][name] = value
        return value

    def has(self, program: str) -> bool:
        there = super().has(program)
        if there:
            self.data["programs"].append(program)
        return there

    def distribution(self, name: str) -> Distribution | None:
        found = super().distribution(name)
        if found is not None:
            self.data["distributions"][name] = {"version": found.version, "torch": found.torch}
        return found

    def child(self, tasks: Sequence[str], environ: Mapping[str, str], timeout: float) -> Outcome:
        outcome = super().child(tasks, environ, timeout)
        current = None
        for line in outcome.stdout.splitlines():
            if line.startswith(START):
                current = line.removeprefix(START)
                self.data["runs"][current] = {"output": []}
            elif line.startswith(DONE) and current is not None:
                result = json.loads(SERIAL.sub("", line.removeprefix(DONE + current)))
                self.data["runs"][current]["result"] = result
                current = None
            elif current is not None and ",exec," in line:
                self.data["runs"][current]["output"].append(line)
        if current is not None:
            self.data["runs"][current] = _death(outcome)
        return outcome


def _death(outcome: Outcome) -> dict[str, Any]:
    if outcome.code is None:
        return {"timeout": True}
    how = {"signal": -outcome.code} if outcome.code < 0 else {"exit": outcome.code}
    return {**how, "stderr": outcome.stderr[-300:]}


def _one_cpu(text: str) -> str:
    """The first processor's block: the others repeat it."""
    return text.split("\n\n")[0] + "\n"


def _cgroups_only(text: str) -> str:
    """Mounts of cgroups; the others name private folders."""
    return "".join(f"{line}\n" for line in text.splitlines() if " - cgroup" in line)


SHORTENED = {"/proc/cpuinfo": _one_cpu, "/proc/self/mountinfo": _cgroups_only}


def main() -> None:
    recorder = Recorder()
    with tempfile.TemporaryDirectory() as folder:
        probe(host=recorder, cache_folder=Path(folder), patience=60.0)
    json.dump({"origin": "recorded on the machine itself", **recorder.data}, sys.stdout, indent=1, sort_keys=True)
    print()


if __name__ == "__main__":
    main()
