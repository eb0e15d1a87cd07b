"""A clone of Kinetile's door with a tiny torch behind it: real launcher, real pip, wheels of a few hundred bytes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.app.environment.stand_ins import CPU_TORCH, write_wheel

ROOT = Path(__file__).parents[2]
PYPROJECT = """[project]
name = "door"
version = "0"
dependencies = ["torch>=2.9,<3", "kinetile-tiny>=1,<2"]

[project.optional-dependencies]
test = ["pytest>=1"]
"""
# Stands for app/cli.py: says what it was given, and needs a package, as the page does.
CLI = """
import json, os, signal, sys, time
import kinetile_tiny

def main(argv):
    print(json.dumps({"argv": argv, "cwd": os.getcwd(), "prefix": sys.prefix, "env": sorted(os.environ)}), flush=True)
    if "--wait" in argv:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        print("waiting", flush=True)
        time.sleep(60)
    return int(argv[argv.index("--exit") + 1]) if "--exit" in argv else 0
"""
# Stands for pytest: says what it was given; the exit code is the last word if that is a number.
PYTEST = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "prefix": sys.prefix}))
sys.exit(int(sys.argv[-1]) if sys.argv[-1].isdigit() else 0)
"""
# The interpreter that a person starts the launcher with: one without our packages.
BARE = getattr(sys, "_base_executable", sys.executable)


class FakeClone:
    """One clone, with a folder of wheels that is all pip can reach."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "zwei Wörter" / "kinetile"
        self.wheels = folder / "räder"
        self.elsewhere = folder / "anderswo"
        for path in (self.root / "app", self.wheels, self.elsewhere):
            path.mkdir(parents=True)
        for name in ("launch.py", "app/__init__.py", "app/bootstrap.py", "app/errors.py"):
            shutil.copy(ROOT / name, self.root / name)
        shutil.copytree(ROOT / "app/environment", self.root / "app/environment")
        self._keep_only_the_cpu_row(self.root / "app/environment/builds.json")
        (self.root / "pyproject.toml").write_text(PYPROJECT, encoding="utf-8")
        (self.root / "app/cli.py").write_text(CLI, encoding="utf-8")
        write_wheel(
            self.wheels, "torch", "2.13.0+cpu", [], {"torch/version.py": CPU_TORCH.format(version="2.13.0+cpu")}
        )
        write_wheel(self.wheels, "pytest", "9.0", files={"pytest/__init__.py": "", "pytest/__main__.py": PYTEST})

    def add_tiny(self) -> None:
        """Bring the package that is missing until then."""
        write_wheel(self.wheels, "kinetile-tiny", "1.5")

    @property
    def venv(self) -> Path:
        return self.root / ".venv"

    def start(self, *words: str, python: str | Path = BARE) -> subprocess.Popen[str]:
        """Start the launcher as a person would, from another folder; no network, no settings of this machine's pip."""
        return subprocess.Popen(
            [os.fspath(python), os.fspath(self.root / "launch.py"), *words],
            cwd=self.elsewhere,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def run(self, *words: str, python: str | Path = BARE) -> tuple[int, str, str]:
        """The same to its end: exit code, stdout, stderr."""
        with self.start(*words, python=python) as process:
            out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PIP_", "VIRTUAL_ENV", "CONDA"))}
        mine = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels.as_uri(), "PIP_CONFIG_FILE": os.devnull}
        return {**kept, **mine, "PYTHONUTF8": "1"}

    @staticmethod
    def _keep_only_the_cpu_row(table: Path) -> None:
        data = json.loads(table.read_text(encoding="utf-8"))
        data["builds"] = [row for row in data["builds"] if row["name"] == "cpu"]
        data["builds"][0]["disk_gib"] = 0.1
        table.write_text(json.dumps(data), encoding="utf-8")
