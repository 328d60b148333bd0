"""The [encode] section of a configuration."""

from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, field_validator, model_validator

from winnow.core import ModelError, OwnCodeError, Settings, suggest
from winnow.core.errors import first_line
from winnow.core.split_factory_path import is_own_code, split_factory
from winnow.learn.encoders import image_encoder, sentence_encoder
from winnow.learn.encoders.encoder import FrozenEncoder, Samples
from winnow.learn.encoders.image_encoder import Alignment, ImageEncoder
from winnow.learn.own_code import load_own_function

KNOWN = (image_encoder.NAME, sentence_encoder.NAME)
MAX_WIDTH = 65_536
"""Features that a sample may become."""


class EncodeSettings(Settings):
    """A frozen encoder, whose features are the run's data: a known one, or `file.py:function` of one's own.

    `align` makes points in the space of sentence embeddings out of a picture's features, and `white` is the value of
    the brightest pixel. With the `scale` "standard" everybody standardises features one by one, over samples of its
    own. Features are kept in the folder `cache`; without it in the run's own.
    """

    name: str
    align: Alignment = "none"
    white: float = Field(default=255.0, gt=0)
    scale: Literal["none", "standard"] = "none"
    cache: Path | None = Field(default=None, strict=False)

    @field_validator("name")
    @classmethod
    def _known_or_own(cls, name: str) -> str:
        if name not in KNOWN and not is_own_code(name):
            raise ValueError(f"no encoder {name!r} (your own is 'file.py:function'); {suggest(name, KNOWN)}")
        return name

    @field_validator("cache")
    @classmethod
    def _anywhere(cls, path: Path | None) -> Path | None:
        """A run may be resumed from another folder."""
        return path and path.expanduser().absolute()

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        for key in ("align", "white"):
            if self.name != image_encoder.NAME and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} has no effect on encoder {self.name!r}; remove it")
        return self

    @property
    def own(self) -> bool:
        """Whether it is the user's own code."""
        return self.name not in KNOWN


class OwnEncoder:
    """A function of the user's own: samples to features [n, …]."""

    def __init__(self, name: str) -> None:
        file, function = split_factory(name)
        self._name, self._function = name, load_own_function(name, "encoder")
        self.identity = f"own {function} {Path(file).read_text(encoding='utf-8', errors='replace')}"

    def __call__(self, samples: Samples) -> NDArray[np.float32]:
        try:
            found = np.asarray(self._function(samples), np.float32)
        except Exception as error:  # a user's code may fail in any way
            raise ModelError(f"encoder '{self._name}' failed: {first_line(error)}") from error
        return checked_features(found, len(samples), self._name)


def checked_features(found: NDArray[np.float32], samples: int, name: str) -> NDArray[np.float32]:
    """[n, features] of finite numbers, as whoever made them should have."""
    if found.ndim < 2 or len(found) != samples or not 0 < found[0].size <= MAX_WIDTH:
        raise OwnCodeError(  # a shape can tell of samples: a site keeps it to itself
            f"encoder '{name}' must return an array [samples, features]",
            f"it returned one of shape {found.shape} for {samples} samples",
        )
    if not np.isfinite(found).all():
        raise ModelError(f"encoder '{name}' returned numbers that are not finite")
    return found.reshape(samples, -1)


def build_encoder(settings: EncodeSettings, device: torch.device) -> FrozenEncoder:
    """The encoder, loaded and ready."""
    if settings.name == sentence_encoder.NAME:
        return sentence_encoder.sentence_encoder(device.type)
    if settings.name == image_encoder.NAME:
        return ImageEncoder(settings.align, settings.white, device)
    return OwnEncoder(settings.name)


def build_text_encoder(name: str) -> FrozenEncoder:
    """What embeds the texts of classes: MiniLM, or a function of one's own from texts to [n, d]."""
    return OwnEncoder(name) if is_own_code(name) else sentence_encoder.sentence_encoder()


def check_text_encoder(name: str) -> str:
    """Refuse what names no encoder of texts."""
    if name != sentence_encoder.NAME and not is_own_code(name):
        raise ValueError(f"no text encoder {name!r}; use 'minilm', or one of your own: 'file.py:function'")
    return name
