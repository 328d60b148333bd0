"""What a client would send if it had the server's own samples: codes can be chosen by it before anybody has sent."""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from torch import Tensor

from winnow.core import Payload, Reply
from winnow.learn.client_round_method import train_clients
from winnow.learn.learning_site import LearningSite
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.stack import TensorData

EmulateUpdate: TypeAlias = Callable[[Payload, int], Payload]
"""From what is sent in a round to an update."""

PROFILE = "profile"


def single_client_data(x: Tensor, y: Tensor) -> TensorData:
    """One client that holds these samples."""
    return TensorData(x=x, y=y, rows=np.arange(len(x)), offsets=np.array([0, len(x)]))


def emulate_client(plan: TrainingPlan, site: LearningSite, samples: int) -> EmulateUpdate:
    """Training like everybody's, at a site whose one client has so many samples. It keeps nothing between rounds."""

    def emulate(payload: Payload, round: int) -> Payload:
        (reply,) = train_clients(plan.tasks([0], np.array([samples]), payload=payload, round=round), site)
        assert isinstance(reply, Reply), "whose method has something to send"
        return {name: part for name, part in reply.payload.items() if name != PROFILE}

    return emulate
