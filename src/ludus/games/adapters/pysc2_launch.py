"""Becomes the program that it is given, which the kernel then ends with the process that started it.

Run as a file: PARENT PROGRAM [ARGUMENT ...]. The kernel keeps its promise across `exec`, and the process
number stays, so that whoever started it has the program itself as a child.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, program = int(sys.argv[1]), sys.argv[2]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the kernel was told
            sys.exit("the process that wanted the game has ended")
    os.execv(program, sys.argv[2:])


if __name__ == "__main__":
    main()
