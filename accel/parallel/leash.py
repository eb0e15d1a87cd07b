"""A process that ends with the one that started it, even where that one is killed and can't say so.

On Linux the kernel sees to it. Elsewhere there is no such thing, and a rank has to watch the pipe that it was given.
Run as a program it puts another one on the leash, which stays in the same process: python leash.py PARENT COMMAND ...
Nothing but the standard library, no package: it is run by its path, at once.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""From Linux' sys/prctl.h. The signal comes when the thread ends that started this process."""


def end_with(parent: int) -> None:
    """Kill this process as soon as `parent`, which started it, is gone; at once where it is gone already."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leashed(command: list[str]) -> list[str]:
    """`command` such that it ends with this process; on systems other than Linux, as it is."""
    return [sys.executable, "-S", "-E", __file__, str(os.getpid()), *command] if sys.platform == "linux" else command


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    os.execvp(sys.argv[2], sys.argv[2:])
