"""Personal models where they can be analysed: the linear case of SRPFL."""

from winnow.personal.linear import LinearCase, Path, Truth, descend, distance, moments, walk
from winnow.personal.speedup import SpeedUp, bound, measure, stages

__all__ = [
    "LinearCase",
    "Path",
    "SpeedUp",
    "Truth",
    "bound",
    "descend",
    "distance",
    "measure",
    "moments",
    "stages",
    "walk",
]
