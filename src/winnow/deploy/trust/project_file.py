"""`project.toml`: who takes part in a project."""

import json
import re
import tomllib
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints, ValidationError, model_validator

from winnow.config.validation_error_message import config_error
from winnow.core import ConfigError, Settings
from winnow.deploy.trust.peer_identity import PartyKind, Role
from winnow.deploy.trust.private_file_writing import write_bytes_atomically

PartyName = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\z")]
"""Safe as the name of a folder, and short enough for a certificate."""
Organisation = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[^\x00-\x1f\x7f*]+\z")]
HOST_NAME = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(\.(?!-)[A-Za-z0-9-]{1,63})*\Z")


def is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _host(host: str) -> str:
    if not is_ip_address(host) and not HOST_NAME.match(host):
        raise ValueError(f"{host!r} is neither a host name nor an IP address")
    return host


class ProjectServer(Settings):
    """A server, under every name that it may be reached by."""

    name: PartyName
    organisation: Organisation
    hosts: tuple[Annotated[str, AfterValidator(_host)], ...] = Field(min_length=1)
    port: int = Field(default=8443, ge=1, le=65_535)

    @property
    def kind(self) -> PartyKind:
        return "server"

    @property
    def role(self) -> str:
        return ""

    @property
    def endpoints(self) -> list[str]:
        return [f"grpc://[{host}]:{self.port}" if ":" in host else f"grpc://{host}:{self.port}" for host in self.hosts]


class ProjectSite(Settings):
    name: PartyName
    organisation: Organisation

    @property
    def kind(self) -> PartyKind:
        return "site"

    @property
    def role(self) -> str:
        return ""


class ProjectPerson(Settings):
    name: PartyName
    organisation: Organisation
    role: Role

    @property
    def kind(self) -> PartyKind:
        return "person"


class Project(Settings):
    name: PartyName
    servers: tuple[ProjectServer, ...] = Field(min_length=1)
    sites: tuple[ProjectSite, ...] = ()
    people: tuple[ProjectPerson, ...] = ()
    validity_days: int = Field(default=365, ge=1, le=3650)

    @property
    def parties(self) -> tuple[ProjectServer | ProjectSite | ProjectPerson, ...]:
        return (*self.servers, *self.sites, *self.people)

    @property
    def endpoints(self) -> list[str]:
        return [endpoint for server in self.servers for endpoint in server.endpoints]

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Project":
        """Over all kinds, and whatever their case: names are also names of folders."""
        counts = Counter(party.name.lower() for party in self.parties)
        for name in (name for name, count in counts.items() if count > 1):
            raise ValueError(f"the name {name!r} is used twice; every server, site and person needs a unique name")
        return self


def read_project(path: Path) -> Project:
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not a TOML file: {error}") from error
    try:
        return Project.model_validate(table)
    except ValidationError as error:
        raise config_error(error, str(path), Project, table) from error


def add_party(path: Path, party: ProjectSite | ProjectPerson) -> Project:
    """The project with one more site or person, also in its file: a table at the end, the rest as it was written."""
    project = read_project(path)
    if party in project.parties:  # an approval that was interrupted
        return project
    if any(party.name.lower() == known.name.lower() for known in project.parties):
        raise ConfigError(f"{path}: there is a {party.name!r} already; the applicant needs another name")
    fields = party.model_dump(mode="json")
    lines = "".join(f"{key} = {json.dumps(value, ensure_ascii=False)}\n" for key, value in fields.items())
    before = path.read_text("utf-8")
    table = "sites" if isinstance(party, ProjectSite) else "people"
    write_bytes_atomically(path, f"{before.rstrip()}\n\n[[{table}]]\n{lines}".encode(), path.stat().st_mode & 0o777)
    try:
        return read_project(path)
    except ConfigError:  # such as one that lists its parties inline
        write_bytes_atomically(path, before.encode())
        raise ConfigError(f"{path}: {party.name!r} cannot be added at its end; add the party by hand") from None
