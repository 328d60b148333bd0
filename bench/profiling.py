"""What a profile costs: one pass that profiles 100 clients' data, against a plain forward pass over the same data."""

import time

import numpy as np
import torch

from bench.table import Row
from winnow.learn.model_evaluator import ModelEvaluator, batch_size
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.profiled_layer import default_layer
from winnow.learn.stack import as_loss, model_state

CLIENTS, REPEAT = 100, 7
CASES = {"mlp": ((9,), 500), "lenet5": ((1, 28, 28), 60), "cnn": ((1, 8, 8), 100)}


def measure() -> list[Row]:
    torch.set_num_threads(1)
    return [row for name, (shape, rows) in CASES.items() for row in _case(name, shape, rows)]


def _case(name: str, shape: tuple[int, ...], rows: int) -> list[Row]:
    module = build_model(ModelSettings.members[name](), shape, 10, 0).eval()
    x = torch.randn(CLIENTS * rows, *shape)
    owner = torch.repeat_interleave(torch.arange(CLIENTS), rows)
    evaluator = ModelEvaluator(module, as_loss("cross-entropy"), default_layer(module, x[:1]))
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
    ]
