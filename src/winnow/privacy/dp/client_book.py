"""One privacy book a client, over several trainings: what each client has released in all of them is composed.

It contains the cases of federated ensembles (Hejazinia et al., section 3.2). Clients of different leaves never share a
page, so the worst of them counts (theorem 2); who trains a leaf and an over-arch has both on its pages, which add up
(theorem 1, by privacy loss distributions rather than by sums); mean, median, maximum and training on samples of users
who opted in add no page.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError
from winnow.learn.accountant_interface import AccountantFactory
from winnow.learn.algorithm import Algorithm
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.dp.privacy_loss import AnyRelease, epsilon
from winnow.privacy.dp.run_accounting import Guarantee, guarantees_of_client, promises_privacy

Counts = NDArray[np.int64]
ABSENT = -1


class ClientBook:
    """What every client has released, a page for each training."""

    def __init__(self, sizes: Counts, *, selection_is_public: bool) -> None:
        self._sizes, self.selection_is_public = sizes, selection_is_public
        self._pages: list[BookPage] = []
        self._memo: tuple[bytes, Mapping[str, float]] = (b"", {})

    def page(self, whole: Algorithm, filters: Sequence[TwoSidedFilter], members: Counts) -> AccountantFactory:
        """Opens the page of a training of these clients."""
        page = BookPage(self, whole, filters, members)
        self._pages.append(page)
        return lambda population: page if page.promises else None

    def still_page(self) -> AccountantFactory:
        """For a training on nobody's data: it tells what was spent, and adds nothing."""
        page = BookPage(self, None, (), np.zeros(0, np.int64))
        return lambda population: page if any(each.promises for each in self._pages) else None

    def spent(self) -> Mapping[str, float]:
        """Of the client that is worst off, by the guarantee's name."""
        key = b"".join(page.state()["times"].tobytes() + bytes(str(page.rounds), "ascii") for page in self._pages)
        if key != self._memo[0]:
            everybody = np.arange(len(self._sizes))
            self._memo = key, {each.name: self.worst(each.name, each.delta, everybody) for each in self.guarantees()}
        return self._memo[1]

    def guarantees(self) -> list[Guarantee]:
        """Each guarantee once."""
        size = int(self._sizes.max(initial=1))
        return list({each.name: each for page in self._pages for each in page.guarantees(size)}.values())

    def worst(self, name: str, delta: float, clients: Counts, more: "BookPage | None" = None) -> float:
        """The largest ε among these clients; with one round more on a page, in which all of them take part."""
        return max((epsilon(kind, delta) for kind in self._kinds(name, clients, more)), default=0.0)

    def _kinds(self, name: str, clients: Counts, more: "BookPage | None") -> Iterator[list[AnyRelease]]:
        """What clients of each kind have released; kinds that another one exceeds everywhere are left out."""
        times = np.stack([page.times_of(clients, one_more=page is more) for page in self._pages])
        for column, size in _worst_columns(times, self._sizes[clients], name):
            yield [
                release
                for page, often in zip(self._pages, column, strict=True)
                if often != ABSENT
                for release in page.released(name, size, often, one_more=page is more)
            ]


class BookPage:
    """A training's page: in which of its rounds each of its clients took part."""

    def __init__(
        self, book: ClientBook, whole: Algorithm | None, filters: Sequence[TwoSidedFilter], members: Counts
    ) -> None:
        self._book, self._whole, self._filters, self._members = book, whole, filters, members
        self.rounds, self._times = 0, np.zeros(len(members), np.int64)
        self.promises = whole is not None and promises_privacy(whole, filters)

    def guarantees(self, size: int) -> list[Guarantee]:
        if self._whole is None:
            return []
        public = self._book.selection_is_public
        return guarantees_of_client(self._whole, self._filters, len(self._members), size, selection_is_public=public)

    def times_of(self, clients: Counts, *, one_more: bool) -> Counts:
        """How often each of these clients took part; −1 for those who are on other pages."""
        everywhere = np.full(int(max(clients.max(initial=0), self._members.max(initial=0))) + 1, ABSENT, np.int64)
        everywhere[self._members] = self._times + one_more
        found: Counts = everywhere[clients]
        return found

    def released(self, name: str, size: int, often: int, *, one_more: bool) -> list[AnyRelease]:
        named = (each for each in self.guarantees(size) if each.name == name)
        told = [each.released(self.rounds + one_more, np.array([often])) for each in named]
        return [release for kinds in told for release in kinds[0]]

    # What a training asks of its accountant ---------------------------------------------------------------------------

    def record_round(self, clients: Counts) -> None:
        self.rounds += 1
        self._times[clients] += 1

    def spent(self) -> Mapping[str, float]:
        return self._book.spent()

    def exhausted_reason(self) -> str | None:
        """Nobody knows yet who will be drawn, so the next round counts for everybody on this page."""
        for each in self.guarantees(1):
            after = 0.0 if each.budget is None else self._book.worst(each.name, each.delta, self._members, more=self)
            if each.budget is not None and after > each.budget:
                return (
                    f"{each.setting}.epsilon = {each.budget:g} does not last for another round: with all that these "
                    f"clients have released, ε would be {after:.4g} at δ = {each.delta:g}"
                )
        return None

    def state(self) -> Mapping[str, Any]:
        return {"rounds": np.array([self.rounds]), "times": self._times.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.rounds = int(np.asarray(state["rounds"])[0])
        self._times = np.array(state["times"], np.int64)


def refuse_label_clusters(whole: Algorithm, filters: Sequence[TwoSidedFilter], rule: str) -> None:
    """Clusters that clients join by their labels tell of them, and no noise covers that."""
    if promises_privacy(whole, filters):
        raise ConfigError(
            f'ensemble.clusters = "{rule}" is made from labels, which differential privacy is to hide and no noise '
            "covers; cluster by public columns, or by chance"
        )


def _worst_columns(times: Counts, sizes: Counts, name: str) -> Iterator[tuple[list[int], int]]:
    """By page how often, and the size, of the kinds of clients that no other kind of the same pages exceeds."""
    counted = sizes if name == "record_epsilon" else np.ones_like(sizes)
    kinds = np.unique(np.concatenate([times, counted[None]]), axis=1).T
    for kind in kinds:
        alike = ((kinds[:, :-1] == ABSENT) == (kind[:-1] == ABSENT)).all(1) & (kinds[:, -1] == kind[-1])
        above = alike & (kinds >= kind).all(1) & (kinds > kind).any(1)
        if not above.any():
            yield kind[:-1].tolist(), int(kind[-1])
