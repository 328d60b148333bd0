"""Large blobs pass through a server in bounded memory."""

from hashlib import sha256
from pathlib import Path

import pytest
from papers import kit_of
from serving import Person, ScriptedSite, ServerProcess, eventually, federation, job_config, of

from winnow.deploy.client.free_port import free_port
from winnow.deploy.wire.messages import (
    AssignTask,
    Blob,
    ClientResult,
    FetchBlob,
    GetJobResult,
    PutBlob,
    SubmitResult,
)

MB = 1 << 20
SIZE = 192
ROOM = 60


def peak_mb(process: ServerProcess) -> float:
    status = Path(f"/proc/{process.process.pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.slow(part="attacks")
def test_a_reply_and_a_checkpoint_of_many_megabytes_take_few(tmp_path: Path) -> None:
    """The reply comes in; the checkpoint made of it goes to the store, and out again to who downloads it."""
    port = free_port()
    kits = federation(tmp_path / "kits", (port,))
    config = tmp_path / "server.toml"
    config.write_text("join_wait = 0.2\n")
    endpoint = f"grpc://127.0.0.1:{port}"
    with (
        ServerProcess(kits / "kits" / "server-1", config, tmp_path / "log") as server,
        ScriptedSite(kit_of(kits, "plant-a"), (endpoint,), answers=False) as site,
        Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
    ):
        person.submit("job", tmp_path, job_config(1))
        order = eventually(lambda: of(AssignTask, site))[0]
        before = peak_mb(server)
        digest = sha256()
        for _ in range(SIZE):
            digest.update(b"x" * MB)
        blob = Blob(digest=digest.hexdigest(), size=SIZE * MB)
        site.link.put(PutBlob(job="job", blob=blob), (b"x" * MB for _ in range(SIZE)))
        first, second = order.task.clients
        site.link.call(
            SubmitResult(
                session=site.session, result=ClientResult(job="job", task=order.task.id, client=first, blob=blob)
            )
        )
        site.give("job", order.task.id, second, b"small")
        person.wait("job", "finished")
        checkpoint = person.link.call(GetJobResult(job="job")).checkpoint
        assert checkpoint.size > SIZE * MB
        assert sum(len(chunk) for chunk in person.link.fetch(FetchBlob(job="job", blob=checkpoint))) == checkpoint.size
        assert peak_mb(server) - before < ROOM
