"""What a site says to its server. Nothing leaves without passing here, and where the data are is taken out of it."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Event, Lock

from msgspec.structs import replace

from winnow.deploy.wire.blob_folder import BlobFolder
from winnow.deploy.wire.blob_transfer import download, upload
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, one_line
from winnow.deploy.wire.messages import (
    Blob,
    ClientResult,
    ControlResult,
    DataDescription,
    DeployResult,
    SubmitResult,
)
from winnow.deploy.wire.transport import ServerLink

log = logging.getLogger(__name__)


class Uplink:
    """Used by all jobs' threads; the agent tells it which session is the present one."""

    def __init__(self, link: ServerLink, discreet: Callable[[str], str]) -> None:
        self.link = link
        self._discreet = discreet
        self._session: str | None = None
        self._lock = Lock()
        self._lost = Event()

    def begin(self, session: str) -> None:
        with self._lock:
            self._session = session
            self._lost.clear()

    @property
    def lost(self) -> bool:
        """Whether something could not be delivered: a new session brings the order for it again."""
        return self._lost.is_set()

    def joined(self, job: str, data: DataDescription | None, reason: str = "") -> None:
        """The site takes part with these data, or does not, and why."""
        told = self._outward(reason)
        self._deliver(
            lambda session: self.link.call(
                DeployResult(session=session, job=job, accepted=data is not None, reason=told, data=data)
            ),
            f"the word about job {job}",
        )

    def controlled(self, refusal: str | None) -> None:
        """The agent stops or restarts as it was asked to, or why it does not."""
        reason = self._outward(refusal or "")
        self._deliver(
            lambda session: self.link.call(ControlResult(session=session, accepted=refusal is None, reason=reason)),
            "the answer to a request to stop or restart",
        )

    def give(self, answer: ClientResult, payload: Path | None) -> None:
        """Hand over an answer, its blob first."""
        if answer.failure is not None:
            answer = replace(answer, failure=self._outward(answer.failure), stage=self._outward(answer.stage))

        def send(session: str) -> None:
            if payload is not None and answer.blob is not None:
                upload(self.link, answer.job, payload, answer.blob)
            self.link.call(SubmitResult(session=session, answer=answer))

        self._deliver(send, f"the answer of client {answer.client} to task {answer.task[:12]} of job {answer.job}")

    def fetch(self, job: str, blob: Blob, spool: BlobFolder) -> Path:
        try:
            return download(self.link, job, blob, spool)
        except UnreachableError:
            self._lost.set()
            raise

    def _deliver(self, send: Callable[[str], object], what: str) -> None:
        with self._lock:
            session = self._session
        if session is None:
            return
        try:
            send(session)
        except RequestRefusedError as refused:
            log.warning("the server refused %s: %s", what, refused.reason)
            if refused.retry:
                self._lost.set()
        except UnreachableError as error:
            log.warning("%s was not delivered: %s", what, error)
            self._lost.set()

    def _outward(self, text: str) -> str:
        return one_line(self._discreet(text))
