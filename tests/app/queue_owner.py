"""A process that owns a queue until it is empty, to be killed: `python -m tests.app.queue_owner HOME ENGINE`."""

from __future__ import annotations

import sys
from pathlib import Path

from app.paths import Home
from app.queue.owner import LocalService
from app.queue.service import open_service
from app.worker.supervisor import ProcessWorker
from tests.app.services import until
from tests.app.standin import COMMAND


def main(home: Home, engine: str) -> int:
    launch = (lambda where: ProcessWorker(where, COMMAND)) if engine == "standin" else ProcessWorker
    service = open_service(home, previews=False, launch=launch)
    assert isinstance(service, LocalService)

    def empty() -> bool:
        now = service.snapshot()
        return not now.waiting and now.running is None

    print("ready", flush=True)
    until(empty, 24 * 3600)
    service.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(Home(Path(sys.argv[1])), sys.argv[2]))
