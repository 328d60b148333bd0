"""Local training in compiled code, for models that are a line of common layers.

A client's whole round runs without Python, clients side by side on all cores. The kernels (`source/`) are compiled once
for the machine they run on (`build.py`); where that cannot be done, everything goes on without them.
"""

from winnow.learn.stack.native.build import switched_off
from winnow.learn.stack.native.execution import NativeExecution
from winnow.learn.stack.native.layers import find_native

__all__ = ["NativeExecution", "find_native", "switched_off"]
