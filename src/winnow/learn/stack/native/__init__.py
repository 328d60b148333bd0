"""Local training in compiled code, for models that are a line of common layers.

A client's whole round runs without Python, clients side by side on all cores. The kernels (`source/`) are compiled once
for the machine they run on (`build_simulation.py`); where that cannot be done, everything goes on without them.
"""

from winnow.learn.stack.native.execution import NativeExecution
from winnow.learn.stack.native.load_or_compile_kernels import native_disabled
from winnow.learn.stack.native.model_spec import native_model

__all__ = ["NativeExecution", "native_disabled", "native_model"]
