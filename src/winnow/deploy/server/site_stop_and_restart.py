"""Requests of users that a site's agent stops or restarts, and its answers."""

import asyncio

from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import Acknowledgement, ControlAgent, ControlResult

CONTROL_SECONDS = 10.0
"""Seconds that a site has to answer."""


class SiteControl:
    def __init__(self, hub: SiteHub) -> None:
        self._hub = hub
        self._answers: dict[tuple[str, bool], asyncio.Future[ControlResult]] = {}
        """By site and by what it was asked (`restart`), while somebody waits."""

    async def control(self, site: str, *, restart: bool) -> ControlResult | None:
        """Ask a site's agent to stop or restart; its answer, or None if there is none yet."""
        session = self._hub.sites.get(site)
        if session is None or session.connection is None:
            raise RequestRefusedError(f"site {site} is not connected")
        if (site, restart) in self._answers:
            raise RequestRefusedError(f"site {site} has just been asked by somebody else; wait for its reply")
        answer: asyncio.Future[ControlResult] = asyncio.get_running_loop().create_future()
        self._answers[site, restart] = answer
        session.connection.add(ControlAgent(restart=restart))
        try:
            async with asyncio.timeout(CONTROL_SECONDS):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._answers[site, restart]

    def control_result(self, peer: Peer, message: ControlResult) -> Acknowledgement:
        self._hub.connection(peer, message.session)
        answer = self._answers.get((peer.name, message.restart))
        if answer is not None and not answer.done():
            answer.set_result(message)
        return Acknowledgement()
