"""A large blob goes through a server and a site without being held in the memory of either."""

import shutil
import subprocess
import sys
from pathlib import Path

SIZE = 256 * 2**20
LIMIT = 60 * 2**20
HERE = Path(__file__).parent

PRELUDE = f"""
import sys
import msgspec
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from wiring import papers, serving, SpoolService
from winnow.deploy.wire.transport_registry import open_link
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.messages import AbortJob
from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.transport_interface import Tls

def peak():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))

folder = Path(sys.argv[1])
"""

SERVER = (
    PRELUDE
    + """
(folder / "papers").write_bytes(msgspec.msgpack.encode(papers("alpha")))
with serving("grpc://127.0.0.1:0", SpoolService(folder / "server")) as server:
    link = open_link(server.url, papers("alpha"))
    link.call(AbortJob(job="j"))
    link.close()
    before = peak()
    print(server.url, flush=True)
    sys.stdin.readline()
    print(peak() - before, flush=True)
"""
)

SITE = (
    PRELUDE
    + """
link = open_link(sys.argv[2], msgspec.msgpack.decode((folder / "papers").read_bytes(), type=Tls))
link.call(AbortJob(job="j"))
before = peak()
blob = blob_of(folder / "large")
upload_blob(link, "j", folder / "large", blob)
path = download_blob(link, "j", blob, BlobFolder(folder / "site"))
assert blob_of(path) == blob
link.close()
print(peak() - before)
"""
)


def test_memory_is_bounded_on_both_ends(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        for number in range(SIZE // 2**20):
            file.write(number.to_bytes(4, "little") * 2**18)
    command = [sys.executable, "-c"]
    with subprocess.Popen(
        [*command, SERVER, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        site = subprocess.run([*command, SITE, tmp_path, url], capture_output=True, text=True, check=False, timeout=60)
        grown, _ = server.communicate("end\n", timeout=60)
    assert site.returncode == 0, site.stderr
    assert int(site.stdout) < LIMIT, f"the site grew by {int(site.stdout) / 2**20:.0f} MB"
    assert int(grown) < LIMIT, f"the server grew by {int(grown) / 2**20:.0f} MB"
    shutil.rmtree(tmp_path)  # pytest keeps the folders of three runs
