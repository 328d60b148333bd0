"""A server that tells a person whatever the test wants about a question, over gRPC with real certificates."""

import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from papers import a_project, kit_of, provision
from transport_server import running_server

from winnow.deploy.client.free_port import free_port
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.blob_transfer_server import receive_blob, uploaded_size
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    Acknowledgement,
    Blob,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetUploadedSize,
    JobInfo,
    JobList,
    JobResult,
    ListJobs,
    ListSites,
    LogLine,
    PutBlob,
    Request,
    Resources,
    Response,
    SiteInfo,
    SiteList,
    UploadedSize,
)
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import Tls
from winnow.runs import file_names

SITES = ("plant-a", "plant-b")


class LyingServer:
    """Every question is finished at once, and `answer` is what comes back: values, or bytes that are sent as is."""

    def __init__(self, folder: Path, table: str = "stays") -> None:
        self.project, self.port, self.table = folder / "project", free_port(), table
        server = {"name": "server-1", "organisation": "Institute", "hosts": ["127.0.0.1"], "port": self.port}
        provision(self.project, a_project(servers=[server]))
        self.spool = BlobFolder(folder / "spool")
        self.answer: Mapping[str, Any] | bytes = {}
        self.sites: Sequence[str] = SITES
        """Who took part, as it says."""
        self.job: dict[str, Any] = {}
        """What else it says of the job, in place of what is usual."""
        self.jobs: int = 1
        """How many jobs it lists where one is asked for."""
        self.lines: Sequence[tuple[str, str]] = ()
        """Kinds and texts of the lines in the job's log."""
        self.heard: list[Request] = []

    @property
    def kit(self) -> Path:
        return self.project / "kits" / "the-lead"

    @contextmanager
    def running(self) -> Iterator["LyingServer"]:
        tls = Tls.of(kit_of(self.project, "server-1"))
        with running_server(f"grpc://127.0.0.1:{self.port}", tls, self):
            yield self

    async def call(self, peer: Peer, request: Request) -> Response:
        self.heard.append(request)
        match request:
            case ListSites():
                return SiteList(sites=[self._site(name) for name in SITES])
            case ListJobs(job=name):
                return JobList(jobs=[self._job(name or "")] * self.jobs)
            case GetJobResult():
                told = self.answer if isinstance(self.answer, bytes) else json.dumps(self.answer).encode()
                return JobResult(bundle=self._hold(b"bundle"), config="", output={file_names.ANSWER: self._hold(told)})
            case GetUploadedSize(blob=blob):
                return uploaded_size(self.spool, blob, peer.name)
        return Acknowledgement()

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        for chunk in self.spool.read(request.blob, request.offset):
            yield chunk

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        return await receive_blob(self.spool, head, chunks, peer.name)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        if request.first > len(self.lines):
            raise RequestRefusedError("the log ends here")
        for number, (kind, text) in enumerate(self.lines):
            yield LogLine(number=number, at=0.0, source="server", kind=kind, text=text)

    def _hold(self, content: bytes) -> Blob:
        path = self.spool.folder / ".made"
        path.write_bytes(content)
        return self.spool.adopt(path)

    def _site(self, name: str) -> SiteInfo:
        return SiteInfo(
            site=name,
            organisation="",
            connected=True,
            revoked=False,
            last_seen=time.time(),
            winnow_version="",
            data=[self.table],
            free=Resources(),
            jobs=[],
        )

    def _job(self, name: str) -> JobInfo:
        usual: dict[str, Any] = {
            "job": name,
            "title": "",
            "status": "finished",
            "reason": "",
            "submitter": "the-lead",
            "organisation": "",
            "priority": 0,
            "round": 1,
            "rounds": 1,
            "sites": list(self.sites),
            "submitted": 0.0,
            "metrics": {},
        }
        return JobInfo(**{**usual, **self.job})
