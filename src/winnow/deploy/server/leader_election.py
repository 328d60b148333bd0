"""Leading and standing by: the server holds the lease if it can, and starts or stops leading accordingly."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from winnow.deploy.server.leader_services import Leader, ServerResources
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.request_router import RequestRouter

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.1
"""Seconds between checks whether the lease still holds."""


class LeaderElection:
    def __init__(self, resources: ServerResources, lease: Lease, router: RequestRouter) -> None:
        self._resources = resources
        self._lease = lease
        self._router = router
        self._leading: asyncio.Task[None] | None = None
        # A separate thread: renewing must not wait behind transfers.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lease")

    async def run(self) -> None:
        """Until cancelled; then whatever is under way is ended gracefully and the lease released."""
        renewing = asyncio.create_task(self._renew())
        try:
            while True:
                await self._check_lease()
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            renewing.cancel()
            try:
                await self._stop_leading(graceful=True)
                with suppress(SQLAlchemyError):
                    await asyncio.get_running_loop().run_in_executor(self._thread, self._lease.release)
            finally:
                self._thread.shutdown()

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        reachable = True
        while True:
            try:
                await loop.run_in_executor(self._thread, self._lease.acquire_or_renew)
                if not reachable:
                    log.info("the database responds again")
                reachable = True
            except SQLAlchemyError as error:
                if reachable:
                    log.error("the database does not respond; trying again: %s", str(error).split("\n", maxsplit=1)[0])
                reachable = False
            await asyncio.sleep(self._lease.retry_after)

    async def _check_lease(self) -> None:
        token, leader = self._lease.token, self._router.leader
        if leader is not None and token != leader.token:
            log.error("lost the lease; this server is now a standby, and its jobs continue under the next leader")
            await self._stop_leading(graceful=False)
        elif leader is not None and self._leading is not None and self._leading.done():
            log.error("this server failed as leader; it releases the lease and tries again: %s", self._failure_reason())
            self._lease.discard()
            await self._stop_leading(graceful=False)
        elif leader is None and token is not None:
            await self._start_leading(token)

    async def _start_leading(self, token: int) -> None:
        """Requests are answered once all jobs are resumed."""
        leader = Leader(self._resources, token)
        try:
            await leader.resume_jobs()
        except Exception as error:
            log.error("this server cannot become leader; it releases the lease and tries again: %s", error)
            self._lease.discard()
            await leader.stop(graceful=False)
            return
        self._leading = asyncio.create_task(leader.run())
        self._router.leader = leader
        log.info("this server is the leader (lease token %d)", token)

    async def _stop_leading(self, *, graceful: bool) -> None:
        leader, self._router.leader = self._router.leader, None
        leading, self._leading = self._leading, None
        if leading is not None:
            leading.cancel()
            await asyncio.wait([leading])
        if leader is not None:
            await leader.stop(graceful=graceful)

    def _failure_reason(self) -> str:
        error = None if self._leading is None or self._leading.cancelled() else self._leading.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return str(error).split("\n", maxsplit=1)[0]
