"""Ctrl-C while `winnow submit --wait` follows a job."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import call


def test_who_no_longer_waits_is_told_that_the_job_goes_on(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job = SimpleNamespace(name="first", state=lambda: SimpleNamespace(status="running"))

    @contextmanager
    def connected(_kit: Path) -> Iterator[Any]:
        yield SimpleNamespace(submit=lambda *_, **__: job)

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("winnow.cli.federation.job_commands.connected", connected)
    monkeypatch.setattr("winnow.deploy.client.job_progress.watch_job", interrupted)
    told = call(capsys, "submit", "demo", "--kit", str(tmp_path), "--wait")
    assert told.code == 130
    assert f"the job goes on; its result: winnow download first --kit {tmp_path}" in told.err
