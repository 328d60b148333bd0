"""A person's connection to a federation: `winnow.connect("kits/ana")`."""

import re
import secrets
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.core import AnyEvent, ConfigError, suggest
from winnow.deploy.client.bundle_signing import sign_bundle
from winnow.deploy.client.submit_question import ANSWER_SECONDS, DeployedAnswer, ask
from winnow.deploy.client.unsigned_requests import ServerRequests, SubmittedJob, checked_name
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.trust.kit import Kit
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import Acknowledgement, OpenLogin, PagesAddress, SubmitJob
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import Tls
from winnow.deploy.wire.transport_registry import open_link

if TYPE_CHECKING:
    from winnow.analytics.question import Question
    from winnow.analytics.sql.query_answer import QueryAnswer
    from winnow.deploy.client.bundle import JobDescription

RETRY_SECONDS = 60.0
"""Seconds without an answer from any server after which a command gives up: longer than a failover takes, and than a
server takes to start on a busy machine (20 seconds on 2 cores with 25 other busy processes).
"""
BACKOFF = Backoff(longest=1.0)
"""Somebody waits: a server that has just started is found within a second."""

SITES_SHOWN = 12


class Connection(ServerRequests):
    """What a person may ask of a federation. Use it in a `with`, or close it."""

    def __init__(
        self, kit: Kit, retry_seconds: float = RETRY_SECONDS, notify: Callable[[str], None] | None = None
    ) -> None:
        self.kit = kit
        tls = Tls.of(kit)
        super().__init__(
            ReconnectingLink(
                kit.endpoints,
                lambda url: open_link(url, tls),
                backoff=BACKOFF,
                retry_seconds=retry_seconds,
                notify=notify,
            )
        )

    def submit(
        self,
        source: "str | Path | JobDescription",
        *,
        name: str | None = None,
        sites: tuple[str, ...] | None = None,
        min_sites: int | None = None,
        priority: int | None = None,
        on_line: Callable[[str], object] = lambda line: None,
        **options: Any,
    ) -> SubmittedJob:
        """Submit a preset, a .toml file or a Python program; `options` as in `winnow run` (algorithm, seed, sets …).

        For a job on a table its owners are first asked for common units, of which `on_line` is told.
        """
        from winnow.deploy.client.bundle import JobDescription, describe_job  # noqa: PLC0415 - questions need no torch

        if name is not None:
            checked_name(name)
        described = source if isinstance(source, JobDescription) else describe_job(source, **options)
        described.check_parties(sites)
        named = sites or described.table.get("job", {}).get("sites", ())
        self._check_names(named)
        if described.data.table is not None:
            from winnow.deploy.client.common_units import with_common_units  # noqa: PLC0415 - tables are an extra

            described = with_common_units(described, self, named, on_line)
        settings = {"sites": sites, "min_sites": min_sites, "priority": priority}
        return self.send(name or new_name(described.title), described.bundle(self.kit, settings))

    def _check_names(self, sites: Sequence[str]) -> None:
        """Refuse a name that no site has ever had, for which the job would wait forever. Whoever may not list the sites
        is not told.
        """
        if not sites:
            return
        try:
            known = [each.site for each in self.sites()]
        except RequestRefusedError:
            return
        for site in sites:
            if site not in known:
                hint = (
                    suggest(site, known, at_most=SITES_SHOWN) if known else "a site must connect before a job names it"
                )
                raise ConfigError(f"no site called {site} has ever connected; {hint}")

    def clone(self, job: str, name: str | None = None) -> SubmittedJob:
        """The same job once more, submitted and signed by this person."""
        if name is not None:
            checked_name(name)
        with tempfile.TemporaryDirectory() as folder:
            spool = BlobFolder(Path(folder))
            bundle = read_bundle(download_blob(self._link, job, self.result(job).bundle, spool).read_bytes())
        return self.send(name or new_name(job.rpartition("-")[0] or job), sign_bundle(self.kit, bundle))

    def send(self, job: str, bundle: Bundle) -> SubmittedJob:
        """Submit a signed bundle under this name."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "bundle"
            path.write_bytes(write_bundle(bundle))
            blob = blob_of(path)
            upload_blob(self._link, job, path, blob)
            self._ask(SubmitJob(job=job, bundle=blob), Acknowledgement)
        return SubmittedJob(self, job)

    def ask(
        self,
        question: "Question",
        *,
        owners: Sequence[str] = (),
        timeout: float = ANSWER_SECONDS,
        on_event: Callable[[AnyEvent], object] = lambda event: None,
        on_line: Callable[[str], None] = lambda line: None,
        folder: Path | None = None,
    ) -> DeployedAnswer:
        """Put a question to these owners, or to all sites that offer its table, and wait for the answer."""
        return ask(self, question, owners=owners, timeout=timeout, on_event=on_event, on_line=on_line, folder=folder)

    def login_link(self) -> str:
        """An address that logs a browser in to the server's pages as this person: once, within five minutes."""
        return self._ask(OpenLogin(certificate=self.kit.certificate_pem), PagesAddress).url

    def query(
        self, sql: str, *, owners: Sequence[str] = (), epsilon: float | None = None, delta: float | None = None
    ) -> "QueryAnswer":
        """The owners' answer to a SELECT statement; with `epsilon` it is noisy and takes from your budget."""
        from winnow.analytics.question import read_question  # noqa: PLC0415 - most connections ask nothing
        from winnow.analytics.sql.query_answer import QueryAnswer  # noqa: PLC0415

        question = read_question({"kind": "query", "sql": sql, "epsilon": epsilon, "delta": delta})
        return QueryAnswer(self.ask(question, owners=owners).values)


def connect(
    kit: str | Path, retry_seconds: float = RETRY_SECONDS, notify: Callable[[str], None] | None = None
) -> Connection:
    """Connect with a person's kit. `notify` gets one line when no server has answered for a while."""
    return Connection(Kit.load(Path(kit), "person"), retry_seconds, notify)


def new_name(title: str) -> str:
    """A name that no other job has, and that a person can tell from others."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", title).strip("-.")[:60] or "job"
    return f"{stem}-{secrets.token_hex(3)}"
