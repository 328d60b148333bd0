"""How a submitted job is checked and queued."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec
from cryptography import x509

from winnow.deploy.jobs.bundle_format import Bundle, read_bundle
from winnow.deploy.server.blob_store import BlobStore
from winnow.deploy.server.blob_transfers import BlobTransfers
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import QUEUED, SERVER_SOURCE, LeaderWrites, NewLogLine
from winnow.deploy.server.job_spec import JobSpec, read_job_spec
from winnow.deploy.server.scheduler import Scheduler
from winnow.deploy.server.tables import JobRow
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.server_policy import ServerPolicy
from winnow.deploy.trust.signing import MAX_JOB_AGE_DAYS, Signature, check_job_age, verify
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import LOG_KIND, MAX_TEXT, Blob, SubmitJob

ALREADY_SUBMITTED = "already submitted"


@dataclass(frozen=True, kw_only=True)
class ServerTrust:
    """Whom this server trusts at present."""

    authority: x509.Certificate
    revocations: Callable[[], RevocationList]
    policy: Callable[[], ServerPolicy]
    job_days: float = MAX_JOB_AGE_DAYS
    now: Callable[[], datetime] = utc_now

    def revoked(self, peer: Peer) -> bool:
        return peer.serial in self.revocations().serials

    def author(self, bundle: Bundle) -> Peer:
        """Who signed the bundle, not too long ago."""
        signature = Signature(certificate=bundle.certificate, value=bundle.signature)
        author = verify(signature, bundle.signed, self.authority, self.revocations(), self.now())
        check_job_age(bundle.issued, self.now(), self.job_days)
        return author


@dataclass(frozen=True, kw_only=True)
class JobSubmission:
    trust: ServerTrust
    writes: LeaderWrites
    queries: Queries
    blobs: BlobStore
    scheduler: Scheduler
    transfers: BlobTransfers

    async def submit(self, peer: Peer, request: SubmitJob) -> str:
        """What became of it; raises if it is rejected."""
        known = await asyncio.to_thread(self.queries.job, request.job)
        if known is not None:
            if (known.submitter, known.bundle) != (peer.name, request.bundle.digest):
                raise RequestRefusedError(f"a different job is already called {request.job}; choose another name")
            return ALREADY_SUBMITTED
        uploads = self.transfers.uploads(peer.name)
        if not uploads.has(request.bundle):
            raise RequestRefusedError(f"the bundle of job {request.job} has not been uploaded; upload it first")
        path = uploads.path(request.bundle)
        bundle, spec = await asyncio.to_thread(self._check_bundle, path, peer)
        await asyncio.to_thread(self.blobs.put, request.job, path)
        row = JobRow(
            job=request.job,
            title=spec.title,
            status=QUEUED,
            reason="",
            submitter=peer.name,
            organisation=peer.organisation,
            role=peer.role,
            priority=spec.settings.priority,
            round=0,
            rounds=spec.rounds,
            config=bundle.config,
            bundle=request.bundle.digest,
            bundle_size=request.bundle.size,
            metrics=msgspec.msgpack.encode({}),
        )
        line = NewLogLine(source=SERVER_SOURCE, kind=LOG_KIND, text=f"submitted by {peer}")
        if not await asyncio.to_thread(self.writes.add_job, row, line):
            return ALREADY_SUBMITTED
        self.scheduler.add(row, spec)
        return QUEUED

    async def forget_upload(self, peer: Peer, bundle: Blob) -> None:
        """Delete the uploaded bundle; one that is not there as a whole may be on its way."""
        uploads = self.transfers.uploads(peer.name)
        if uploads.has(bundle):
            await asyncio.to_thread(uploads.remove, bundle)

    def _check_bundle(self, path: Path, peer: Peer) -> tuple[Bundle, JobSpec]:
        """Read a bundle, check its signature and its [job] section; for a thread."""
        bundle = read_bundle(path.read_bytes())
        author = self.trust.author(bundle)
        if (author.name, author.organisation) != (peer.name, peer.organisation):
            raise RequestRefusedError(
                f"the job is signed by {author.name} but submitted by {peer.name}; the submitter must sign it"
            )
        if len(bundle.config) > MAX_TEXT:
            raise RequestRefusedError(f"the job's configuration is longer than {MAX_TEXT} characters")
        return bundle, read_job_spec(bundle)
