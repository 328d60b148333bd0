"""Many clients' models, each looked at through its client's own samples."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Payload
from winnow.data.preprocessing import IGNORED
from winnow.learn.client_round_method import ClientUpdate
from winnow.learn.metrics import Metric, by_position, over_all, per_sample
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import Execution, Loss, ModelState, TensorData
from winnow.learn.stack.local_training_start import expand_to_clients
from winnow.learn.stack.trainable_state import take_clients

MODEL_BLOCK_BYTES = 1 << 26
"""So much of models, and of samples, goes through a stacked pass at a time."""
SAMPLE_BLOCK_BYTES = 1 << 24


def personal_models(client: ClientUpdate, common: ModelState, kept: Sequence[Payload]) -> ModelState:
    """The models that K clients use themselves: [K, ...] what is a client's own, [1, ...] what all share."""
    models = [client.personal_model(common, each) for each in kept]
    return {
        name: tensor.unsqueeze(0)
        if all(model[name] is tensor for model in models)
        else torch.stack([model[name] for model in models])
        for name, tensor in common.items()
    }


@torch.no_grad()
def personal_outputs(
    execution: Execution,
    evaluator: ModelEvaluator,
    states: ModelState,
    data: TensorData,
    clients: NDArray[np.int64],
) -> tuple[Tensor, Tensor]:
    """The outputs of each client's model, stacked [K, ...] or [1, ...] where shared, for its rows; and their targets.

    One model for all takes one pass over all rows. Models that differ are looked at together, in blocks, if the
    execution can, and otherwise one after another.
    """
    sizes = data.sizes(clients)
    rows = torch.as_tensor(np.concatenate([data.rows_of(k) for k in clients.tolist()])).to(data.device)
    if all(len(tensor) == 1 for tensor in states.values()):
        outputs = evaluator.outputs({name: tensor[0] for name, tensor in states.items()}, data.x, rows)
    else:
        outputs = _outputs(execution, evaluator, states, data.x, torch.split(rows, sizes.tolist()))
    return outputs, data.y[rows]


def _outputs(
    execution: Execution, evaluator: ModelEvaluator, states: ModelState, x: Tensor, rows: Sequence[Tensor]
) -> Tensor:
    """The outputs of each client's model for its rows, client after client."""
    found: dict[int, Tensor] = {}
    full = {name: expand_to_clients(tensor, len(rows)) for name, tensor in states.items()}
    for block in _blocks([len(own) for own in rows], full, x):
        if len(block) == 1:
            (k,) = block
            found[k] = evaluator.outputs({name: tensor[k] for name, tensor in full.items()}, x, rows[k])
            continue
        padded = torch.nn.utils.rnn.pad_sequence([rows[k] for k in block], batch_first=True)
        lengths = torch.tensor([len(rows[k]) for k in block], device=x.device)
        mask = torch.arange(padded.shape[1], device=x.device) < lengths[:, None]
        outputs = execution.outputs(_some(states, block), x[padded], mask)
        found |= {k: own[: len(rows[k])] for k, own in zip(block, outputs, strict=True)}
    return torch.cat([found[k] for k in range(len(rows))])


def _some(states: ModelState, places: list[int]) -> ModelState:
    """A row for each of these clients; what all share is seen by all and not copied."""
    shared = {name: expand_to_clients(tensor, len(places)) for name, tensor in states.items() if len(tensor) == 1}
    own = {name: tensor for name, tensor in states.items() if len(tensor) != 1}
    return shared | take_clients(own, torch.tensor(places, device=next(iter(own.values())).device))


def _blocks(sizes: Sequence[int], full: ModelState, x: Tensor) -> Iterator[list[int]]:
    """Places of clients that go together: alike in size, so that little is padded, and no more than memory likes."""
    model = max(1, sum(tensor[0].nbytes for tensor in full.values()))
    most, sample = max(1, MODEL_BLOCK_BYTES // model), max(1, x[:1].nbytes)
    block: list[int] = []
    for k in np.argsort(-np.asarray(sizes), kind="stable").tolist():
        widest = sizes[block[0]] if block else 0
        if block and (len(block) == most or (len(block) + 1) * widest * sample > SAMPLE_BLOCK_BYTES):
            yield block
            block = []
        block.append(k)
    yield block


def scores_by_client(
    outputs: Tensor, targets: Tensor, sizes: list[int], metrics: Sequence[Metric], loss: Loss
) -> dict[str, list[float]]:
    """Each client's scores and its mean loss, as columns; of outputs that stand client after client.

    A score such as R² is relative to the client's own targets; it is NaN where the client's samples do not define it.
    """
    columns = {metric.name: _column(outputs, targets, sizes, metric) for metric in metrics}
    return {**columns, "loss": _means(loss(outputs, targets), sizes).tolist()}


def _column(outputs: Tensor, targets: Tensor, sizes: list[int], metric: Metric) -> list[float]:
    if not metric.per_sample:
        apart = zip(torch.split(outputs.cpu(), sizes), torch.split(targets.cpu(), sizes), strict=True)
        return [over_all(metric, *by_position(*own)) for own in apart]
    if targets.dim() > 1 and not targets.is_floating_point():
        sizes = [int((own != IGNORED).sum()) for own in torch.split(targets, sizes)]
    means = _means(per_sample(metric, *by_position(outputs, targets)), sizes)
    return [metric.root(mean) for mean in means.tolist()]


def _means(values: Tensor, sizes: Sequence[int]) -> Tensor:
    lengths = torch.as_tensor(sizes).to(values.device)
    return torch.segment_reduce(values.double(), "mean", lengths=lengths)
