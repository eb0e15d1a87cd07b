"""What the tests of headless runs share: a batch that keeps what it said."""

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from app.engine import Engine
from app.headless import BatchSettings, run_batch
from app.paths import Home
from app.queue.dispatch import Patience
from tests.app.workers import in_thread

MakeEngine = Callable[[Home], Engine]
SMALL = {"prompt": "a red ball", "width": 64, "height": 64, "frames": 5, "steps": 2, "seed": 3}


class Batch:
    """Runs batches in one home, into one folder, and keeps what was said. Its workers make clips with `make_engine`."""

    def __init__(self, folder: Path, make_engine: MakeEngine = Engine, patience: Patience | None = None) -> None:
        self.out = folder / "clips"
        self.home = Home(folder / "home")
        self.folder = folder
        self.stdout = self.stderr = ""
        self._make_engine, self._patience = make_engine, patience

    def preset(self, name: str, **changes: Any) -> str:
        path = self.folder / f"{name}.json"
        path.write_text(json.dumps({"kinetile": 1, "request": SMALL | changes}), encoding="utf-8")
        return str(path)

    def run(self, *sources: str, make_engine: MakeEngine | None = None, **settings: Any) -> int:
        chosen = BatchSettings(**{"out": self.out, "home": self.home, **settings})
        stdout, stderr = io.StringIO(), io.StringIO()
        launch = in_thread(make_engine or self._make_engine)
        code = run_batch(sources, chosen, stdout=stdout, stderr=stderr, launch=launch, patience=self._patience)
        self.stdout, self.stderr = stdout.getvalue(), stderr.getvalue()
        return code

    @property
    def clips(self) -> list[Path]:
        """In the order in which they were made."""
        return sorted(self.out.glob("*.mp4"), key=lambda path: (path.stat().st_mtime_ns, path.name))

    @property
    def names(self) -> list[str]:
        """The clips' names in the alphabet's order."""
        return sorted(path.name for path in self.clips)

    @property
    def files(self) -> list[Path]:
        return sorted(self.out.rglob("*")) if self.out.exists() else []
