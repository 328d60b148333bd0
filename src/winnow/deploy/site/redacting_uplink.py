"""What a site sends to its server. Everything that leaves passes here, and texts are redacted."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock

from msgspec.structs import replace

from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, one_line
from winnow.deploy.wire.messages import (
    Blob,
    ClientResult,
    ControlResult,
    DataDescription,
    DeployResult,
    SubmitResult,
)
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import ServerLink

log = logging.getLogger(__name__)


class Uplink:
    """All jobs' threads use it; the agent starts its sessions."""

    def __init__(self, link: ServerLink, redact: Callable[[str], str]) -> None:
        self.link = link
        self._redact = redact
        self._session: str | None = None
        self._lock = Lock()
        self._failed = Event()

    def start_session(self, session: str) -> None:
        with self._lock:
            self._session = session
            self._failed.clear()

    @property
    def delivery_failed(self) -> bool:
        """Whether a message could not be delivered: in a new session the server asks for it again."""
        return self._failed.is_set()

    def report_deploy_result(self, job: str, data: DataDescription | None, reason: str = "") -> None:
        """The site participates with these data, or does not, and why."""
        redacted = self._redacted_line(reason)
        self._deliver(
            lambda session: self.link.call(
                DeployResult(session=session, job=job, accepted=data is not None, reason=redacted, data=data)
            ),
            f"this site's decision on job {job}",
        )

    def report_control_result(self, rejection: str | None, *, restart: bool) -> None:
        """The agent stops or restarts as it was asked to, or why it does not."""
        reason, accepted = self._redacted_line(rejection or ""), rejection is None
        self._deliver(
            lambda session: self.link.call(
                ControlResult(session=session, restart=restart, accepted=accepted, reason=reason)
            ),
            "the reply to a remote request",
        )

    def submit_result(self, result: ClientResult, payload: Path | None = None) -> None:
        """Send a client's result, its blob first."""
        if result.failure is not None:
            failure, stage = self._redacted_line(result.failure), self._redacted_line(result.stage)
            result = replace(result, failure=failure, stage=stage)

        def send(session: str) -> None:
            if payload is not None and result.blob is not None:
                upload_blob(self.link, result.job, payload, result.blob)
            self.link.call(SubmitResult(session=session, result=result))

        self._deliver(send, f"the result of client {result.client} for task {result.task[:12]} of job {result.job}")

    def fetch(self, job: str, blob: Blob, spool: BlobFolder) -> Path:
        try:
            return download_blob(self.link, job, blob, spool)
        except UnreachableError:
            self._failed.set()
            raise

    def _deliver(self, send: Callable[[str], object], what: str) -> None:
        with self._lock:
            session = self._session
        if session is None:
            return
        try:
            send(session)
        except RequestRefusedError as refused:
            log.warning("the server rejected %s: %s", what, refused.reason)
            if refused.retry:
                self._failed.set()
        except UnreachableError as error:
            log.warning("%s was not delivered: %s", what, error)
            self._failed.set()

    def _redacted_line(self, text: str) -> str:
        return one_line(self._redact(text))
