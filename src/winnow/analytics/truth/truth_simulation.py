"""A private truth discovery with all participants in this process, on virtual time."""

from collections.abc import Callable

import numpy as np

from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.truth_site import TruthSite
from winnow.analytics.truth.truth_terms import TruthTerms
from winnow.analytics.truth.truth_workflow import ITERATIONS, TruthDiscovery
from winnow.core import AnyEvent, Population
from winnow.fleet import Devices
from winnow.simulate import SimulatedFederation


def simulate_participants(
    terms: TruthTerms, answers: AnswerArrays, *, dropout: float = 0.0, seed: int = 0
) -> SimulatedFederation[None]:
    """Participants who leave for good, each with probability `dropout` an iteration."""
    own = answers.of_each_worker()
    site = TruthSite(terms, dict(enumerate(own)))
    return SimulatedFederation(
        site=None,
        handlers=site.handlers(),
        population=Population(sizes=np.array([max(1, len(each.items)) for each in own], np.int64)),
        fleet=Devices(dropout=dropout).draw(len(own), seed),
    )


def discover_privately(
    terms: TruthTerms,
    answers: AnswerArrays,
    *,
    iterations: int = ITERATIONS,
    dropout: float = 0.0,
    seed: int = 0,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
) -> TruthDiscovery:
    """Run the protocol; the workflow has the estimate, and why it stopped early if it did."""
    workflow = TruthDiscovery(terms, iterations)
    for event in workflow.run(simulate_participants(terms, answers, dropout=dropout, seed=seed)):
        on_event(event)
    return workflow
