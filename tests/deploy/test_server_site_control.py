"""A site's answer to a request to stop or restart reaches the person who asked for that, and nobody else."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from winnow.deploy.server import site_stop_and_restart
from winnow.deploy.server.site_stop_and_restart import SiteControl
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import ControlAgent, ControlResult


class Hub:
    """One connected site, whose agent answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[ControlAgent] = []
        self.sites: Any = {"site-1": SimpleNamespace(connection=SimpleNamespace(add=self.asked.append))}

    def connection(self, *_: object) -> None:
        """The session is the site's own."""


def answer(control: SiteControl, *, restart: bool, accepted: bool = True) -> None:
    result = ControlResult(session="s", restart=restart, accepted=accepted)
    control.control_result(SimpleNamespace(name="site-1"), result)  # type: ignore[arg-type]


def test_a_late_answer_is_not_taken_for_one_to_another_request(monkeypatch: pytest.MonkeyPatch) -> None:
    async def both() -> tuple[ControlResult | None, ControlResult | None]:
        control = SiteControl(Hub())  # type: ignore[arg-type]
        monkeypatch.setattr(site_stop_and_restart, "CONTROL_SECONDS", 0.01)
        first = await control.control("site-1", restart=False)
        monkeypatch.setattr(site_stop_and_restart, "CONTROL_SECONDS", 60.0)
        second = asyncio.create_task(control.control("site-1", restart=True))
        await asyncio.sleep(0)
        answer(control, restart=False, accepted=False)
        answer(control, restart=True)
        return first, await second

    first, second = asyncio.run(both())
    assert first is None
    assert second is not None
    assert (second.restart, second.accepted) == (True, True)


def test_the_same_is_not_asked_twice_at_a_time() -> None:
    async def twice() -> ControlResult | None:
        hub = Hub()
        control = SiteControl(hub)  # type: ignore[arg-type]
        first = asyncio.create_task(control.control("site-1", restart=False))
        await asyncio.sleep(0)
        with pytest.raises(RequestRefusedError, match="has just been asked"):
            await control.control("site-1", restart=False)
        answer(control, restart=False)
        assert len(hub.asked) == 1
        return await first

    assert asyncio.run(twice()) is not None


def test_a_site_that_is_not_connected_is_not_asked() -> None:
    with pytest.raises(RequestRefusedError, match="site-9 is not connected"):
        asyncio.run(SiteControl(Hub()).control("site-9", restart=False))  # type: ignore[arg-type]
