"""A PostgreSQL of our own for the tests: a cluster in a temporary folder, gone afterwards."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from support.needs import POSTGRES

PLACES = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True), Path("/usr/local/bin"), Path("/usr/bin")]
SETTINGS = "-c fsync=off -c listen_addresses='' -c max_connections=60 -c shared_buffers=16MB"
ROOM_BYTES = 4 * 1024**3
"""What the clusters of several workers take, a database of each test in them, and as much again."""


def binaries() -> Path | None:
    return next((place for place in PLACES if (place / "initdb").exists() and (place / "pg_ctl").exists()), None)


def unprivileged(folder: Path) -> list[str]:
    """PostgreSQL refuses to run as root: give the folder to its own user, and become that."""
    if os.geteuid() != 0:
        return []
    shutil.chown(folder, "postgres", "postgres")
    return ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def quietly(command: list[str | Path]) -> None:
    """Without a pipe: the server that it starts would keep it open."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd="/")


def scratch_place() -> str:
    """Memory where there is enough of it: deleting tens of thousands of small files takes a disk half a minute."""
    memory = Path("/dev/shm")
    return str(memory) if memory.is_dir() and shutil.disk_usage(memory).free >= ROOM_BYTES else "/tmp"


@contextmanager
def cluster() -> Iterator[str]:
    """A running cluster; gives the address of its socket's folder."""
    found = binaries()
    if found is None:
        POSTGRES.skip()
    folder = Path(tempfile.mkdtemp(prefix="winnow-pg-", dir=scratch_place()))
    try:
        become = unprivileged(folder)
    except LookupError:
        POSTGRES.skip("it does not run as root, and there is no user postgres")
    data, log = folder / "data", folder / "log"
    quietly([*become, found / "initdb", "-D", data, "-U", "winnow", "-A", "trust", "--no-sync"])
    options = f"{SETTINGS} -k {folder}"
    start = [*become, found / "pg_ctl", "-D", data, "-l", log, "-o", options, "-w", "start"]
    quietly(start)
    try:
        yield str(folder)
    finally:
        quietly([*become, found / "pg_ctl", "-D", data, "-m", "immediate", "stop"])
        shutil.rmtree(folder, ignore_errors=True)


def fresh_database(folder: str) -> str:
    """An empty database in the cluster; its URL."""
    import psycopg

    name = f"t{uuid4().hex[:12]}"
    with psycopg.connect(f"host={folder} user=winnow dbname=postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return f"postgresql://winnow@/{name}?host={folder}"
