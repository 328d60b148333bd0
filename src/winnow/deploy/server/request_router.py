"""Requests and who answers them. A standby server replies which server is the leader."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.leader_services import Leader
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.login_links import LoginLinks
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    AbortJob,
    ControlResult,
    ControlSite,
    DecideApplication,
    DeployResult,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetPagesAddress,
    GetStatus,
    GetUploadedSize,
    Hello,
    ListApplications,
    ListJobs,
    ListSites,
    LogLine,
    OpenLogin,
    PagesAddress,
    Poll,
    PutBlob,
    ReadAudit,
    Request,
    Response,
    ServerStatus,
    SubmitJob,
    SubmitResult,
    UploadedSize,
)

SITE_REQUESTS = (Hello, Poll, DeployResult, ControlResult, SubmitResult)


class RequestRouter:
    """The `Service` of the transports."""

    def __init__(
        self, *, name: str, version: str, lease: Lease, queries: Queries, links: LoginLinks | None = None
    ) -> None:
        self._name = name
        self._version = version
        self._lease = lease
        self._queries = queries
        self._links = links
        self.leader: Leader | None = None

    async def call(self, peer: Peer, request: Request) -> Response:
        leader = await self._require_leader()
        if isinstance(request, GetUploadedSize):
            if peer.kind == "person":
                await leader.commands.authorise_upload(peer)
            return await leader.transfers.received_so_far(peer, request)
        if isinstance(request, GetPagesAddress):  # the other servers ask, too
            return PagesAddress(url=self._served_pages().address)
        if isinstance(request, SITE_REQUESTS):
            if peer.kind != "site":
                raise RequestRefusedError(f"{peer} is not a site")
            return await self._from_site(leader, peer, request)
        return await self._from_user(leader, peer, request)

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        leader = await self._require_leader()
        if peer.kind != "site":
            await leader.commands.authorise_download(peer, request.job)
        async with aclosing(leader.transfers.fetch(peer, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        leader = await self._require_leader()
        if peer.kind != "site":
            await leader.commands.authorise_upload(peer)
        return await leader.transfers.put(peer, head, chunks)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        leader = await self._require_leader()
        async with aclosing(leader.commands.follow(peer, request)) as lines:
            async for line in lines:
                yield line
                if self.leader is not leader:
                    await self._require_leader()

    async def _require_leader(self) -> Leader:
        if self.leader is not None:
            return self.leader
        holder = await asyncio.to_thread(self._lease.current_holder)
        if holder is None or holder.server == self._name:
            raise RequestRefusedError(f"server {self._name} is not the leader, and no other server is yet", retry=True)
        raise RequestRefusedError(
            f"server {self._name} is a standby; the leader is {holder.server}", leader=holder.address, retry=True
        )

    @staticmethod
    async def _from_site(leader: Leader, peer: Peer, request: Request) -> Response:
        match request:
            case Hello():
                return await leader.hub.hello(peer, request)
            case Poll():
                return await leader.hub.poll(peer, request)
            case DeployResult():
                return await leader.hub.deploy_result(peer, request)
            case ControlResult():
                return leader.control.control_result(peer, request)
            case SubmitResult():
                return await leader.exchange.submit_result(peer, request)
        raise RequestRefusedError(f"a site may not send {type(request).__name__}")

    async def _from_user(self, leader: Leader, peer: Peer, request: Request) -> Response:
        commands = leader.commands
        match request:
            case SubmitJob():
                return await commands.submit(peer, request)
            case ListJobs():
                return await commands.jobs(peer, request)
            case AbortJob():
                return await commands.abort(peer, request)
            case ListSites():
                return await commands.sites(peer)
            case ControlSite():
                return await commands.control(peer, request)
            case GetStatus():
                return await self._status(leader, peer)
            case GetJobResult():
                return await commands.result(peer, request)
            case ReadAudit():
                return await commands.audit(peer, request)
            case ListApplications():
                return await commands.list_applications(peer)
            case DecideApplication():
                return await commands.decide(peer, request)
            case OpenLogin():
                links = self._served_pages()
                await commands.check_login(peer, request)
                return PagesAddress(url=links.open(request.certificate))
        raise RequestRefusedError(f"a person may not send {type(request).__name__}")

    def _served_pages(self) -> LoginLinks:
        if self._links is None:
            raise RequestRefusedError(f"server {self._name} serves no pages; its operator sets [ui] in server.toml")
        return self._links

    async def _status(self, leader: Leader, peer: Peer) -> ServerStatus:
        await leader.commands.authorise(peer, "status")
        holder = await asyncio.to_thread(self._lease.current_holder)
        return ServerStatus(
            server=self._name,
            leader=self._name,
            lease_token=leader.token,
            since=0.0 if holder is None else holder.since,
            winnow_version=self._version,
            sites=len(leader.hub.connected()),
            jobs=await asyncio.to_thread(self._queries.job_counts),
            notices=[*leader.scheduler.notices(), *leader.hub.notices()],
        )
