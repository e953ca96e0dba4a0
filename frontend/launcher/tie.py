"""Becomes a command that the kernel asks to end when its parent ends: `python tie.py PARENT_PID COMMAND...`.

The guard ends what a killed launcher leaves; this is for a guard that is killed with it. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):  # else the parent has ended before that was set
        os.execvp(sys.argv[2], sys.argv[2:])
