"""Run a command under a lock: `python exclusive.py LOCK_FILE COMMAND ...`, or one line on standard error and exit 2.

The Makefile sets environments up with it, with whatever Python there is and before anything is installed: it takes
nothing from the kit. The lock is the kernel's and ends with the command. It does NOT wait.
"""

import fcntl
import os
import sys

if __name__ == "__main__":
    lock = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("another make is setting up in this folder; wait for it, then run this again", file=sys.stderr)
        sys.exit(2)
    os.set_inheritable(lock, True)
    os.execvp(sys.argv[2], sys.argv[2:])
