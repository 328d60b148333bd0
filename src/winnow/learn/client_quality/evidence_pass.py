"""One forward pass over samples, for what a client tells of its data: features of each, summarised by class."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from winnow.data.preprocessing import IGNORED
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.evidence import COLUMNS, MAX_COLUMNS, OUTCOMES, REPRESENTATION
from winnow.learn.client_quality.image_statistics import image_statistics
from winnow.learn.metric_functions import predicted_classes
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.representation_profile import StreamingMoments
from winnow.learn.stack import ModelState

MAX_CLASSES = 100
"""Of more classes, few clients would have enough samples of any: then one class stands for all."""
IMAGE_NDIM, TABLE_NDIM = 4, 2
BATCH_ROWS = 8192
"""So many samples are looked at together where no model has to be run."""


@dataclass(frozen=True, kw_only=True)
class SampleClasses:
    """Which class a sample belongs to: its label; in a regression, the bin of its first target; else one for all."""

    count: int
    edges: tuple[float, ...] = ()
    """Between the bins of a regression: quantiles of the reference's targets."""

    @classmethod
    def of(cls, labels: int | None, sequences: bool, edges: tuple[float, ...] = ()) -> "SampleClasses":
        """Of a classification with so many labels, or of a regression, where `labels` is None."""
        if labels is None:
            return cls(count=len(edges) + 1, edges=edges)
        return cls(count=1 if sequences or labels > MAX_CLASSES else labels)

    def classes_of(self, y: Tensor) -> Tensor:
        if y.is_floating_point():
            return torch.bucketize(y[:, 0].contiguous(), y.new_tensor(self.edges))
        return y if self.count > 1 else torch.zeros(len(y), dtype=torch.int64, device=y.device)


class EvidencePass:
    """A model with which samples are looked at; its evaluator watches the profiled layer, if there is one."""

    def __init__(self, evaluator: ModelEvaluator, outputs: int) -> None:
        self._evaluator, self._outputs = evaluator, outputs
        self.constant: dict[tuple[int, bool, bool, SampleClasses], tuple[ClassMoments | None, int | None]] = {}
        """What is known of clients whatever the model is, by whoever looks at them more than once."""

    def widths(self, state: ModelState, x: Tensor, y: Tensor, classes: SampleClasses) -> dict[str, int]:
        """How many features each block of samples like these has."""
        found = self.features(state, x[:1], y[:1], classes, (REPRESENTATION, COLUMNS, OUTCOMES))
        return {block: values.shape[1] for block, values in found.items()}

    @torch.no_grad()
    def features(
        self, state: ModelState, x: Tensor, y: Tensor, classes: SampleClasses, blocks: Sequence[str]
    ) -> dict[str, Tensor]:
        """The features of all samples, [n, f] in each of those blocks that such samples have."""
        rows = torch.arange(len(x))
        batches = [found for _, found in self._batches(state, x, y, rows, classes, blocks)]
        return {block: torch.cat([batch[block] for batch in batches]) for block in batches[0]} if batches else {}

    @torch.no_grad()
    def moments(
        self,
        state: ModelState,
        x: Tensor,
        y: Tensor,
        rows_of: Sequence[Tensor],
        classes: SampleClasses,
        blocks: Sequence[str],
    ) -> list[dict[str, ClassMoments]]:
        """For each of several clients, whose rows of x these are, the moments of its samples' features by class."""
        rows = torch.cat(list(rows_of))
        owner = torch.repeat_interleave(torch.arange(len(rows_of)), torch.tensor([len(own) for own in rows_of]))
        group = owner * classes.count + classes.classes_of(y[rows.to(y.device)]).cpu()
        summed: dict[str, StreamingMoments] = {}
        for place, found in self._batches(state, x, y, rows, classes, blocks):
            for block, values in found.items():
                summed.setdefault(block, StreamingMoments(len(rows_of) * classes.count)).add(values, group[place])
        by_block = {block: ClassMoments.by_owner(moments, classes.count) for block, moments in summed.items()}
        return [{block: clients[k] for block, clients in by_block.items()} for k in range(len(rows_of))]

    def _batches(
        self, state: ModelState, x: Tensor, y: Tensor, rows: Tensor, classes: SampleClasses, blocks: Sequence[str]
    ) -> Iterator[tuple[slice, Mapping[str, Tensor]]]:
        """For one batch of rows after another, which they are and their features."""
        to_end = OUTCOMES in blocks
        seen_layer = REPRESENTATION in blocks and self._evaluator.watches_layer
        if not to_end and not seen_layer:
            for first in range(0, len(rows) if COLUMNS in blocks else 0, BATCH_ROWS):
                place = slice(first, first + BATCH_ROWS)
                columns = _columns(x[rows[place].to(x.device)])
                yield place, {} if columns is None else {COLUMNS: columns}
            return
        for place, outputs, seen in self._evaluator.passes(state, x, rows, to_end=to_end):
            chosen = rows[place].to(x.device)
            found: dict[str, Tensor] = {}
            if seen_layer:
                found[REPRESENTATION] = functional.softsign(seen.float())  # else a few rows of a long tail decide
            if COLUMNS in blocks and (columns := _columns(x[chosen])) is not None:
                found[COLUMNS] = columns
            if to_end:
                found[OUTCOMES] = self._outcomes(outputs, y[chosen], classes)
            yield place, found

    def _outcomes(self, outputs: Tensor, y: Tensor, classes: SampleClasses) -> Tensor:
        """Which class is predicted, one-hot, or the errors of a regression, and the loss as the last column; where one
        class stands for all, the share of positions that are predicted right, and the loss.
        """
        loss = self._evaluator.loss(outputs, y).float().reshape(-1, 1)
        if y.is_floating_point():
            return torch.cat([outputs.reshape(y.shape).float() - y, loss], dim=1)
        if y.dim() > 1:
            flat = predicted_classes(outputs.reshape(-1, outputs.shape[-1])).reshape(y.shape)
            counted = y != IGNORED
            right = ((flat == y) & counted).sum(1) / counted.sum(1).clamp_min(1)
            return torch.cat([right.float().reshape(-1, 1), loss], dim=1)
        predicted = predicted_classes(outputs)
        if classes.count == 1:
            return torch.cat([(predicted == y).float().reshape(-1, 1), loss], dim=1)
        known = functional.one_hot(predicted.clamp_max(self._outputs), self._outputs + 1)[:, : self._outputs]
        return torch.cat([known.float(), loss], dim=1)


def _columns(x: Tensor) -> Tensor | None:
    """The features of a table, some statistics of an image; of anything else, nothing."""
    if x.dim() == IMAGE_NDIM:
        return image_statistics(x)
    return x[:, :MAX_COLUMNS] if x.dim() == TABLE_NDIM and x.is_floating_point() else None
