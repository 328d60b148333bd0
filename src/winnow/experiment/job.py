"""The [job] section of a configuration: what a deployed job asks of its federation. A simulation does without it."""

from pydantic import Field

from winnow.core import Settings


class JobSettings(Settings):
    """Which sites, how many at least, how urgent, and what of each."""

    sites: tuple[str, ...] = ()
    min_sites: int | None = Field(default=None, ge=1)
    priority: int = Field(default=0, ge=-1000, le=1000)
    cpus: float = Field(default=1.0, ge=0)
    memory_mb: int = Field(default=1024, ge=0)
    gpus: int = Field(default=0, ge=0)
    deadline: float | None = Field(default=None, gt=0)

    @property
    def needed(self) -> int:
        """Without so many sites the job waits."""
        return self.min_sites or len(self.sites) or 1
