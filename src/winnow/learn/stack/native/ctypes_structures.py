"""What is passed to compiled code: the structures and numbers of `source/interface.h`."""

import ctypes
from collections.abc import Sequence

_Int, _Real, _Pointer = ctypes.c_int64, ctypes.c_double, ctypes.c_void_p

DENSE, CONVOLUTION, RELU, TANH, SIGMOID, MAX_POOL, MEAN_POOL, FLATTEN = range(8)
SQUARED_ERROR, CROSS_ENTROPY = range(2)
GRADIENT, SGD, ADAM, ACCELERATED = range(4)
BAD_CLASS, BAD_ROW, TOO_LARGE, NO_MEMORY = range(1, 5)


def _fields(**kinds: type) -> Sequence[tuple[str, type]]:
    return list(kinds.items())


class LayerSpec(ctypes.Structure):
    _fields_ = _fields(
        kind=_Int,
        outputs=_Int,
        rows=_Int,
        cols=_Int,
        row_stride=_Int,
        col_stride=_Int,
        row_padding=_Int,
        col_padding=_Int,
        weight=_Int,
        bias=_Int,
    )


class ModelSpec(ctypes.Structure):
    _fields_ = _fields(
        layers=ctypes.POINTER(LayerSpec),
        count=_Int,
        channels=_Int,
        rows=_Int,
        cols=_Int,
        parameters=_Int,
        loss=_Int,
    )


class OptimiserSpec(ctypes.Structure):
    _fields_ = _fields(
        kind=_Int,
        rate=_Real,
        momentum=_Real,
        nesterov=_Real,
        weight_decay=_Real,
        beta1=_Real,
        beta2=_Real,
        epsilon=_Real,
        alpha=_Real,
        beta=_Real,
        gain=_Real,
    )


class ClientRows(ctypes.Structure):
    _fields_ = _fields(values=_Pointer, step=_Int)


class RoundSpec(ctypes.Structure):
    _fields_ = _fields(
        x=_Pointer,
        y=_Pointer,
        samples=_Int,
        batches=_Pointer,
        sizes=_Pointer,
        steps=_Int,
        clients=_Int,
        width=_Int,
        threads=_Int,
        start=ClientRows,
        proximal_weight=_Real,
        anchor=ClientRows,
        gradient_offset=ClientRows,
        trainable=_Pointer,
        first_slot=ClientRows,
        second_slot=ClientRows,
        result=_Pointer,
        first_slot_result=_Pointer,
        losses=_Pointer,
    )


class ForwardSpec(ctypes.Structure):
    _fields_ = _fields(
        parameters=_Pointer,
        x=_Pointer,
        samples=_Int,
        rows=_Pointer,
        count=_Int,
        threads=_Int,
        watched_layer=_Int,
        watched_outputs=_Pointer,
        outputs=_Pointer,
    )
