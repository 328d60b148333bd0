"""Child processes that do not outlive the test that starts them."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[Any]"]:
    """Start a process, and kill it when the context ends, unless it has exited by then."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.kill()
