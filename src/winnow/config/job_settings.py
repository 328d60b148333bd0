"""The [job] section of a configuration: what a deployed job asks of its federation. A simulation does without it.

A server reads it too, and knows nothing else of experiments: nothing here may need torch.
"""

from typing import Self

from pydantic import Field, model_validator

from winnow.config.question_kinds import QuestionKind
from winnow.core import Settings

MIN_SITE_TIMEOUT = 5.0
"""Seconds. A site that is merely busy may be silent for so long."""


class JobSettings(Settings):
    """Which sites, how many at least, how urgent, and what of each."""

    kind: QuestionKind | None = None
    """The kind of question in the [question] section; None for a training, or a program's own workflow."""
    sites: tuple[str, ...] = ()
    """Those that are to take part; all that offer the data if none is named."""
    min_sites: int | None = Field(default=None, ge=1)
    """Without so many the job waits; all that are named, or one, if it is not said."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    cpus: float = Field(default=1.0, ge=0)
    memory_mb: int = Field(default=1024, ge=0)
    gpus: int = Field(default=0, ge=0)
    task_timeout: float | None = Field(default=None, gt=0)
    """Seconds that an exchange with clients may take; who has not replied by then is not waited for."""
    site_timeout: float = Field(default=60.0, ge=MIN_SITE_TIMEOUT)
    """Seconds without contact after which rounds continue without a site."""

    @model_validator(mode="after")
    def _enough_are_named(self) -> Self:
        named = len(set(self.sites))
        if named < len(self.sites):
            raise ValueError("sites contains a duplicate")
        if self.sites and self.needed > named:
            raise ValueError(
                f"min_sites = {self.needed}, but sites lists only {named}; list more sites or lower min_sites"
            )
        return self

    @property
    def needed(self) -> int:
        """Without so many sites the job waits."""
        return self.min_sites or len(self.sites) or 1
