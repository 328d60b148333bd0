"""Looking for secrets in the files of a party while something goes on."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def looking_for(secrets: Sequence[bytes], folder: Path) -> Iterator[set[bytes]]:
    """Which of the secrets any file of the folder holds, looked at again and again."""
    found: set[bytes] = set()
    ended = threading.Event()

    def look() -> None:
        for path in (Path(within, name) for within, _, names in os.walk(folder) for name in names):
            with suppress(OSError):  # it has gone since it was listed
                content = path.read_bytes()
                found.update(secret for secret in secrets if secret in content)

    def watch() -> None:
        while not ended.wait(0.02):
            look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
        look()
