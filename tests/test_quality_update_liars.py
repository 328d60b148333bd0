"""One liar among the updates of a round: nobody else is to look bad for it."""

import numpy as np
import pytest
import torch

from winnow.core import Reply, Task
from winnow.learn.client_quality.assessment import UNLIKE_UPDATES
from winnow.learn.client_quality.update_evidence import UpdateEvidence

CLIENTS, WIDTH = 10, 200


def honest_updates(rng: np.random.Generator) -> np.ndarray:
    """One direction for all, and one of its own for each; the last client has the least of the common one."""
    common = rng.normal(size=WIDTH)
    return np.stack([(0.6 if k == CLIENTS - 1 else 1.0) * common + rng.normal(size=WIDTH) for k in range(CLIENTS)])


def scores(updates: np.ndarray) -> dict[int, float]:
    start = {"w": torch.zeros(WIDTH)}
    seen = UpdateEvidence(["w"])
    replies = [
        Reply(
            task=Task(name="train", client=k, round=1, version=0, payload={"model": start}),
            payload={"model": {"w": torch.tensor(each, dtype=torch.float32)}},
        )
        for k, each in enumerate(updates)
    ]
    seen.observe(replies, dict.fromkeys(range(len(updates)), 1.0))
    return {client: score.z for client, score in seen.scores().items()}


@pytest.mark.parametrize("size", [3.0, 1e3, 1e12])
@pytest.mark.parametrize("against", [False, True])
def test_one_liar_makes_no_other_client_stand_out(size: float, against: bool) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        updates = honest_updates(rng)
        assert max(scores(updates).values()) < UNLIKE_UPDATES
        victim = updates[-1] - updates[:-1].mean(0)  # what is the victim's own
        lie = -size * (updates[-1] if against else victim)
        found = scores(np.concatenate([updates, [lie]]))
        assert found.pop(CLIENTS) > UNLIKE_UPDATES or size < 10
        assert max(found.values()) < UNLIKE_UPDATES
