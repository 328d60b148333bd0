"""`site.toml`, beside the kit and the operator's own: what the site offers, and where its data are.

    state = "/var/lib/winnow"
    disk_mb = 20000

    [resources]
    cpus = 4
    memory_mb = 8000

    [data.turbines]
    file = "/data/turbines.csv"
    targets = ["flow"]

    [data.wards]
    url = "postgresql+psycopg://reader@localhost/clinic"
    query = "SELECT age, dose, outcome, ward FROM stays"
    targets = ["outcome"]
    owner = "ward"

    [tables.stays]
    file = "/data/stays.parquet"
    columns = { ward = "public", age = { level = "protected", bounds = [0, 110] } }

A job asks for data by name. Where they are stays here: `Redactor` removes it from all that is sent to the server.
"""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from winnow.config.renamed_settings import SITE_KEYS, old_key
from winnow.core.errors import ConfigError
from winnow.deploy.site import resource_pool
from winnow.deploy.site.site_table import SiteTable, site_table
from winnow.deploy.trust.signing import MAX_JOB_AGE_DAYS
from winnow.deploy.wire.messages import Name, Resources

CONFIG_FILE = "site.toml"
STATE_FOLDER = "state"
FILE_ENDINGS = (".csv", ".csv.gz", ".parquet", ".npz")


class DataSource(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A [data.NAME] table: a `file`, a `folder` with an .npz a client, or a `query` to the database at `url`.

    The other keys mean what they mean in a job's own [data] section. `classes` is how many there are or their labels,
    in an order that all sites share; `local_test` is the share of its samples that each client evaluates on;
    `client_names` lets jobs know what clients are called: the owners in the data, or the names of the files. By the
    column `key` rows are matched with those of other sites, in split learning.
    """

    file: str | None = None
    folder: str | None = None
    url: str | None = None
    query: str | None = None
    targets: list[str] | str | UnsetType = UNSET
    features: list[str] | str | UnsetType = UNSET
    owner: str | UnsetType = UNSET
    key: str | UnsetType = UNSET
    task: str | UnsetType = UNSET
    tokens: bool | UnsetType = UNSET
    scale: str | dict[str, list[float]] | UnsetType = UNSET
    classes: Annotated[int, Meta(ge=2)] | list[str | int] | UnsetType = UNSET
    local_test: Annotated[float, Meta(ge=0, lt=1)] | UnsetType = UNSET
    client_names: bool | UnsetType = UNSET

    @property
    def path(self) -> str | None:
        """The file or folder, if it is one."""
        return self.file or self.folder

    def worker_table(self, rows: Path | None = None) -> dict[str, Any]:
        """The table for the worker. Of a database it gets the `rows`, in a file, and neither address nor query."""
        all_keys: dict[str, Any] = msgspec.to_builtins(self)
        given = {key: value for key, value in all_keys.items() if value is not None and key not in ("url", "query")}
        return given if rows is None else {"file": str(rows), **given}


class SiteConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    state: str = STATE_FOLDER
    """A folder of this site's own, relative to the kit."""
    resources: Resources = msgspec.field(default_factory=resource_pool.machine_resources)
    disk_mb: Annotated[int, Meta(ge=1)] = 20_000
    """What a job may write, and what may be downloaded for it, each."""
    job_days: Annotated[float, Meta(gt=0)] = MAX_JOB_AGE_DAYS
    """Days for which a job can begin here after its author signed it; one that has begun goes on."""
    results: str | None = None
    """The folder, relative to the kit, for files that jobs leave here in `results`; without it they are deleted."""
    data: dict[Name, DataSource] = {}
    tables: dict[Name, SiteTable] = {}


@dataclass(frozen=True, kw_only=True)
class Redactor:
    """Removes what nobody outside may read: paths, addresses, queries. The longest goes first."""

    secrets: tuple[str, ...] = field(repr=False)

    @classmethod
    def of(cls, secrets: Iterable[str | Path]) -> "Redactor":
        words = {str(each) for each in secrets} - {"", "/", "."}
        return cls(secrets=tuple(sorted(words, key=len, reverse=True)))

    def __call__(self, text: str) -> str:
        for secret in self.secrets:
            text = text.replace(secret, "…")
        return text


def load_config(kit: Path, path: Path | None = None) -> SiteConfig:
    """Read and check `site.toml`; without one the site offers the machine and no data."""
    chosen = path or kit / CONFIG_FILE
    if path is None and not chosen.exists():
        return _with_absolute_paths(SiteConfig(), kit)
    try:
        table = tomllib.loads(chosen.read_text())
        sections = msgspec.convert(table.pop("tables", {}), dict[Name, dict[str, Any]])
        config = msgspec.convert(table, SiteConfig)
    except OSError as error:
        raise ConfigError(f"{chosen} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{chosen} is not valid TOML: {error}") from error
    except msgspec.ValidationError as error:
        raise ConfigError(f"{chosen}: {old_key(table, SITE_KEYS) or error}") from error
    for name, data in config.data.items():
        if problem := _problem(data, chosen.parent):
            raise ConfigError(f"{chosen}: [data.{name}] {problem}")
    tables = {name: _table(name, section, config, chosen) for name, section in sections.items()}
    return _with_absolute_paths(msgspec.structs.replace(config, tables=tables), kit, chosen.parent)


def redactor_for(config: SiteConfig, kit: Path) -> Redactor:
    secrets: set[str | Path] = {kit, kit.resolve(), config.state, config.results or ""}
    for data in config.data.values():
        secrets |= {each for each in (data.path, data.url, data.query) if each}
        if data.path:
            secrets.add(Path(data.path).parent)
    for table in config.tables.values():
        secrets |= {*table.places, *(Path(each).parent for each in table.places if Path(each).is_absolute())}
    return Redactor.of(secrets)


def _problem(data: DataSource, folder: Path) -> str | None:
    """What is wrong with a table, if anything."""
    if sum(each is not None for each in (data.file, data.folder, data.query)) != 1:
        return "needs one of file, folder or query (with the url of a database)"
    if (data.url is None) != (data.query is None):
        return "needs url and query together"
    if data.query is not None and data.targets is UNSET:
        return 'needs targets = ["…"], the columns to predict'
    if isinstance(data.scale, str) and data.scale != "none":
        return (
            f"scale = {data.scale!r} would scale each site by its own rows; use 'none', or values shared by "
            "all sites: scale = { mean = […], sd = […] }"
        )
    if data.file is not None and not data.file.lower().endswith(FILE_ENDINGS):
        return f"file = {data.file!r} has an unsupported type; use one of {', '.join(FILE_ENDINGS)}"
    if data.file is not None and not _resolved(data.file, folder).is_file():
        return f"file not found: {_resolved(data.file, folder)}"
    if data.folder is not None and not _resolved(data.folder, folder).is_dir():
        return f"folder not found: {_resolved(data.folder, folder)}"
    return None


def _table(name: str, section: Mapping[str, Any], config: SiteConfig, path: Path) -> SiteTable:
    if name in config.data:
        raise ConfigError(f"{path}: [tables.{name}] and [data.{name}] have the same name; rename one of them")
    return site_table(section, f"{path}: [tables.{name}]", path.parent)


def _with_absolute_paths(config: SiteConfig, kit: Path, folder: Path | None = None) -> SiteConfig:
    """With absolute paths: data relative to the configuration, the site's own folders relative to the kit."""
    data = {name: _absolute(each, folder or kit) for name, each in config.data.items()}
    results = None if config.results is None else str(_resolved(config.results, kit))
    return msgspec.structs.replace(config, state=str(_resolved(config.state, kit)), results=results, data=data)


def _absolute(data: DataSource, folder: Path) -> DataSource:
    places = {
        key: str(_resolved(place, folder)) for key in ("file", "folder") if (place := getattr(data, key)) is not None
    }
    return msgspec.structs.replace(data, **places)


def _resolved(path: str, folder: Path) -> Path:
    return (folder / Path(path).expanduser()).resolve()
