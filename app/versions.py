"""What a clip was made with."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Mapping

import app

# Packages whose release can change a clip's pixels or its file.
_PACKAGES = ("torch", "diffusers", "transformers", "imageio-ffmpeg")


def versions() -> Mapping[str, str]:
    """Releases of Kinetile, Python and the packages that pixels depend on; nothing is imported to find out."""
    found = {"kinetile": app.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
