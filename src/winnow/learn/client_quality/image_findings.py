"""What kind of images a client has that the reference has not: noisy, blurred, darker, of another kind."""

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.column_differences import NEEDED_SHIFT, ColumnDifferences, column_differences
from winnow.learn.client_quality.findings import MAX_STRENGTH, Finding
from winnow.learn.client_quality.image_statistics import (
    BRIGHTNESS,
    CENTRE,
    COLOUR,
    CONTRAST,
    EDGES,
    FLAT,
    GRAIN,
    IMAGE_STATISTICS,
    LEFT,
    TOP,
)
from winnow.learn.client_quality.label_free_expected_moments import expected_moments

MANY = 5
"""If so many statistics differ, and neither noise nor blur explains it, the images are of another kind."""


def image_findings(
    client: ClassMoments,
    reference: ClassMoments,
    fourth: NDArray[np.float32],
    *,
    independent: float = 1.0,
) -> list[Finding]:
    """One finding at most, of what differs most: the statistics of an image depend on one another."""
    expected = expected_moments(client, reference, fourth, one_scale=False, independent=independent)
    if expected is None or client.mean.shape[1] != len(IMAGE_STATISTICS):
        return []
    d = column_differences(client, expected)
    strength = np.minimum(d.strength, MAX_STRENGTH)
    if strength.max() < 1:
        return []
    return [Finding(kind="image", strength=float(strength.max()), text=f"images: {_described(d, strength)}")]


def _described(d: ColumnDifferences, strength: NDArray[np.float64]) -> str:
    by_name = dict(zip(IMAGE_STATISTICS, np.where(strength >= 1, d.shift, 0.0).tolist(), strict=True))
    odd = {name for name, size in zip(IMAGE_STATISTICS, strength, strict=True) if size >= 1}
    moved = {name: shift for name, shift in by_name.items() if abs(shift) >= NEEDED_SHIFT}
    if moved.get(GRAIN, 0) > 0 and moved.get(FLAT, 0) <= 0:
        return "noisy"
    if moved.get(GRAIN, 0) < 0 and moved.get(EDGES, 0) < 0 and BRIGHTNESS not in moved:
        return "blurred"
    if len(odd) >= MANY or (odd & {TOP, LEFT, CENTRE} and odd & {GRAIN, EDGES, FLAT}):
        return "of another kind than expected"
    if BRIGHTNESS in moved:
        return "brighter than expected" if moved[BRIGHTNESS] > 0 else "darker than expected"
    if CONTRAST in moved:
        return f"{'more' if moved[CONTRAST] > 0 else 'less'} contrast than expected"
    if COLOUR in moved:
        return f"{'more' if moved[COLOUR] > 0 else 'less'} colour than expected"
    if odd & {TOP, LEFT, CENTRE}:
        return "turned, moved or cropped"
    return "unlike what is expected"
