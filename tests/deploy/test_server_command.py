"""`winnow server`: what an operator sees."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from papers import audit_problems, kit_of
from postgres import fresh_database
from serving import eventually, federation

from winnow.cli.audit import _shared_database, _table
from winnow.core import ConfigError, WinnowError
from winnow.deploy.client.free_port import free_port
from winnow.deploy.server.app import own_address, run_server
from winnow.deploy.server.audit_store import DatabaseAuditStore
from winnow.deploy.server.config import ServerConfig
from winnow.deploy.server.database import Database
from winnow.deploy.trust.audit_log import AuditLog


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return federation(tmp_path_factory.mktemp("kits"), (free_port(), free_port())) / "kits"


def test_two_servers_on_one_host_must_be_told_apart(kits: Path) -> None:
    with pytest.raises(ConfigError, match=r"set address = 'grpc://HOST:PORT' in server.toml"):
        run_server(kits / "server-1", None)
    kit = kit_of(kits.parent, "server-1")
    assert own_address(kit, ServerConfig(address=kit.endpoints[1])) == kit.endpoints[1]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("lease = 'long'", "lease"),
        ("surprise = 1", "surprise"),
        ("join = 3.0", "join is now join_wait"),
        ("[limits]\nlines = 5", "limits.lines is now limits.log_lines"),
        ("lease = = 1", "server.toml"),
        ("address = 'grpc://127.0.0.1:1'\ndatabase = 'nonsense'", "not a database URL"),
    ],
)
def test_a_mistake_in_the_settings_is_one_line(kits: Path, tmp_path: Path, text: str, reason: str) -> None:
    config = tmp_path / "server.toml"
    config.write_text(text)
    with pytest.raises(WinnowError, match=reason) as refused:
        run_server(kits / "server-1", config)
    assert "\n" not in str(refused.value)


def test_settings_that_were_named_must_be_there(kits: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        run_server(kits / "server-1", tmp_path / "none.toml")


def test_the_kit_of_a_site_is_refused(kits: Path) -> None:
    with pytest.raises(WinnowError, match="this command needs the kit of a server"):
        run_server(kits / "plant-a", None)


def test_it_starts_logs_in_json_and_leaves_when_told_to(kits: Path, tmp_path: Path) -> None:
    config, log = tmp_path / "server.toml", tmp_path / "log"
    config.write_text(f"address = '{kit_of(kits.parent, 'server-1').endpoints[0]}'\n")
    command = [sys.executable, "-m", "winnow.cli", "server", str(kits / "server-1"), "--config", str(config)]
    migrated = subprocess.run([*command, "--migrate-only"], capture_output=True, text=True, check=True, umask=0)
    assert "is up to date" in migrated.stderr
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--json-logs"], stderr=output, env={**os.environ, "PYTHONUNBUFFERED": "1"}, umask=0
        )
    try:
        eventually(lambda: "this server is the leader (lease token 1)" in log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
    state = tmp_path / "state"
    assert {"server.db"} <= {path.name for path in state.rglob("*")}
    assert [path for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077] == []
    messages = [msgspec.json.decode(line)["message"] for line in log.read_bytes().splitlines()]
    assert any("is listening at grpc://0.0.0.0:" in message for message in messages)
    assert messages[-1] == "server server-1 stopped"


def test_a_server_imports_no_torch() -> None:
    code = "import sys, winnow.deploy.server.app; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def shared(postgres: str) -> str:
    return fresh_database(postgres)


def test_the_chain_of_servers_that_share_a_database_is_found_by_the_kit(shared: str, kits: Path) -> None:
    kit = kit_of(kits.parent, "server-2")
    assert _shared_database(kit.path) is None
    database = Database(shared)
    database.migrate()
    AuditLog(DatabaseAuditStore(database), kit).note("test")
    (kit.path / "server.toml").write_text(f"database = '{shared}'\n")
    url = _shared_database(kit.path)
    assert url is not None
    with _table(url) as store:
        assert len(list(store.lines())) == 1
        assert audit_problems(store, kit.authority) == []
    database.close()
