"""`winnow site KIT --check`: whether a site is ready for jobs, found out before any job comes."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from winnow.core.errors import WinnowError
from winnow.core.join_names import listed
from winnow.data.preprocessing import NO_LABEL
from winnow.deploy.jobs.party_data import SiteData, columns_to_state, load_site_data
from winnow.deploy.sandbox.isolation import MB, sandbox_unavailable_reason
from winnow.deploy.site.agent import connect_to_leader, hello_of
from winnow.deploy.site.config import DataSource, SiteConfig, load_config
from winnow.deploy.site.database_query_export import fetch_rows
from winnow.deploy.site.table_check import described_site_table, query_rule_lines
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.policy_rules import ANY, POLICY_FILE, matches
from winnow.deploy.trust.site_policy import JobRule, SitePolicy, read_site_policy
from winnow.deploy.wire.messages import Welcome

CONNECT_SECONDS = 5.0
"""For which the server is looked for; a change of leaders takes less."""
_listed = partial(listed, at_most=8)


@dataclass(frozen=True, kw_only=True)
class SiteCheck:
    """One thing that was looked at. `ok` is False where a job would fail because of it."""

    part: str
    ok: bool
    text: str


def check_site(kit_folder: Path, config_file: Path | None = None) -> Iterator[SiteCheck]:
    """All checks, one after another: reading data and finding the server may take a while.

    A kit or a configuration that cannot be read ends the check, because everything else depends on it.
    """
    kit = Kit.load(kit_folder.resolve(), "site")
    until = kit.certificate.not_valid_after_utc.date()
    yield SiteCheck(part="kit", ok=True, text=f"site {kit.name} of {kit.organisation}; certificate valid until {until}")
    config = load_config(kit.path, config_file)
    offered = config.resources
    text = f"{offered.cpus:g} CPUs, {offered.memory_mb:,} MB, {offered.gpus} GPUs"
    yield SiteCheck(part="resources", ok=True, text=text)
    if not config.data and not config.tables:
        text = "site.toml names no data; add a [data.NAME] section, or [tables.NAME] for questions"
        yield SiteCheck(part="data", ok=False, text=text)
    for name, source in config.data.items():
        yield _attempt(f"data {name}", partial(_data, name, source))
    for name, table in config.tables.items():
        yield _attempt(f"table {name}", partial(described_site_table, table))
    yield from _policy(kit, config)
    yield _attempt("disk", partial(_disk, config))
    yield _attempt("connection", partial(_connection, kit, config))


def _attempt(part: str, look: Callable[[], str]) -> SiteCheck:
    try:
        return SiteCheck(part=part, ok=True, text=look())
    except WinnowError as error:
        return SiteCheck(part=part, ok=False, text=str(error))
    except OSError as error:
        return SiteCheck(part=part, ok=False, text=f"{error.filename or part}: {error.strerror or error}")


def _data(name: str, source: DataSource) -> str:
    """What a job would find, read as its worker would read it."""
    if source.url is None or source.query is None:
        return _described(load_site_data(name, source.worker_table(), seed=0, alone=True))
    with tempfile.TemporaryDirectory() as folder:
        rows = Path(folder) / f"{name}.csv"
        fetch_rows(name, source.url, source.query, rows)
        return _described(load_site_data(name, source.worker_table(rows), seed=0, alone=True))


def _described(data: SiteData) -> str:
    told = data.description()
    samples, clients = sum(told.sizes), len(told.sizes)
    shape = " × ".join(map(str, told.sample_shape))
    what = f"{told.outputs} classes" if told.classification else f"{told.outputs} target{'s'[: told.outputs > 1]}"
    held = f"{clients} client{'s'[: clients > 1]}, {samples:,} samples of {shape} values"
    return f"{held}, {what}{_counts(data)}{_to_state(data)}"


def _to_state(data: SiteData) -> str:
    """Which columns restrict the jobs that can use the data."""
    found = [f"{column} ({what})" for column, what in columns_to_state(data.preprocessing)]
    return f"; only for jobs that state a preprocessing, because of {_listed(found)}" if found else ""


def _counts(data: SiteData) -> str:
    """How many samples each class has, where the samples are in memory: a class without any is worth a look."""
    targets = getattr(data.clients, "y", None)
    if data.clients.classes is None or targets is None or targets.ndim != 1:
        return ""
    count = Counter(targets.tolist())
    without = f"; {count[NO_LABEL]:,} without a label" if count[NO_LABEL] else ""
    return f" (samples each: {_listed([f'{count[each]:,}' for each in range(data.clients.classes)])}{without})"


def _policy(kit: Kit, config: SiteConfig) -> Iterator[SiteCheck]:
    path = kit.path / POLICY_FILE
    if not path.exists():
        yield SiteCheck(part="policy", ok=False, text=f"there is no {path}: this site rejects every job")
        return
    try:
        policy = read_site_policy(path.read_bytes())
    except WinnowError as error:
        yield SiteCheck(part="policy", ok=False, text=f"{path}: {error}; until it is mended, every job is rejected")
        return
    for rule in policy.jobs:
        yield _rule(rule, config)
    for name in config.data:
        if not any(matches(rule.data, name) for rule in policy.jobs):
            yield SiteCheck(part="policy", ok=False, text=f"no [[jobs]] rule allows anybody to use data {name!r}")
    for ok, text in query_rule_lines(policy, config):
        yield SiteCheck(part="policy", ok=ok, text=text)
    if any(rule.own_code for rule in policy.jobs):
        yield _sandbox(policy)


def _rule(rule: JobRule, config: SiteConfig) -> SiteCheck:
    who = _listed([each for each in (*rule.people, *rule.organisations, *rule.roles) if each != ANY]) or "everybody"
    unknown = [name for name in rule.data if name != ANY and name not in (*config.data, *config.tables)]
    if unknown:
        return SiteCheck(
            part="policy", ok=False, text=f"a rule names data {unknown[0]!r}, which site.toml does not have"
        )
    data = "any data" if ANY in rule.data else _listed(list(rule.data))
    code = "with" if rule.own_code else "without"
    return SiteCheck(part="policy", ok=True, text=f"{who} may use {data}, {code} code of their own")


def _sandbox(policy: SitePolicy) -> SiteCheck:
    reason = sandbox_unavailable_reason()
    if reason is None:
        return SiteCheck(part="sandbox", ok=True, text="available")
    if policy.sandbox == "none":
        return SiteCheck(part="sandbox", ok=True, text=f"not available ({reason}), and the policy does not require it")
    return SiteCheck(part="sandbox", ok=False, text=f"jobs with code of their own are rejected: {reason}")


def _disk(config: SiteConfig) -> str:
    state = Path(config.state)
    existing = next(folder for folder in (state, *state.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free // MB
    if free < config.disk_mb:
        raise WinnowError(
            f"{state} has {free:,} MB free, but a job may write {config.disk_mb:,} MB; free some, or lower disk_mb"
        )
    return f"{free:,} MB free for {state}; a job may write {config.disk_mb:,} MB"


def _connection(kit: Kit, config: SiteConfig) -> str:
    """The server's answer to a greeting that starts no session: a running agent is not disturbed."""
    link = connect_to_leader(kit, CONNECT_SECONDS)
    try:
        welcome = link.call(hello_of(kit, config, time.time(), [], check=True))
    finally:
        link.close()
    if not isinstance(welcome, Welcome):
        raise WinnowError(f"the server answered with {type(welcome).__name__}; is it a Winnow server?")
    return f"a server of project {kit.project} answers, and accepts this site's certificate and version"
