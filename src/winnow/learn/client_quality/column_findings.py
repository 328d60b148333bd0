"""Which columns of a client's table are unlike the reference's, and how."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from winnow.core.join_names import listed
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.column_differences import (
    FALSE_FINDINGS,
    NEEDED_SHIFT,
    NEEDED_SPREAD,
    ColumnDifferences,
    column_differences,
)
from winnow.learn.client_quality.column_words import CONSTANT, ColumnWords
from winnow.learn.client_quality.exchanged_columns import exchanged_columns
from winnow.learn.client_quality.findings import MAX_STRENGTH, Finding, percent_text, strongest_first
from winnow.learn.client_quality.input_names import InputNames
from winnow.learn.client_quality.label_free_expected_moments import ExpectedMoments, Reals, expected_moments
from winnow.learn.client_quality.observed_values import observed_moments

NEEDED_SHARE = 0.15
"""By how much the share of rows with a category, or without a value, must differ."""
NEEDED_BLUR = 0.05
"""By how much the variance of what should be 0 or 1 must differ from p(1 − p), which it is exactly."""
MANY = 4
"""From so many columns on, and if they are more than half of all, they are one finding."""


def column_findings(
    client: ClassMoments,
    reference: ClassMoments,
    fourth: NDArray[np.float32],
    names: InputNames,
    *,
    independent: float = 1.0,
) -> list[Finding]:
    """What is wrong with which columns, strongest first. Where labels are wrong, but columns are right: nothing.

    `fourth` are the reference's fourth central moments by class; `independent` is the share of rows that are no copies.
    """
    if client.mean.shape[1] != len(names.features):
        return []
    client, observed = observed_moments(client, reference, names.features)
    scale = observed.variance.astype(np.float64) / np.maximum(reference.variance, 1e-30)
    fourth = np.where(reference.variance > 0, fourth * scale**2, fourth).astype(np.float32)
    expected = expected_moments(client, observed, fourth, one_scale=True, independent=independent)
    if expected is None:
        return []
    return strongest_first(_Columns(client, expected, column_differences(client, expected), names).findings())


class _Columns:
    def __init__(
        self, client: ClassMoments, expected: ExpectedMoments, differences: ColumnDifferences, names: InputNames
    ) -> None:
        self._client, self._expected, self._d, self._features = client, expected, differences, names.features
        self._words = ColumnWords(differences, names)
        self._numbers = np.array([each.kind == "number" for each in names.features])
        self._constant = differences.total_deviation <= CONSTANT * differences.expected_total
        alike = np.maximum(_constant_strength(differences), differences.place_strength)
        strength = np.where(self._constant, alike, differences.strength)
        self._strength = np.minimum(np.where(self._numbers, strength, self._share_strength()), MAX_STRENGTH)

    def findings(self) -> Iterator[Finding]:
        single = list(self._single())
        columns = {each.column for each in self._features}
        odd = {self._features[place].column for places, _ in single for place in places}
        if len(odd) < MANY or 2 * len(odd) <= len(columns):
            for places, text in single:
                yield Finding(kind="column", strength=float(self._strength[places].max()), text=text)
            return
        strength = float(np.median([self._strength[places].max() for places, _ in single]))
        text = f"inputs: {len(odd)} of {len(columns)} columns {self._in_common()}"
        yield Finding(kind="inputs", strength=strength, text=text)

    def _single(self) -> Iterator[tuple[list[int], str]]:
        """Features that belong together, and what is to be said of them."""
        features, explained = self._features, set[int]()
        for place, each in enumerate(features):
            if each.kind == "missing" and self._strength[place] >= 1:
                explained.add(place - 1)
                yield [place], f"column {each.column}: missing in {self._shares(place)}"
        for place in self._odd(explained):
            if self._constant[place]:
                explained.add(place)
                yield [place], f"column {features[place].column} {self._words.constant(place)}"
        for cycle in self._exchanged(self._odd(explained)):
            explained.update(cycle)
            yield cycle, f"columns {_together([features[place].column for place in cycle])} look exchanged"
        for place in self._odd(explained):
            yield [place], f"column {features[place].column}: {self._words.difference(place)}"
        yield from self._categories()

    def _odd(self, explained: set[int]) -> list[int]:
        """Columns of numbers that are not yet explained."""
        return [p for p in np.flatnonzero(self._numbers & (self._strength >= 1)).tolist() if p not in explained]

    def _exchanged(self, odd: list[int]) -> list[list[int]]:
        """Cycles with a column that is odd; others may take part that are not odd enough by themselves."""
        if not odd:
            return []
        others = np.flatnonzero(self._numbers & ~self._constant)
        candidates = others[np.argsort(-self._strength[others], kind="stable")]
        shift, width = (np.array([getattr(each, what) for each in self._features]) for what in ("shift", "width"))
        cycles = exchanged_columns(self._client, self._expected, candidates, shift, width)
        return [cycle for cycle in cycles if {*cycle} & {*odd}]

    def _share_strength(self) -> Reals:
        """Of features that are 0 or 1; values in between are as bad as can be."""
        d = self._d
        sure, large = np.abs(d.share_z) / d.needed_z, np.abs(d.mean - d.expected_mean) / NEEDED_SHARE
        between = np.abs(d.total_deviation**2 - d.mean * (1 - d.mean)) / NEEDED_BLUR
        strength: Reals = np.maximum(np.minimum(sure, large), np.where(between >= 1, between, 0))
        return strength

    def _shares(self, place: int) -> str:
        share, expected = (float(np.clip(each[place], 0, 1)) for each in (self._d.mean, self._d.expected_mean))
        return f"{percent_text(share)} of the rows; {percent_text(expected)} expected"

    def _categories(self) -> Iterator[tuple[list[int], str]]:
        """Of each column, values that nobody knows, or else the category whose share differs most."""
        kinds = [each.kind in ("category", "other") for each in self._features]
        odd = np.flatnonzero(np.array(kinds) & (self._strength >= 1)).tolist()
        # Of two categories, one has grown by what the other lost: rounded, since the last bits differ between machines.
        strength = np.round(self._strength, 6)
        by_column: dict[str, list[int]] = {}
        for place in sorted(odd, key=lambda each: (not self._is_unknown(each), -strength[each])):
            by_column.setdefault(self._features[place].column, []).append(place)
        for column, (place, *_) in by_column.items():
            if self._is_unknown(place):
                yield [place], f"column {column}: values that the model does not know in {self._shares(place)}"
            else:
                what = f"'{self._features[place].category}'" if self._features[place].category else "other values"
                yield [place], f"column {column}: {what} in {self._shares(place)}"

    def _is_unknown(self, place: int) -> bool:
        return self._features[place].kind == "other" and bool(self._d.mean[place] > self._d.expected_mean[place])

    def _in_common(self) -> str:
        d, odd = self._d, self._strength >= 1
        wider = (d.spread >= NEEDED_SPREAD) & (np.abs(d.shift) < NEEDED_SHIFT)
        if 2 * (odd & wider).sum() > odd.sum():
            return "vary more than expected, as if noise had been added"
        return "are unlike what is expected: data of another kind?"


def _constant_strength(d: ColumnDifferences) -> Reals:
    """Of n honest rows all are alike with a probability below (1 − 1 / (κ + 2))^n: a rare value is in few of them."""
    strength: Reals = d.rows * np.log1p(-1 / (d.kurtosis + 2)) / np.log(FALSE_FINDINGS / len(d.mean))
    return strength


def _together(names: list[str]) -> str:
    return " and ".join(names) if len(names) == 2 else f"{listed(names)} (among one another)"
