"""Figure 8: what a participant sends, and how long it computes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from time import process_time

from winnow.analytics.truth.truth_simulation import simulate_participants
from winnow.analytics.truth.truth_terms import HEADER_BYTES, TruthTerms, agree_on_terms
from winnow.analytics.truth.truth_workflow import TruthDiscovery
from winnow.core import RoundFinished
from winnow.papers.paper import ReproductionOptions
from winnow.papers.truth.curve_item import CurveItem
from winnow.papers.truth.simulated_run import EVENTS, traffic_lights

POPULATIONS = (20.0, 40.0, 60.0, 80.0, 100.0)
ITERATIONS = 10
HOLDERS = {"everybody holds shares": None, "15 holders": 15}
RANKING = "ranking, once"


def _terms(participants: int, holders: int | None) -> TruthTerms:
    return agree_on_terms(method="logistic", items=EVENTS, classes=2, participants=participants, holders=holders)


@dataclass(frozen=True, kw_only=True)
class BytesFigure(CurveItem):
    """Kilobytes that a participant sends in ten iterations."""

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        return [(name, POPULATIONS) for name in HOLDERS]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        for x in places:
            answers, _ = traffic_lights(int(x), seed)
            terms = _terms(int(x), HOLDERS[series])
            events = TruthDiscovery(terms, ITERATIONS).run(simulate_participants(terms, answers))
            sent = sum(event.cost.sent_bytes for event in events if isinstance(event, RoundFinished))
            yield sent / x / 1000

    def expected(self, series: str, x: float) -> float | None:
        """4·k·L and a header a letter; holders send a sum besides."""
        holders = HOLDERS[series] or x
        return ITERATIONS * holders * (4 * EVENTS + HEADER_BYTES + 4 * EVENTS / x) / 1000


@dataclass(frozen=True, kw_only=True)
class TimeFigure(CurveItem):
    """Processor time of a whole simulation, the server's part included, divided by its participants."""

    def curves(self) -> list[tuple[str, tuple[float, ...]]]:
        return [(name, POPULATIONS) for name in (*HOLDERS, RANKING)]

    def measured_values(
        self, series: str, places: Sequence[float], seed: int, wanted: ReproductionOptions
    ) -> Iterable[float]:
        for x in places:
            begun = process_time()
            self._run(series, int(x), seed)
            yield (process_time() - begun) / x

    def _run(self, series: str, participants: int, seed: int) -> None:
        answers, _ = traffic_lights(participants, seed)
        if series == RANKING:
            from winnow.analytics.truth.ranking_simulation import rank_participants  # noqa: PLC0415 - the extra query

            rank_participants([(seed + 7 * place) % participants / participants for place in range(participants)])
            return
        terms = _terms(participants, HOLDERS[series])
        for _ in TruthDiscovery(terms, ITERATIONS).run(simulate_participants(terms, answers)):
            pass
