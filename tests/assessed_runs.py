"""Run folders with assessed clients, as a run would have written them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from winnow.core import Assessed, Evaluated, PolicyApplied, Rejected, RoundFinished, Selected
from winnow.runs import RunFolder, RunLabel

CONFIG = 'name = "hospitals"\nalgorithm = "fedavg"\nrounds = 4\n\n[quality]\nfalse_alarms = 0.1\n'


@dataclass(frozen=True, kw_only=True)
class Client:
    """What the last assessment said of a client."""

    name: str
    samples: int = 100
    score: float = 0.2
    verdict: str = "fine"
    evidence: str = ""


RANDOM = "labels: about 45 % look wrong (the model agrees with 52 %; 85 % expected)"
UNITS = "column glucose: 18 times larger than expected (mg/dL against mmol/L?)"
HOSPITALS = (
    Client(name="St Mary", samples=295, score=0.31),
    Client(name="Eastgate", samples=310, score=9.41, verdict="harmful", evidence=RANDOM),
    Client(name="Holm", samples=1250, score=0.9, verdict="different", evidence="inputs: unlike the reference's"),
    Client(name="Northside", samples=280, score=11.2, verdict="suspect", evidence=UNITS),
    Client(name="Tiny", samples=4, score=float("nan"), verdict="cannot tell", evidence="4 samples are too few"),
)


def write_assessed_run(
    folder: Path,
    clients: Sequence[Client] = HOSPITALS,
    *,
    actions: Sequence[tuple[int, str, str]] = (),
    finished: bool = True,
    config: str = CONFIG,
    assessed: bool = True,
    accuracy: float = 0.5,
) -> Path:
    """Four rounds in which client k was invited in the first 1 + k % 4. They are assessed after the second and the last
    round: first all are fine. `actions` are (client, action, reason), after the last round. The untrained model has
    this `accuracy`: runs with another one are no copies of each other.
    """
    label = RunLabel(name="hospitals", algorithm="fedavg", seed=0, metric="accuracy", clock="none")
    conditions = {
        "labels": ["as given"],
        "of_client": [0] * len(clients),
        "names": [client.name for client in clients],
        "sizes": [client.samples for client in clients],
    }
    numbers = np.arange(len(clients))
    with RunFolder.create(folder, config, conditions, label) as run:
        run.record(Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": accuracy}}))
        for number in range(1, 5):
            invited = numbers[1 + numbers % 4 >= number]
            counts = np.ones(len(invited), np.int64)
            run.record(Selected(round=number, at=0.0, version=number - 1, clients=invited, counts=counts))
            if number == 1:
                run.record(Rejected(round=1, at=0.0, client=int(invited[-1]), reason="the update is not finite"))
            metrics = {"reference": {"accuracy": accuracy + 0.1 * number}}
            run.record(RoundFinished(round=number, at=0.0, version=number, metrics=metrics, aggregated=invited))
            if assessed and number in (2, 4):
                told = clients if number == 4 else [Client(name="")] * len(clients)
                run.record(
                    Assessed(
                        round=number,
                        at=0.0,
                        version=number,
                        clients=numbers,
                        scores=np.array([client.score for client in told]),
                        verdicts=tuple(client.verdict for client in told),
                        evidence=tuple(client.evidence for client in told),
                    )
                )
        for client, action, reason in actions:
            run.record(PolicyApplied(round=4, at=0.0, client=client, action=action, reason=reason))
        if finished:
            run.finish({"schema": 2, "rounds": 4, "best": {"value": 0.9, "round": 4}})
    return folder
