"""Workers for tests: the real conversation in a thread of this process, where monkeypatches reach it."""

import os
import threading
import time
from collections.abc import Callable

from app.engine import Engine
from app.paths import Home
from app.worker.process import Serving
from app.worker.supervisor import Death, Launcher
from app.worker.wire import Channel


class ThreadWorker:
    """Serves like the worker process, but in a thread. It can't be killed, so killing only stops listening to it;
    what it was doing ends within a step.
    """

    def __init__(self, home: Home, make_engine: Callable[[Home], Engine]) -> None:
        to_worker, from_server = os.pipe()
        to_server, from_worker = os.pipe()
        self.pid = os.getpid()
        self.channel = Channel(os.fdopen(to_server, "rb"), os.fdopen(from_server, "wb"))
        theirs = Channel(os.fdopen(to_worker, "rb"), os.fdopen(from_worker, "wb"))
        serving = Serving(theirs, home, make_engine)

        def run() -> None:
            serving.run()
            theirs.close()

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def kill(self) -> None:
        self.channel.close()
        self._thread.join(60)

    def death(self) -> Death:
        return Death("", 0)

    def cpu_seconds(self) -> float:
        return time.process_time()


def in_thread(make_engine: Callable[[Home], Engine] = Engine) -> Launcher:
    """Launches workers in threads."""
    return lambda home: ThreadWorker(home, make_engine)
