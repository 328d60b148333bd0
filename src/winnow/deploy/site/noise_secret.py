"""The secret from which a site draws its noise: a question that is asked again meets the same noise, so that nobody can
average it away, and nobody else can work it out.
"""

import hmac
import os
from hashlib import sha256
from pathlib import Path
from threading import Lock

from winnow.core.errors import WinnowError
from winnow.deploy.trust.private_file_writing import PRIVATE, read_small, write_bytes_atomically

KEY_FILE = "noise.key"
KEY_BYTES = 32
_making = Lock()
"""Two first questions at once: the secret of one would be lost, and asked again it would meet other noise."""


def noise_seed(state: Path, submission: str) -> bytes:
    """HMAC(secret, submission): all that a job's process gets of the secret, which is made when it is first needed."""
    path = state / KEY_FILE
    with _making:
        if not path.exists():
            write_bytes_atomically(path, os.urandom(KEY_BYTES), PRIVATE)
    secret = read_small(path)
    if len(secret) != KEY_BYTES:
        raise WinnowError(f"{path} is damaged: it has {len(secret)} bytes, not {KEY_BYTES}; restore it")
    return hmac.new(secret, submission.encode(), sha256).digest()
