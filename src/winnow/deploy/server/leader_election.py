"""Leading and standing by: it holds the lease if it can, and begins or ends a reign accordingly."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from sqlalchemy.exc import SQLAlchemyError

from winnow.deploy.server.leader import Leader, ServerResources
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.request_router import RequestRouter

log = logging.getLogger(__name__)

CHECK_SECONDS = 0.1
"""Seconds between looks at whether the lease still holds."""


class LeaderElection:
    def __init__(self, estate: ServerResources, lease: Lease, service: RequestRouter) -> None:
        self._estate = estate
        self._lease = lease
        self._service = service
        self._rule: asyncio.Task[None] | None = None
        # A thread of its own: renewing must not wait behind transfers.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lease")

    async def occupy(self) -> None:
        """Until cancelled; then whatever is under way is ended kindly and the lease given back."""
        renewing = asyncio.create_task(self._renew())
        try:
            while True:
                await self._look()
                await asyncio.sleep(CHECK_SECONDS)
        finally:
            renewing.cancel()
            await self._depose(kindly=True)
            with suppress(SQLAlchemyError):
                await asyncio.get_running_loop().run_in_executor(self._thread, self._lease.release)
            self._thread.shutdown(wait=False)

    async def _renew(self) -> None:
        loop = asyncio.get_running_loop()
        reachable = True
        while True:
            try:
                await loop.run_in_executor(self._thread, self._lease.hold)
                reachable = True
            except SQLAlchemyError as error:
                if reachable:
                    log.error("the database does not answer: %s", str(error).split("\n", maxsplit=1)[0])
                reachable = False
            await asyncio.sleep(self._lease.pause)

    async def _look(self) -> None:
        token, reign = self._lease.token, self._service.reign
        if reign is not None and token != reign.token:
            log.error("the lease is lost: this server stands by")
            await self._depose(kindly=False)
        elif reign is not None and self._rule is not None and self._rule.done():
            log.error("leading failed (%s): beginning anew", self._why())
            self._lease.doubt()
            await self._depose(kindly=False)
        elif reign is None and token is not None:
            await self._crown(token)

    async def _crown(self, token: int) -> None:
        """Requests are answered once all jobs have been taken up."""
        reign = Leader(self._estate, token)
        try:
            await reign.begin()
        except Exception as error:
            log.error("cannot lead: %s", error)
            self._lease.doubt()
            await reign.end(kindly=False)
            return
        self._rule = asyncio.create_task(reign.rule())
        self._service.reign = reign
        log.info("this server leads (token %d)", token)

    async def _depose(self, *, kindly: bool) -> None:
        reign, self._service.reign = self._service.reign, None
        rule, self._rule = self._rule, None
        if rule is not None:
            rule.cancel()
            await asyncio.wait([rule])
        if reign is not None:
            await reign.end(kindly=kindly)

    def _why(self) -> str:
        error = None if self._rule is None or self._rule.cancelled() else self._rule.exception()
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return str(error).split("\n", maxsplit=1)[0]
