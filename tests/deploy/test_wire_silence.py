"""A server that says nothing is told from one behind a slow network."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_proxy import unsteady
from wiring import SpoolService, papers, serving

from winnow.deploy.wire.atomic_files import CHUNK
from winnow.deploy.wire.blob_transfer import upload_blob
from winnow.deploy.wire.errors import UnreachableError
from winnow.deploy.wire.messages import AbortJob, Acknowledgement, Blob, GetStatus, PutBlob
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_registry import open_link

SOON = 20.0
"""Seconds: far below a call's and a transfer's own limits, far above what it takes on a busy machine."""


def test_a_server_that_falls_silent_is_given_up_and_transfers_end_with_it(tmp_path: Path) -> None:
    service, ended, taken = SpoolService(tmp_path), list[float](), threading.Event()

    def chunks() -> Iterator[bytes]:
        while True:
            taken.set()
            yield b"x" * 1000
            time.sleep(0.05)

    with serving("grpc://127.0.0.1:0", service) as server, unsteady(server.url) as (url, proxy):
        link = open_link(url, papers("alpha"))

        def transfer() -> None:
            with pytest.raises(UnreachableError):
                link.put(PutBlob(job="j", blob=Blob(digest="0" * 64, size=2**30)), chunks())
            ended.append(time.monotonic())

        thread = threading.Thread(target=transfer)
        thread.start()
        assert taken.wait(SOON)
        assert link.call(AbortJob(job="j")) == Acknowledgement()
        proxy.silent = True
        begun = time.monotonic()
        with pytest.raises(UnreachableError) as lost:
            link.call(GetStatus(), timeout=50.0)
        assert "Deadline" not in str(lost.value)
        thread.join()
        assert ended[0] - begun < SOON
        link.close()


@pytest.mark.slow(part="deploy")
def test_a_slow_network_does_not_look_like_a_silent_server(tmp_path: Path) -> None:
    """A chunk of a transfer takes longer than an answer to a ping may: given up each time, it would never arrive."""
    service = SpoolService(tmp_path / "server")
    (tmp_path / "made").write_bytes(b"x" * 2 * CHUNK)
    blob = BlobFolder(tmp_path / "mine").adopt(tmp_path / "made")
    with (
        serving("grpc://127.0.0.1:0", service) as server,
        unsteady(server.url, rate=CHUNK / 12) as (url, _),
    ):
        link = open_link(url, papers("alpha"))
        upload_blob(link, "j", tmp_path / "mine" / blob.digest, blob)
        assert service.spool.has(blob)
        link.close()
