"""The studio around the accelerators: request, models, engine, video, batch and page.

Importing this package imports nothing else, so that the launcher, ``--help`` and the checks stay quick.
"""

__version__ = "0.1.0"
OLDEST = (3, 11)  # the oldest Python that will do
