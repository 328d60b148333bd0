"""What the model gains by each client: Shapley values and leave-one-out, from the updates at hand.

The server has every update of a round, so it can tell what any coalition of the round's clients would have come to
without training again (`CoalitionGame`). Small cohorts get exact Shapley values. Others are sampled as in GTG-Shapley
(Liu et al., 2022): permutations take turns in whom they put first, a permutation ends once nothing is left to gain
(truncation within the round), a round that changes nothing is passed over (truncation between rounds), and sampling
ends when the estimates stand. Here a permutation is always followed by its reverse, which evens out who comes late.

An estimate is a mean over rounds with its standard error, because what a client adds differs from round to round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import Reply
from winnow.learn.client_quality.coalition_game import CoalitionGame, Utilities
from winnow.learn.reply_checks import is_bounded_update
from winnow.learn.stack import ModelState

MAX_EXACT = 6
"""Players whose 2^n coalitions are all measured; with more, sampling takes far fewer."""
WITHIN_ROUND = 0.001
"""A coalition whose utility is this close to that of all is as good as all."""
BETWEEN_ROUNDS = 0.001
"""A round that changes the utility by less tells nothing about who has changed it."""
MIN_PAIRS = 3
TOLERANCE = 0.05
"""Sampling ends when the values' standard error is, on average, so small a part of them."""
CONFIDENCE = 0.99
"""A client is harmful where its leave-one-out value is negative with this confidence (Student's t, one-sided)."""
BUDGET_ROUNDS = 5
"""All of a run's estimates together may take as long as so many rounds of training."""
TRAINING_PASSES = 2
"""Training on a row takes at least as long as so many forward passes."""
EVALUATION_ROWS = 500
"""What it takes to make a coalition's model and to call it, in rows that a small model could have seen instead."""
ROUND_ROWS = 10_000
"""What a round takes besides training, likewise."""


def evaluations_per_round(*, trained_rows: int, reference_rows: int, rounds: int) -> float:
    """How many utilities a round may measure, on average, on so many reference rows, if its clients train on
    `trained_rows` together, each counted in every epoch.
    """
    budget = BUDGET_ROUNDS * (TRAINING_PASSES * trained_rows + ROUND_ROWS)
    return budget / ((reference_rows + EVALUATION_ROWS) * max(1, rounds))


@dataclass(frozen=True, kw_only=True)
class ContributionEstimate:
    """What one client adds to the utility of the model in a round: means over rounds, with their standard errors.

    Errors come from how the rounds differ, and are infinite after one.
    """

    mean: float
    """Its Shapley value: a fair share of what all have gained together."""
    standard_error: float
    leave_one_out: float
    """U(all) − U(all others): what the model would miss, or be rid of, without this client."""
    leave_one_out_error: float
    rounds: int

    @property
    def harmful(self) -> bool:
        """Whether the model is better without this client, beyond the uncertainty.

        Leave-one-out decides, since it looks at the model as it is. A Shapley value also looks at small coalitions,
        where honest clients with few classes do harm, and bad ones do none that others had not done.
        """
        from scipy.special import stdtrit  # noqa: PLC0415 - SciPy takes long to import

        if not 0 < self.leave_one_out_error < inf:
            return False
        return self.leave_one_out / self.leave_one_out_error < -float(stdtrit(self.rounds - 1, CONFIDENCE))

    def text(self) -> str:
        """What the model gains or loses by the client, in words; a point is 1 % of the utility's range."""
        without = "worse" if self.leave_one_out > 0 else "better"
        error = f" ± {100 * self.leave_one_out_error:.2f}" if self.leave_one_out_error < inf else ""
        rounds = "one round" if self.rounds == 1 else f"{self.rounds} rounds"
        return (
            f"contribution: a round's model is {100 * abs(self.leave_one_out):.2f}{error} points {without} without it "
            f"(Shapley value {100 * self.mean:+.2f}, {rounds})"
        )


class ContributionEstimator:
    """Estimates of all clients that took part in a run so far."""

    def __init__(self) -> None:
        self._sums: dict[int, NDArray[np.float64]] = {}
        """By client: rounds, sums of [Shapley value, leave-one-out] and of their squares, how often it came first."""
        self._saved = 0.0

    def observe(
        self,
        start: ModelState,
        replies: Sequence[Reply],
        weights: Mapping[int, float],
        utilities: Utilities,
        rng: np.random.Generator,
        evaluations: float,
    ) -> None:
        """Take in the replies that a round aggregated, with their weights by client.

        The round may measure so many utilities; those that it does not need are saved for rounds to come. Where they do
        not suffice for an estimate, the round is passed over.
        """
        self._saved += evaluations
        if _min_evaluations(len(replies)) > self._saved:
            return
        sound = [reply for reply in replies if is_bounded_update(reply)]
        if not sound:
            return
        clients = [reply.task.client for reply in sound]
        game = CoalitionGame(start, sound, weights, utilities)
        if abs(game.value(game.everybody) - game.value(())) > BETWEEN_ROUNDS:
            exact = game.players <= MAX_EXACT and 2**game.players <= self._saved
            values = game.exact_shapley() if exact else self._sample(game, clients, rng)
            for client, value, left_out in zip(clients, values, game.leave_one_out(), strict=True):
                self._sums_of(client)[:5] += [1.0, value, left_out, value**2, left_out**2]
        self._saved -= game.evaluations

    def _sample(self, game: CoalitionGame, clients: list[int], rng: np.random.Generator) -> NDArray[np.float64]:
        """The mean over pairs of permutations, until it stands or no further pair can be afforded."""
        game.leave_one_out()
        pairs: list[NDArray[np.float64]] = []
        while not pairs or (not _settled(pairs) and game.evaluations + 2 * (game.players - 2) <= self._saved):
            order = self._guided_order(clients, rng)
            pairs.append(game.gains_along([order, order[::-1]], WITHIN_ROUND).mean(0))
        values: NDArray[np.float64] = np.mean(pairs, 0)
        return values

    def _guided_order(self, clients: list[int], rng: np.random.Generator) -> list[int]:
        """A random order whose ends are the two players that have come first least often: each starts one of a pair."""
        order = rng.permutation(len(clients)).tolist()
        order.sort(key=lambda k: self._sums_of(clients[k])[5])  # stable: ties stay in random order
        first, last, *between = order
        for k in (first, last):
            self._sums_of(clients[k])[5] += 1
        rng.shuffle(between)
        return [first, *between, last]

    def _sums_of(self, client: int) -> NDArray[np.float64]:
        return self._sums.setdefault(client, np.zeros(6))

    def estimates(self) -> dict[int, ContributionEstimate]:
        """By client, of those that were in a round that told something."""
        return {client: _estimate(self._sums[client]) for client in sorted(self._sums) if self._sums[client][0]}

    def state(self) -> dict[str, Any]:
        clients = sorted(self._sums)
        return {
            "clients": np.array(clients, np.int64),
            "sums": np.array([self._sums[k] for k in clients]).reshape(-1, 6),
            "saved": np.array(self._saved, np.float64),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        clients, sums = np.asarray(state["clients"]), np.asarray(state["sums"], np.float64)
        self._sums = {int(k): own.copy() for k, own in zip(clients, sums, strict=True)}
        self._saved = float(state["saved"])


def _min_evaluations(players: int) -> int:
    """All coalitions; or nobody, all, all but one, and a pair of permutations, which then end in known ones."""
    return 2**players if players <= MAX_EXACT else 2 + players + 2 * (players - 2)


def _settled(pairs: Sequence[NDArray[np.float64]]) -> bool:
    if len(pairs) < MIN_PAIRS:
        return False
    errors = np.std(pairs, 0, ddof=1) / sqrt(len(pairs))
    return float(errors.mean()) <= TOLERANCE * float(np.abs(np.mean(pairs, 0)).mean())


def _estimate(sums: NDArray[np.float64]) -> ContributionEstimate:
    rounds, means = int(sums[0]), sums[1:3] / sums[0]
    variances = (sums[3:5] / rounds - means**2).clip(min=0) / max(1, rounds - 1)
    errors = np.sqrt(variances) if rounds > 1 else np.full(2, inf)
    return ContributionEstimate(
        mean=float(means[0]),
        standard_error=float(errors[0]),
        leave_one_out=float(means[1]),
        leave_one_out_error=float(errors[1]),
        rounds=rounds,
    )
