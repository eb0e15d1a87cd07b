"""For all tests: nothing leaves this machine and nobody's own data folder is touched.

Random inputs are judged by what comes out, never by how long it took on a busy machine.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HOME"] = os.path.join(tempfile.gettempdir(), f"kinetile-tests-{os.getpid()}", "no-models-here")
os.environ.pop("HF_HUB_CACHE", None)
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

# A suite started in the background inherits an ignored Ctrl-C, under nohup an ignored hang-up too, and so would every
# process that it tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("kinetile", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kinetile")


@pytest.fixture(autouse=True, scope="session")
def own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The tests have a data folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINETILE_HOME", str(tmp_path_factory.mktemp("kinetile-home")))
        yield


@pytest.fixture(scope="session")
def tiny_models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny pipeline's folder by its name in tests.tiny.BUILDERS, written when first asked for; read only."""

    @functools.cache
    def folder(name: str) -> Path:
        from tests import tiny

        return tiny.save(name, tmp_path_factory.mktemp(name))

    return folder
