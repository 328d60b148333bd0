"""Entropy coding by zstandard, which is told what to expect before it unpacks anything."""

from typing import Any

import numpy as np

from winnow.core import ConfigError
from winnow.core.installed_package import install_command
from winnow.privacy.compress.bit_packing import Bytes
from winnow.privacy.compress.errors import PacketError


def library() -> Any:
    try:
        import zstandard  # noqa: PLC0415 - imported on use
    except ImportError:
        raise ConfigError(
            f"filters: entropy_coding = 'zstd' needs the package zstandard: {install_command('privacy')}"
        ) from None
    return zstandard


def compress_bytes(data: Bytes, level: int) -> Bytes:
    return np.frombuffer(library().ZstdCompressor(level=level).compress(data.tobytes()), np.uint8)


def decompress_bytes(data: Bytes, size: int) -> Bytes:
    """Data of exactly this size; a frame that says otherwise is not unpacked at all."""
    zstandard, frame = library(), data.tobytes()
    try:
        promised = zstandard.get_frame_parameters(frame).content_size
        if promised != size:
            raise PacketError(f"it would unpack to {promised} bytes instead of {size}")
        expanded = zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError:
        raise PacketError("it is not a valid zstandard frame") from None
    return np.frombuffer(expanded, np.uint8)
