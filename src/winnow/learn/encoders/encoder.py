"""What a frozen encoder is to everybody else."""

from collections.abc import Sequence
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError
from winnow.core.installed_package import install_command

Samples: TypeAlias = NDArray[Any] | Sequence[str]
"""As the data have them, before any scaling: numbers [n, …], or texts."""


class FrozenEncoder(Protocol):
    """Samples to features, sample by sample: what a sample becomes does not depend on others."""

    identity: str
    """Tells it from every other encoder, version and setting."""

    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        """[n, features]"""
        ...


def extra_needed(error: ImportError, name: str) -> ConfigError:
    """What a user is told who lacks an encoder's packages."""
    return ConfigError(f"encoder '{name}' needs {error.name}, which is not installed: {install_command('encoders')}")


def weights_identity(distribution: str, weights: Path) -> str:
    """A package's version and the digest of the weights in it."""
    with weights.open("rb") as file:
        digest = sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return f"{distribution} {version(distribution)} {digest.hexdigest()}"
