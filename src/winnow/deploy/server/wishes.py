"""What a job asks of its federation: the [job] section and a few keys of its configuration.

The server knows no more of an experiment than this; the rest is for the job's own processes, which check it.
"""

from pydantic import Field, ValidationError

from winnow.core import ConfigError, Settings
from winnow.deploy.wire.messages import Resources
from winnow.deploy.work.bundle import Bundle


class Wishes(Settings):
    """The [job] section."""

    sites: tuple[str, ...] = ()
    """Those that are to take part; all that offer the data if none is named."""
    min_sites: int | None = Field(default=None, ge=1)
    """Without so many the job waits; all that are named, or one, if it is not said."""
    priority: int = Field(default=0, ge=-1000, le=1000)
    cpus: float = Field(default=1.0, ge=0)
    memory_mb: int = Field(default=512, ge=0)
    gpus: int = Field(default=0, ge=0)
    deadline: float | None = Field(default=None, gt=0)

    @property
    def resources(self) -> Resources:
        return Resources(cpus=self.cpus, memory_mb=self.memory_mb, gpus=self.gpus)

    @property
    def needed(self) -> int:
        return self.min_sites or len(self.sites) or 1


class Order(Settings):
    """What is read of a job's configuration."""

    title: str
    rounds: int
    data: str
    wishes: Wishes


def read_order(bundle: Bundle) -> Order:
    """Read a configuration; a mistake is told in one line."""
    table = bundle.settings()
    try:
        wishes = Wishes.model_validate(table.get("job", {}))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"[job] {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    if wishes.sites and wishes.needed > len(set(wishes.sites)):
        raise ConfigError(f"[job] min_sites = {wishes.needed}, but only {len(set(wishes.sites))} sites are named")
    rounds = table.get("rounds", 0)
    return Order(
        title=str(table.get("name", bundle.data_name))[:200],
        rounds=rounds if isinstance(rounds, int) and rounds > 0 else 0,
        data=bundle.data_name,
        wishes=wishes,
    )
