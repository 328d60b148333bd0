"""What a profile costs: one pass that profiles 100 clients' data, against a plain forward pass over the same data; and
profiles by class, against marginal ones.
"""

import time

import numpy as np
import torch
from torch import Tensor

from bench.table import Row
from winnow.learn.model_evaluator import ModelEvaluator, batch_size
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.profiled_layer import default_layer
from winnow.learn.stack import ModelState, as_loss, choose_execution, model_state

CLIENTS, CLASSES, REPEAT = 100, 10, 7
CASES = {"mlp": ((9,), 500), "lenet5": ((1, 28, 28), 60), "cnn": ((1, 8, 8), 100)}


def measure() -> list[Row]:
    torch.set_num_threads(1)
    return [row for name, (shape, rows) in CASES.items() for row in _case(name, shape, rows)]


def _case(name: str, shape: tuple[int, ...], rows: int) -> list[Row]:
    module = build_model(ModelSettings.members[name](), shape, 10, 0).eval()
    x = torch.randn(CLIENTS * rows, *shape)
    owner = torch.repeat_interleave(torch.arange(CLIENTS), rows)
    y = torch.randint(0, CLASSES, (len(x),))
    loss, layer = as_loss("cross-entropy"), default_layer(module, x[:1])
    evaluator = ModelEvaluator(module, loss, layer)
    native = ModelEvaluator(module, loss, layer, choose_execution(module, x[:4], y[:4], loss, "native", 1))
    state, order = model_state(module), torch.arange(len(x))
    plain, profiled = [], []
    for _ in range(REPEAT):
        start = time.perf_counter()
        with torch.no_grad():
            for batch in torch.split(order, batch_size(x)):
                module(x[batch])
        middle = time.perf_counter()
        evaluator.profiles(state, x, order, owner, CLIENTS)
        plain.append(1e3 * (middle - start))
        profiled.append(1e3 * (time.perf_counter() - middle))
    base = float(np.median(plain))
    return [
        Row(name=f"{name}: plain forward pass", value=base, unit="ms", baseline=base),
        Row(
            name=f"{name}: profiles of {CLIENTS} clients",
            value=float(np.median(profiled)),
            unit="ms",
            baseline=base,
            goal="≤ 1.2 ×",
        ),
        *_by_class(f"{name}, torch", state, evaluator, x, owner, y),
        *_by_class(f"{name}, native", state, native, x, owner, y),
    ]


def _by_class(
    name: str, state: ModelState, evaluator: ModelEvaluator, x: Tensor, owner: Tensor, y: Tensor
) -> list[Row]:
    """Marginal profiles and profiles by class, in turn."""
    classes = ProfileClasses(labels=tuple(range(CLASSES)), min_rows=5, count_step=1)
    order, marginal, apart = torch.arange(len(x)), list[float](), list[float]()
    for _ in range(REPEAT):
        start = time.process_time()
        evaluator.profiles(state, x, order, owner, CLIENTS)
        middle = time.process_time()
        group = owner * classes.count + classes.of(y[order])
        classes.told(evaluator.moments(state, x, order, group, CLIENTS * classes.count))
        marginal.append(1e3 * (middle - start))
        apart.append(1e3 * (time.process_time() - middle))
    base = float(np.median(marginal))
    return [
        Row(name=f"{name}: marginal profiles", value=base, unit="ms", baseline=base),
        Row(name=f"{name}: by class", value=float(np.median(apart)), unit="ms", baseline=base, goal="≤ 1.2 ×"),
    ]
