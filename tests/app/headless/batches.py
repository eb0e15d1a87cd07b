"""What the tests of headless runs share: a batch that keeps what it said."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine import Engine
from app.headless import BatchSettings, run_batch
from app.paths import Home
from tests.app.services import QUICK
from tests.app.standin import StandIn
from tests.app.workers import in_thread

SMALL = {"prompt": "a red ball", "width": 64, "height": 64, "frames": 5, "steps": 2, "seed": 3}


class Batch:
    """Runs batches into one folder and keeps what was said."""

    def __init__(self, folder: Path) -> None:
        self.out = folder / "clips"
        self.home = Home(folder / "home")
        self.folder = folder
        self.stdout = self.stderr = ""

    def preset(self, name: str, **changes: Any) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"kinetile": 1, "request": SMALL | changes}), encoding="utf-8")
        return str(path)

    def run(self, *sources: str, make_engine: Callable[[Home], Engine] = Engine, **settings: Any) -> int:
        settings = {"out": self.out, "home": self.home, **settings}
        stdout, stderr = io.StringIO(), io.StringIO()
        launch = in_thread(make_engine)
        code = run_batch(sources, BatchSettings(**settings), stdout=stdout, stderr=stderr, launch=launch)
        self.stdout, self.stderr = stdout.getvalue(), stderr.getvalue()
        return code

    @property
    def clips(self) -> list[Path]:
        return sorted(self.out.glob("*.mp4"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    @property
    def files(self) -> list[Path]:
        return sorted(self.out.rglob("*")) if self.out.exists() else []


class Runs:
    """Batches on the stand-in engine, in one home."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.home, self.folder = home, folder
        self.out = folder / "clips"
        self.stdout = self.stderr = ""

    def preset(self, name: str, **changes: Any) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"kinetile": 1, "request": SMALL | changes}), encoding="utf-8")
        return str(path)

    def run(self, *sources: str, make_engine: Any = StandIn, **settings: Any) -> int:
        stdout, stderr = io.StringIO(), io.StringIO()
        chosen = BatchSettings(**{"out": self.out, "home": self.home, **settings})
        launch = in_thread(make_engine)
        code = run_batch(sources, chosen, stdout=stdout, stderr=stderr, launch=launch, patience=QUICK)
        self.stdout, self.stderr = stdout.getvalue(), stderr.getvalue()
        return code

    @property
    def clips(self) -> list[str]:
        return sorted(path.name for path in self.out.glob("*.mp4"))
