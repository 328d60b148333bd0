"""`server.toml`, the operator's own file beside the kit: where state lies, where to listen, how patient to be."""

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationError

from winnow.config.renamed_settings import SERVER_KEYS, old_key
from winnow.core import ConfigError, Settings
from winnow.deploy.trust.signing import MAX_JOB_AGE_DAYS

CONFIG_FILE = "server.toml"
PATH_KEYS = ("folder", "reference", "test", "labelled", "open")
"""Keys of a data table that name files."""
MAX_PORT = 65_536
DATA_KEYS = (*PATH_KEYS, "targets", "features", "task", "tokens", "classes", "scale")


class ServerLimits(Settings):
    """What one job or one party may take up."""

    bundle_mb: int = Field(default=64, ge=1)
    """Of a job that is submitted."""
    blob_mb: int = Field(default=16_384, ge=1)
    """Of one reply."""
    inbox_mb: int = Field(default=65_536, ge=1)
    """Of a site's replies to one job that wait to be aggregated."""
    concurrent_calls: int = Field(default=64, ge=8)
    """Requests that one party may have under way at the same time, transfers and followed logs included."""
    concurrent_transfers: int = Field(default=4, ge=1)
    """That one party may have under way at the same time."""
    log_lines: int = Field(default=100_000, ge=0)
    """That a job may add to its log."""
    running_jobs: int = Field(default=16, ge=1)
    """That run at the same time; the others wait."""
    custom_code_memory_mb: int = Field(default=4096, ge=64)
    """Of memory, for the process of a job that brings code of its own."""
    custom_code_disk_mb: int = Field(default=20_000, ge=64)
    """Of files, for the same."""


def _host_and_port(listen: str) -> str:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < MAX_PORT:
        raise ValueError(f"{listen!r} is not HOST:PORT, such as 0.0.0.0:8444")
    return listen


def _https(address: str) -> str:
    where = urlsplit(address)
    if where.scheme != "https" or not where.netloc or where.path.strip("/") or where.query or where.username:
        raise ValueError(f"{address!r} is not https://HOST:PORT")
    return f"https://{where.netloc}"


class PagesConfig(Settings):
    """Pages of the federation, served to browsers by the server itself."""

    listen: Annotated[str, AfterValidator(_host_and_port)]
    """HOST:PORT to bind to; TLS with the server's own certificate."""
    address: Annotated[str, AfterValidator(_https)] | None = None
    """https://HOST:PORT under which browsers reach it, where ports are mapped; else the host of the endpoint."""
    applications: bool = False
    """Whether strangers may hand in applications for kits here."""
    control: bool = False
    """Whether jobs are aborted, and sites stopped and restarted, from the pages: by those whose role may."""


class ServerConfig(Settings):
    """All settings have defaults: a server without the file keeps SQLite in its kit's folder."""

    database: str | None = None
    """postgresql://USER@HOST/NAME, the same for all servers of a project; SQLite in the state folder otherwise."""
    state: str = "state"
    """A folder, relative to this file."""
    listen: str | None = None
    """HOST:PORT to bind to; all of the host's addresses, at the port of `address`, if it is not said."""
    address: str | None = None
    """How others reach this server, as grpc://HOST:PORT; needed if the kit's certificate fits several endpoints."""
    heartbeat: float = Field(default=5.0, gt=0)
    lease: float = Field(default=3.0, gt=0)
    """Seconds after which a standby takes over from a silent leader; a leader that the database does not answer for so
    long steps down.
    """
    join_wait: float = Field(default=10.0, ge=0)
    """Seconds to wait for further sites once a job has as many as it needs."""
    job_days: float = Field(default=MAX_JOB_AGE_DAYS, gt=0)
    """Days for which a job can be submitted after its author signed it."""
    metrics_address: str | None = None
    """HOST:PORT of the Prometheus endpoint; there is none otherwise."""
    ui: PagesConfig | None = None
    """Where pages are served to browsers; nowhere otherwise."""
    sandbox: Literal["required", "none"] = "required"
    """Whether custom code may run where this machine's kernel offers no sandbox."""
    limits: ServerLimits = ServerLimits()
    data: dict[str, dict[str, Any]] = Field(default={})
    """The server's own named data, for reference and test sets."""

    def state_folder(self, beside: Path) -> Path:
        return (beside / self.state).resolve()

    def database_url(self, beside: Path) -> str:
        return self.database or f"sqlite:///{self.state_folder(beside) / 'server.db'}"


def read_config(path: Path, *, required: bool = False) -> ServerConfig:
    """The file's settings; defaults where there is none, unless it was asked for by name."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if required:
            raise ConfigError(f"{path}: no such file") from None
        return ServerConfig()
    try:
        table = tomllib.loads(text)
        return _anchored(ServerConfig.model_validate(table), path.parent)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        problem = old_key(table, SERVER_KEYS) or f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise ConfigError(f"{path}: {problem}") from error


def _anchored(config: ServerConfig, folder: Path) -> ServerConfig:
    """Files of data are looked for beside the configuration."""
    for name, table in config.data.items():
        if strange := sorted(table.keys() - {*DATA_KEYS}):
            raise ConfigError(
                f"{CONFIG_FILE}: [data.{name}]: unknown key {strange[0]!r}; set folder (with reference.npz and "
                "test.npz), or the files reference, test, labelled and open"
            )
    data = {
        name: {key: str((folder / value).resolve()) if key in PATH_KEYS else value for key, value in table.items()}
        for name, table in config.data.items()
    }
    return config.model_copy(update={"data": data})
