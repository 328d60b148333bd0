"""Requests and who answers them. A server that does not lead says who does."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from winnow.deploy.server.leader import Leader
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.queries import Queries
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    AbortJob,
    ControlResult,
    ControlSite,
    DeployResult,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetStatus,
    GetUploadedSize,
    Hello,
    ListJobs,
    ListSites,
    LogLine,
    Poll,
    PutBlob,
    Request,
    Response,
    ServerStatus,
    SubmitJob,
    SubmitResult,
    UploadedSize,
)

SITE_REQUESTS = (Hello, Poll, DeployResult, ControlResult, SubmitResult)


class RequestRouter:
    """The `Service` that a transport puts before the world."""

    def __init__(self, *, name: str, version: str, lease: Lease, records: Queries) -> None:
        self._name = name
        self._version = version
        self._lease = lease
        self._records = records
        self.reign: Leader | None = None

    async def call(self, peer: Peer, request: Request) -> Response:
        reign = await self._leading()
        if isinstance(request, GetUploadedSize):
            if peer.kind == "person":
                await reign.commands.may_put(peer)
            return await reign.transfers.held(peer, request)
        if isinstance(request, SITE_REQUESTS):
            if peer.kind != "site":
                raise RequestRefusedError(f"{peer} is not a site")
            return await self._from_site(reign, peer, request)
        return await self._from_person(reign, peer, request)

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        reign = await self._leading()
        if peer.kind != "site":
            await reign.commands.may_fetch(peer, request.job)
        async with aclosing(reign.transfers.fetch(peer, request)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        reign = await self._leading()
        if peer.kind != "site":
            await reign.commands.may_put(peer)
        return await reign.transfers.put(peer, head, chunks)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        reign = await self._leading()
        async with aclosing(reign.commands.follow(peer, request)) as lines:
            async for line in lines:
                yield line
                if self.reign is not reign:
                    await self._leading()

    async def _leading(self) -> Leader:
        if self.reign is not None:
            return self.reign
        leader = await asyncio.to_thread(self._lease.leader)
        if leader is None or leader.server == self._name:
            raise RequestRefusedError(f"server {self._name} does not lead, and nobody else does yet", retry=True)
        raise RequestRefusedError(
            f"server {self._name} stands by; {leader.server} leads", leader=leader.address, retry=True
        )

    @staticmethod
    async def _from_site(reign: Leader, peer: Peer, request: Request) -> Response:
        match request:
            case Hello():
                return await reign.hub.hello(peer, request)
            case Poll():
                return await reign.hub.poll(peer, request)
            case DeployResult():
                return await reign.hub.joined(peer, request)
            case ControlResult():
                return reign.hub.controlled(peer, request)
            case SubmitResult():
                return await reign.hub.given(peer, request)
        raise RequestRefusedError(f"{type(request).__name__} is nothing for a site to ask")

    async def _from_person(self, reign: Leader, peer: Peer, request: Request) -> Response:
        commands = reign.commands
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
                return await self._status(reign, peer)
            case GetJobResult():
                return await commands.result(peer, request)
        raise RequestRefusedError(f"{type(request).__name__} is nothing for a person to ask")

    async def _status(self, reign: Leader, peer: Peer) -> ServerStatus:
        await reign.commands.authorise(peer, "status")
        leader = await asyncio.to_thread(self._lease.leader)
        return ServerStatus(
            server=self._name,
            leader=self._name,
            lease_token=reign.token,
            since=0.0 if leader is None else leader.since,
            winnow_version=self._version,
            sites=len(reign.hub.connected()),
            jobs=await asyncio.to_thread(self._records.counts),
            notices=reign.hub.notices(),
        )
