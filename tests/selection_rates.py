"""How often clients of each condition were selected in a run."""

import numpy as np

from winnow.core import Selected
from winnow.experiment.run import Result


def selections_by_condition(result: Result) -> dict[str, float]:
    """Mean number of selections of the clients with each condition."""
    labels, of_client = result.view.conditions["labels"], np.array(result.view.conditions["of_client"])
    counts = np.zeros(len(of_client))
    for event in result.view.events():
        if isinstance(event, Selected):
            counts[event.clients] += event.counts
    return {label: float(counts[of_client == index].mean()) for index, label in enumerate(labels)}
