"""Becomes a command that gets SIGTERM from the kernel when its parent ends: `python tie.py PARENT_PID COMMAND...`.

The guard ends the processes of a killed launcher; this is for a guard that is killed too. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() == int(sys.argv[1]):  # else the parent has ended before the call above
        os.execvp(sys.argv[2], sys.argv[2:])
