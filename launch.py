"""The only door to Kinetile: `python launch.py` opens the page, `python launch.py --headless` makes clips.

This file and app/bootstrap.py parse on every Python since 2.7, so that an old one gets a sentence and no traceback.
"""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from app import bootstrap  # noqa: E402  (the path must be known first, also under `python -P`)

if __name__ == "__main__":
    sys.exit(bootstrap.main(sys.argv[1:]))
