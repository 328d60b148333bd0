"""The optimisers that compiled code knows, as it is told of them."""

from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.stack.native.ctypes_structures import ACCELERATED, ADAM, GRADIENT, SGD, OptimiserSpec


def supports_optimiser(local: LocalOptimiser) -> bool:
    """Whether an optimiser is known to the compiled code."""
    return type(local) in (Sgd, Adam, AcceleratedSgd)


def optimiser_spec(local: LocalOptimiser | None, rate: float) -> OptimiserSpec:
    """Without an optimiser, the gradient takes the parameters' place."""
    if isinstance(local, Sgd):
        return OptimiserSpec(
            kind=SGD,
            rate=rate,
            momentum=local.momentum,
            nesterov=local.nesterov,
            weight_decay=local.weight_decay,
        )
    if isinstance(local, Adam):
        return OptimiserSpec(
            kind=ADAM,
            rate=rate,
            beta1=local.beta1,
            beta2=local.beta2,
            epsilon=local.epsilon,
            weight_decay=local.weight_decay,
        )
    if isinstance(local, AcceleratedSgd):
        return OptimiserSpec(
            kind=ACCELERATED,
            rate=rate,
            weight_decay=local.weight_decay,
            alpha=local.coupling.alpha,
            beta=local.coupling.beta,
            gain=local.coupling.gamma / local.learning_rate,
        )
    return OptimiserSpec(kind=GRADIENT)
