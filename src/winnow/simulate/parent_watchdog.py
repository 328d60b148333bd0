"""Worker processes do not outlive the process that started them."""

import os
import threading

PARENT_POLL_SECONDS = 0.2
"""Seconds between looks."""


def exit_with_parent(parent: int) -> None:
    """End this process, whatever it is doing, once its parent is gone.

    A thread looks who the parent is. The kernel's own signal for this (PR_SET_PDEATHSIG) is tied to the thread that
    started the process, and a run may be made in a thread that ends before its program.
    """
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    never = threading.Event()
    while os.getppid() == parent:
        never.wait(PARENT_POLL_SECONDS)
    os._exit(1)
