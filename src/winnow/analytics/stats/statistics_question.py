"""`winnow stats`: which statistics of which columns are asked for."""

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question
from winnow.core import stream

if TYPE_CHECKING:
    import numpy as np

    from winnow.analytics.program import Program

TEST_FORMS = {
    "chi2": "chi2:a,b",
    "t": "t:number,group",
    "anova": "anova:number,group",
    "survival": "survival:time,event[,group]",
}


class StatisticsQuestion(Question):
    """Counts, means, spreads and distributions of columns; by group, and how columns relate, where asked."""

    kind: Literal["statistics"] = "statistics"
    columns: tuple[str, ...] = ()
    """All that can be counted, if none is named."""
    by: tuple[str, ...] = ()
    """Columns with listed values; everything but correlations is told by group, too."""
    histograms: int = Field(default=0, ge=0, le=1000)
    """So many bins for each column of numbers."""
    histogram_range: Literal["bounds", "quantiles"] = "bounds"
    """Bins divide the bounds evenly, or what lies between the 1 % and 99 % quantiles."""
    quantiles: tuple[Annotated[float, Field(gt=0, lt=1)], ...] = Field(default=(), max_length=100)
    correlation: bool = False
    tests: tuple[str, ...] = Field(default=(), max_length=20)
    """`TEST_FORMS`, as on the command line."""
    per_owner: bool = False

    @field_validator("tests")
    @classmethod
    def _known_tests(cls, tests: tuple[str, ...]) -> tuple[str, ...]:
        for test in tests:
            kind, _, columns = test.partition(":")
            count = len([each for each in columns.split(",") if each.strip()])
            if kind not in TEST_FORMS or count not in ((2, 3) if kind == "survival" else (2,)):
                raise ValueError(f"{test!r} is not a test; write one of {', '.join(TEST_FORMS.values())}")
        return tests

    @field_validator("columns", "by", "quantiles", "tests")
    @classmethod
    def _once(cls, entries: tuple[object, ...]) -> tuple[object, ...]:
        if repeated := [each for place, each in enumerate(entries) if each in entries[:place]]:
            raise ValueError(f"{repeated[0]!r} is named twice")
        return entries

    def needs(self) -> frozenset[Permission]:
        needed: set[Permission] = {"statistics"}
        if self.correlation:
            needed.add("correlation")
        if self.per_owner:
            needed.add("per-owner")
        return frozenset(needed)

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.stats.noiseless_program import exact_program  # noqa: PLC0415 - agents run no program
        from winnow.analytics.stats.noisy_program import noisy_program  # noqa: PLC0415
        from winnow.analytics.stats.plan import make_plan  # noqa: PLC0415

        plan = make_plan(self, terms)
        return exact_program(self, terms, plan) if self.epsilon is None else noisy_program(self, terms, plan)

    def randomness(self, names: Iterable[str]) -> "np.random.Generator":
        """Chance that everybody who has the question agrees on."""
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return stream(0, "statistics", digest, *names)
