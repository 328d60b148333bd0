"""What an algorithm costs that sets more clients to work than it waits for (CFCFM).

A run's own energy counts the replies that were waited for, as the paper's table does. This is what all the selected
would have spent by the same round, had each of them finished.
"""

from pathlib import Path

import numpy as np

from winnow.config.schema import Experiment
from winnow.core import RoundFinished, Selected, Work
from winnow.data import ClientData, DataSet, federate, load
from winnow.runs import RunView
from winnow.runs.summary import JOULES_PER_WH


def wh_of_all_selected(view: RunView, experiment: Experiment, data_directory: Path | None) -> float | None:
    """Wh up to the target; None where everyone selected was waited for, or the target was not reached."""
    last, events = view.summary().rounds_to_target, list(view.events())
    aggregated = sum(len(event.aggregated) for event in events if isinstance(event, RoundFinished))
    selected = [event for event in events if isinstance(event, Selected)]
    if last is None or sum(len(event.clients) for event in selected) <= aggregated:
        return None
    joules = _joules(experiment, _message_bytes(view), data_directory)
    return float(sum(joules[event.clients].sum() for event in selected if event.round <= last) / JOULES_PER_WH)


def _joules(
    experiment: Experiment, message_bytes: int, data_directory: Path | None
) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
    """What a round costs each client, from download to upload."""
    dataset = load(experiment.data, data_directory)
    assert isinstance(dataset, DataSet), "papers are about whole sets"
    clients = federate(dataset, experiment.data, experiment.seed).clients
    assert isinstance(clients, ClientData), "papers are about whole sets"
    fleet = experiment.fleet.draw(len(clients), experiment.seed, sample_bits=8 * clients.x[:1].nbytes)
    work = Work(
        training_passes=experiment.local.passes(int(clients.sizes.mean())),
        download_bytes=message_bytes,
        upload_bytes=message_bytes,
    )
    return fleet.costs(np.arange(len(clients)), clients.sizes, work).joules


def _message_bytes(view: RunView) -> int:
    return int((view.result or {})["message_bytes"])
