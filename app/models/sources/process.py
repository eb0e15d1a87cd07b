"""The process that fetches (`python -m app.models.sources.process OWNER/NAME`): the only one that uses the network.

One line of JSON for each message: how far it is, at the end {"folder": ...} or {"error": sentence}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from app.environment.handover import end_with_parent
from app.errors import KinetileError
from app.models.sources import hub
from app.models.sources.fetching import FetchProgress, line_of


def main(argv: Sequence[str]) -> int:
    """Fetch one repository and tell of it on standard output."""
    end_with_parent()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a library prints goes to the error stream

    def tell(progress: FetchProgress) -> None:
        print(line_of(progress), file=out, flush=True)

    try:
        last = {"folder": str(hub.fetch(argv[0], tell))}
    except KinetileError as error:
        last = {"error": str(error)}
    print(json.dumps(last), file=out, flush=True)
    return 0 if "folder" in last else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
