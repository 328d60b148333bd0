"""What a client tells of its data is checked before anybody works with it: it may be anything."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays, Reply
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.core.untrusted_text import one_line
from winnow.learn.client_quality.assess_handler import DISTINCT, ROWS, AssessmentSettings
from winnow.learn.client_quality.class_moments import TOO_FEW_TOLD, ClassMoments, could_be_told
from winnow.learn.client_quality.evidence import OUTCOMES, ClientEvidence
from winnow.learn.representation_profile import OUTPUT_LIMIT


class EvidenceCheck:
    """What a sound reply to these settings looks like, where each block has so many features."""

    def __init__(
        self, settings: AssessmentSettings, widths: Mapping[str, int], sizes: NDArray[np.int64], *, one_hot: bool
    ) -> None:
        self._settings, self._widths, self._sizes = settings, widths, sizes
        self._one_hot = one_hot
        """Whether outcomes, but for the loss, are shares."""

    def fault(self, reply: Reply) -> str | None:
        """What is wrong with a client's evidence; None if it can be worked with. A site's policy may leave out blocks,
        and how many rows differ, but not all of it.
        """
        samples, payload = int(self._sizes[reply.task.client]), reply.payload
        allowed = {*self._settings.blocks, *([ROWS] if self._settings.distinct_rows else [])}
        for part in payload:
            if part not in allowed:
                return one_line(f"the reply has an unexpected part {str(part)[:80]!r}")
        blocks = [block for block in self._settings.blocks if block in payload]
        if not blocks:
            return "the reply carries no evidence"
        for block in blocks:
            if (fault := self._block_fault(block, payload[block], samples)) is not None:
                return fault
        counts = [np.asarray(payload[block]["counts"]) for block in blocks]
        if any((other != counts[0]).any() for other in counts[1:]):
            return "the evidence counts its samples in different ways"
        return self._rows_fault(payload[ROWS], samples) if ROWS in payload else None

    def _block_fault(self, block: str, part: Arrays, samples: int) -> str | None:
        classes, width = self._settings.classes, self._widths[block]
        wanted = {
            "counts": ArraySpec("int64", (classes,)),
            "mean": ArraySpec("float32", (classes, width)),
            "variance": ArraySpec("float32", (classes, width)),
        }
        if part.keys() != wanted.keys() or any(spec_of(part, name) != spec for name, spec in wanted.items()):
            return f"the evidence on {block} has the wrong shape or type"
        moments = ClassMoments.of(part)
        if (moments.counts < 0).any() or (moments.counts > samples).any() or int(moments.counts.sum()) > samples:
            return f"the evidence on {block} does not count the client's {samples} samples"
        if not could_be_told(moments.counts, self._settings.min_rows, self._settings.count_step):
            return f"the evidence on {block} {TOO_FEW_TOLD}"
        if not (
            (np.abs(moments.mean) <= 2 * OUTPUT_LIMIT).all()
            and (moments.variance >= 0).all()
            and (moments.variance <= 2 * OUTPUT_LIMIT**2).all()
        ):
            return f"the evidence on {block} is not finite or has negative variances"
        shares = moments.mean[:, :-1] if block == OUTCOMES and self._one_hot else np.zeros(1)
        if (shares < 0).any() or (shares > 1).any():
            return f"the evidence on {block} has shares that are not between 0 and 1"
        return None

    def _rows_fault(self, part: Arrays, samples: int) -> str | None:
        if part.keys() != {DISTINCT} or spec_of(part, DISTINCT) != ArraySpec("int64", (1,)):
            return "the number of different rows has the wrong shape or type"
        distinct = int(np.asarray(part[DISTINCT])[0])
        return None if 1 <= distinct <= samples else f"{distinct} of the client's {samples} rows cannot differ"

    def evidence_of(self, reply: Reply) -> ClientEvidence:
        """What a sound reply tells."""
        blocks = {block: ClassMoments.of(reply.payload[block]) for block in reply.payload if block != ROWS}
        rows = reply.payload.get(ROWS)
        return ClientEvidence(
            rows=int(self._sizes[reply.task.client]),
            distinct_rows=None if rows is None else int(np.asarray(rows[DISTINCT])[0]),
            blocks=blocks,
        )
