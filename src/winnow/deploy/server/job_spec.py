"""What the server reads of a job's configuration: the [job] section and a few keys.

The rest of the configuration is for the job's own processes, which check it.
"""

from pydantic import ValidationError

from winnow.config.job_settings import JobSettings
from winnow.config.planned_rounds import planned_rounds
from winnow.core import ConfigError, Settings
from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import Resources


class JobSpec(Settings):
    title: str
    rounds: int
    data: str
    settings: JobSettings

    @property
    def resources(self) -> Resources:
        """What it needs of each site."""
        return Resources(cpus=self.settings.cpus, memory_mb=self.settings.memory_mb, gpus=self.settings.gpus)


def read_job_spec(bundle: Bundle) -> JobSpec:
    """Read a configuration; a mistake is reported in one line."""
    table = bundle.settings()
    try:
        settings = JobSettings.model_validate(table.get("job", {}))
    except ValidationError as error:
        first = error.errors()[0]
        where = "".join(f"{key}: " for key in first["loc"])
        raise ConfigError(f"[job] {where}{first['msg'].removeprefix('Value error, ')}") from error
    rounds = planned_rounds(table) or 0
    return JobSpec(
        title=one_line(str(table.get("name", bundle.data_name))[:200]),
        rounds=max(0, rounds),
        data=bundle.data_name,
        settings=settings,
    )
