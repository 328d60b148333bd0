"""Frozen encoders: networks that turn samples into features once, and are neither trained nor sent."""

from winnow.learn.encoders.encoder import FrozenEncoder, Samples, extra_needed
from winnow.learn.encoders.settings import EncodeSettings, build_encoder, build_text_encoder

__all__ = ["EncodeSettings", "FrozenEncoder", "Samples", "build_encoder", "build_text_encoder", "extra_needed"]
