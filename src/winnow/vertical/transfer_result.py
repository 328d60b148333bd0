"""What transfer learning gives: scores by epoch, and in a simulation the model of the owner without labels."""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import RunError
from winnow.vertical.split_result import RESULTS, SplitResult, leave_modules
from winnow.vertical.transfer_plan import TransferPlan
from winnow.vertical.transfer_site import ReceivedModel


@dataclass(frozen=True, kw_only=True, eq=False)
class TransferResult(SplitResult):
    """`score` is that of the model over the columns of the owner without labels, for common rows not trained on."""

    plan: TransferPlan
    received: ReceivedModel | None = None

    @property
    def model(self) -> nn.Module:
        """Encoder and head of the owner without labels."""
        received = self._received()
        return nn.Sequential(received.encoder.module, received.head).eval()

    @property
    def modules(self) -> dict[str, nn.Module]:
        """What the owner without labels has."""
        received = self._received()
        return {self.plan.receiver: received.encoder.module, "head": received.head}

    def predict(self, rows: Any) -> NDArray[Any]:
        """Labels, or values, for rows of the owner without labels: its own columns are enough."""
        return self._received().predictions(self.outputs(rows))

    def outputs(self, rows: Any) -> Tensor:
        """The head's outputs for rows of the owner without labels."""
        received = self._received()
        assert received.rows.preprocessing is not None
        return received.outputs(torch.as_tensor(received.rows.preprocessing.transform(rows, self.plan.receiver)))

    def _received(self) -> ReceivedModel:
        if self.received is None:
            raise RunError(f"the model of a job stays with {self.plan.receiver}; predict there, or simulate")
        return self.received


def leave_received(model: ReceivedModel) -> None:
    """Write the model, and what it makes of all of the owner's rows, where a site keeps what jobs leave to it."""
    leave_modules({"encoder": model.encoder.module, "head": model.head})
    assert model.rows.x is not None
    outputs = model.outputs(model.rows.x)
    found = np.asarray(model.predictions(outputs)).reshape(len(outputs), -1)
    path = Path(RESULTS) / "predictions.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        written = csv.writer(file)
        written.writerow(["key", *(["prediction"] if found.shape[1] == 1 else map(str, range(found.shape[1])))])
        written.writerows([key, *row] for key, row in zip(model.rows.keys, found.tolist(), strict=True))
