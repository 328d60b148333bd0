"""Whether a client's labels are wrong, and how: what the common model makes of its samples, by label.

The reference says how often the model predicts which class for samples of a class. A client whose labels are right
finds the same for each of its labels, however many samples of it there are; so a rare or hard class is not blamed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from winnow.core.join_names import listed
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.column_differences import FALSE_FINDINGS
from winnow.learn.client_quality.findings import Finding, finding_strength, percent_text
from winnow.learn.client_quality.label_free_expected_moments import Reals, nearest_mixture

NEEDED_RANDOM = 0.2
"""The share of labels that must look random: honest clients with harder samples look so in part."""
NEEDED_TAKEN = 0.3
"""The share of a label's samples that must look like one other class."""
MIN_CONTRAST = 0.15
"""A model that tells a class from another by less says nothing about labels."""
CONTRARY = 0.7
"""A model that agrees with less than this share of what it would with random labels sees exchanged ones."""
NEEDED_ERROR_RATIO = float(np.log(1.5))
"""Of the root mean square error of a regression."""


@dataclass(frozen=True, kw_only=True)
class _Confusion:
    """For the C' labels that both have: how often the model predicts each of C classes for it."""

    labels: NDArray[np.int64]
    counts: Reals
    reference_counts: Reals
    predicted: Reals
    expected: Reals

    @property
    def share(self) -> Reals:
        share: Reals = self.counts / self.counts.sum()
        return share

    @property
    def own(self) -> Reals:
        """How often the model agrees with each label."""
        return self.predicted[np.arange(len(self.labels)), self.labels]

    @property
    def expected_own(self) -> Reals:
        return self.expected[np.arange(len(self.labels)), self.labels]

    def error(self, expected: Reals) -> Reals:
        """The standard error of a share, where this one is expected, which is not taken for 0 or 1."""
        total = self.reference_counts
        smooth = (expected * total + 0.5) / (total + 1)
        error: Reals = np.sqrt(smooth * (1 - smooth) * (1 / self.counts + 1 / total))
        return error

    @property
    def agreement_error(self) -> float:
        """The standard error of how often the model agrees with all labels."""
        return float(np.sqrt((self.share**2) @ self.error(self.expected_own) ** 2))

    def without(self, labels: set[int]) -> "_Confusion":
        keep = np.array([int(label) not in labels for label in self.labels], bool)
        return _Confusion(
            labels=self.labels[keep],
            counts=self.counts[keep],
            reference_counts=self.reference_counts[keep],
            predicted=self.predicted[keep],
            expected=self.expected[keep],
        )


def label_findings(
    client: ClassMoments, reference: ClassMoments, class_names: Sequence[str], *, independent: float = 1.0
) -> list[Finding]:
    """By the outcomes of a classification (one-hot predictions, then the loss): exchanged classes, random labels."""
    classes = len(client.counts)
    both = np.flatnonzero((client.counts > 0) & (reference.counts > 0))
    if not len(both) or client.mean.shape[1] != classes + 1 or classes < 2:
        return []
    seen = _Confusion(
        labels=both,
        counts=np.maximum(client.counts[both] * independent, 1.0),
        reference_counts=reference.counts[both].astype(np.float64),
        predicted=client.mean[both, :classes].astype(np.float64),
        expected=reference.mean[both, :classes].astype(np.float64),
    )
    taken = _taken_for(seen, reference)
    found = _exchange_findings(taken, class_names)
    rest = seen.without({*taken})
    return found + (_random_findings(rest) if len(rest.labels) else [])


def regression_findings(
    client: ClassMoments, reference: ClassMoments, width: float = 1.0, *, independent: float = 1.0
) -> list[Finding]:
    """By the outcomes block of a regression (prediction − target, then the loss), for its first target.

    Errors are compared by class (the bins of the target); `width` turns them into the target's own units.
    """
    both = np.flatnonzero((client.counts > 0) & (reference.counts > 0))
    if not len(both):
        return []
    n, known = np.maximum(client.counts[both] * independent, 1.0), reference.counts[both].astype(np.float64)
    share = n / n.sum()
    bias, expected_bias = client.mean[both, 0].astype(np.float64), reference.mean[both, 0].astype(np.float64)
    square, expected_square = (
        float((share * (part.variance[both, 0].astype(np.float64) + mean**2)).sum())
        for part, mean in ((client, bias), (reference, expected_bias))
    )
    ratio = 0.5 * np.log(max(square, 1e-30) / max(expected_square, 1e-30))
    error = np.sqrt(1 / n.sum() + 1 / known.sum())  # of the logarithm of a root mean square, with a kurtosis of 5
    strength = finding_strength(ratio / error, _needed_z(1), ratio, NEEDED_ERROR_RATIO) if ratio > 0 else 0.0
    if strength < 1:
        return []
    found, wanted = (np.sqrt(each) * width for each in (square, expected_square))
    text = f"labels: the model is off by {found:.3g} (root mean square); {wanted:.3g} expected"
    return [Finding(kind="labels", strength=strength, text=text)]


def _needed_z(tests: int) -> float:
    return -NormalDist().inv_cdf(FALSE_FINDINGS / 2 / tests)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """Samples of a label look like one other class."""

    other: int
    share: float
    strength: float
    certain: bool
    """Random labels would not look so."""


def _taken_for(seen: _Confusion, reference: ClassMoments) -> dict[int, _Taken]:
    """Labels whose samples look like one other class. Random labels look like the client's most frequent classes, so
    that is not enough: a label's samples must look like one class more often, or like their own more rarely, than that,
    or the model must agree with labels less often than with random ones.
    """
    known = np.flatnonzero(reference.counts)
    rows = reference.mean[known][:, : len(reference.counts)].astype(np.float64)
    looks_like = np.zeros((len(seen.labels), len(reference.counts)))
    looks_like[:, known] = [nearest_mixture(predicted, rows, firm=1e3) for predicted in seen.predicted]
    frequent = seen.share @ looks_like
    sure_agreement = float(seen.share @ seen.own) + 2 * seen.agreement_error
    contrary = sure_agreement < CONTRARY / len(reference.counts)
    taken = {}
    for place, label in enumerate(seen.labels.tolist()):
        kept, others = float(looks_like[place, label]), np.delete(looks_like[place], label)
        other = int(others.argmax()) + int(others.argmax() >= label)
        share, expected = float(looks_like[place, other]), seen.expected[place, other]
        contrast, error = float(reference.mean[other, other] - expected), seen.error(seen.expected[:, other])[place]
        z = (seen.predicted[place, other] - expected) / error
        if z <= 0 or contrast < MIN_CONTRAST:
            continue
        if_random = (1 - kept) * frequent[other] / max(1 - frequent[label], 1e-9)
        margin = NEEDED_TAKEN + 2 * error / contrast
        taken[label] = _Taken(
            other=other,
            share=share,
            strength=finding_strength(z, _needed_z(len(known) * len(seen.labels)), share, NEEDED_TAKEN),
            certain=contrary or len(seen.labels) == 1 or share > if_random + margin or kept < frequent[label] - margin,
        )
    return {label: each for label, each in taken.items() if each.strength >= 1 and _holds(label, taken)}


def _holds(label: int, taken: dict[int, _Taken]) -> bool:
    """An exchange of two classes holds for both if it is certain for one."""
    mine = taken[label]
    back = taken.get(mine.other)
    mutual = back is not None and back.other == label and back.strength >= 1 and min(mine.share, back.share) > 0.5
    return mine.certain or (mutual and back is not None and back.certain)


def _exchange_findings(taken: dict[int, _Taken], names: Sequence[str]) -> list[Finding]:
    pairs = [(a, each.other) for a, each in taken.items() if a < each.other and _points_to(taken, each.other, a)]
    single = [label for label in taken if label not in {each for pair in pairs for each in pair}]
    found = [
        Finding(
            kind="labels",
            strength=max(taken[a].strength, taken[b].strength),
            text=f"labels: '{names[a]}' and '{names[b]}' look exchanged",
        )
        for a, b in pairs
    ]
    if len(single) > 2:
        moves = listed([f"'{names[label]}' is '{names[taken[label].other]}'" for label in single], at_most=3)
        strength = max(taken[label].strength for label in single)
        return [*found, Finding(kind="labels", strength=strength, text=f"labels: classes look permuted ({moves})")]
    for label in single:
        each = taken[label]
        text = f"labels: about {percent_text(each.share)} of '{names[label]}' look like '{names[each.other]}'"
        found.append(Finding(kind="labels", strength=each.strength, text=text))
    return found


def _points_to(taken: dict[int, _Taken], label: int, other: int) -> bool:
    return label in taken and taken[label].other == other


def _random_findings(seen: _Confusion) -> list[Finding]:
    """Labels of which a share looks drawn from all C classes alike: agreement = (1 − share) · expected + share / C.

    Of these, 1 / C are right by chance. Where the model agrees less than by chance, more than all would have to be
    random, and the share that is wrong is right nevertheless.
    """
    agrees, expected = float(seen.share @ seen.own), float(seen.share @ seen.expected_own)
    at_random = 1 / seen.predicted.shape[1]
    if expected - at_random < MIN_CONTRAST:
        return []
    random = (expected - agrees) / (expected - at_random)
    strength = finding_strength((expected - agrees) / seen.agreement_error, _needed_z(1), random, NEEDED_RANDOM)
    if random <= 0 or strength < 1:
        return []
    wrong = random * (1 - at_random)
    share = "almost all" if wrong > 0.95 else f"about {percent_text(round(20 * wrong) / 20)}"
    drawn = ", as if drawn at random" if abs(random - 1) < 0.1 else ""
    agreement = f"the model agrees with {percent_text(agrees)}; {percent_text(expected)} expected"
    return [Finding(kind="labels", strength=strength, text=f"labels: {share} look wrong{drawn} ({agreement})")]
