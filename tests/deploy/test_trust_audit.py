"""The audit log: whatever is done to it afterwards is found, and a kill loses nothing that was said to be written."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from papers import audit_problems, kit_of, provision
from postgres import cluster, fresh_database
from sqlalchemy import text

from command_line import call
from winnow.deploy.server.audit_store import DatabaseAuditStore, shared_audit_log
from winnow.deploy.server.database import Database
from winnow.deploy.server.tables import AuditHeadRow, AuditRow
from winnow.deploy.trust.audit_chain import ADOPTED, START, AuditEntry, AuditLogOwner, ChainHead
from winnow.deploy.trust.audit_log import AuditLog, MakeEntry, verify_audit_log
from winnow.deploy.trust.audit_log_file import FileAuditStore, open_audit_log
from winnow.deploy.trust.errors import AuditError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import utc_now


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    provision(folder)
    return folder


@pytest.fixture(scope="module")
def kit(project: Path) -> Kit:
    return kit_of(project, "plant-a")


@dataclasses.dataclass
class InMemory:
    """The smallest store: what a database has to do."""

    kept: list[bytes] = dataclasses.field(default_factory=list)
    crowned: ChainHead | None = None

    def extend(self, make: MakeEntry, sign_head: Callable[[AuditEntry], ChainHead]) -> AuditEntry:
        entry = make(AuditEntry.parse(self.kept[-1]) if self.kept else None, self.crowned)
        self.kept.append(entry.line())
        self.crowned = sign_head(entry)
        return entry

    def lines(self) -> Iterator[bytes]:
        yield from self.kept

    def head(self) -> ChainHead | None:
        return self.crowned

    def close(self) -> None: ...


def fill(log: AuditLog, count: int) -> list[AuditEntry]:
    return [
        log.append(who="ana", organisation="Institute", what="submit", target=f"job-{number}", outcome="accepted")
        for number in range(count)
    ]


def a_log(path: Path, kit: Kit, count: int) -> list[AuditEntry]:
    log = open_audit_log(path, kit)
    entries = fill(log, count)
    log.close()
    return entries


def found(path: Path, kit: Kit) -> list[str]:
    return audit_problems(FileAuditStore(path), kit.authority)


texts = st.text(max_size=30) | st.text(alphabet=["\n", '"', "\\", "\r", "\u2028", "\udc80", "é"], max_size=8)


@settings(max_examples=60, deadline=None)
@given(rows=st.lists(st.tuples(texts, texts, texts, texts, texts), max_size=6))
def test_what_is_written_is_in_order_and_can_be_read_again(kit: Kit, rows: list[tuple[str, ...]]) -> None:
    store = InMemory()
    log = AuditLog(store, kit)
    for who, organisation, what, target, outcome in rows:
        entry = log.append(who=who, organisation=organisation, what=what, target=target, outcome=outcome)
        assert entry.who == who.replace("\udc80", "?")
    assert audit_problems(store, kit.authority) == []
    read = [AuditEntry.parse(line) for line in store.lines()]
    assert [entry and entry.seq for entry in read] == list(range(1, len(rows) + 1))


FIELDS = ["seq", "time", "who", "organisation", "what", "target", "outcome", "previous", "hash"]


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_edit_deletion_insertion_or_cut_is_found(kit: Kit, data: st.DataObject) -> None:
    store = InMemory()
    fill(AuditLog(store, kit), 6)
    lines = list(store.kept)
    at = data.draw(st.integers(0, 5), label="line")
    match data.draw(st.sampled_from(["field", "byte", "delete", "repeat", "swap", "cut", "rechain"])):
        case "field":
            field = data.draw(st.sampled_from(FIELDS))
            entry = msgspec.json.decode(lines[at])
            entry[field] = 17 if field == "seq" else entry[field] + "x"
            lines[at] = msgspec.json.encode(entry)
        case "byte":
            place = data.draw(st.integers(0, 1000)) % len(lines[at])
            flipped = lines[at][place] ^ data.draw(st.integers(1, 255))
            lines[at] = lines[at][:place] + bytes([flipped]) + lines[at][place + 1 :]
        case "delete":
            del lines[at]
        case "repeat":
            lines.insert(data.draw(st.integers(0, 6)), lines[at])
        case "swap":
            other = data.draw(st.integers(0, 5))
            assume(other != at)
            lines[at], lines[other] = lines[other], lines[at]
        case "cut":
            lines = lines[:at]
        case "rechain":
            lines = forged_from(lines, at)
    assert audit_problems(dataclasses.replace(store, kept=lines), kit.authority)


def forged_from(lines: list[bytes], at: int) -> list[bytes]:
    """Change an entry and make the chain anew behind it, as somebody can who has everything but the key."""
    entries = [entry for line in lines if (entry := AuditEntry.parse(line))]
    last = entries[at - 1] if at else None
    for place in range(at, len(entries)):
        fields = msgspec.structs.asdict(entries[place]) | {"previous": last.hash if last else START, "hash": ""}
        fields["who"] = "bo" if place == at else fields["who"]
        blank = AuditEntry(**fields)
        last = entries[place] = msgspec.structs.replace(blank, hash=blank.digest())
    return [entry.line() for entry in entries]


def test_a_head_signed_by_another_is_found(kit: Kit, project: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    foreign = tmp_path_factory.mktemp("foreign")
    provision(foreign)
    for owner, why in [
        (kit_of(foreign, "plant-a"), "was not issued by the CA"),
        (kit_of(project, "the-admin"), "signed by admin the-admin of Institute; expected site plant-a"),
        (kit_of(project, "plant-b"), "signed by site plant-b of Plant B; expected site plant-a"),
    ]:
        store = InMemory()
        fill(AuditLog(store, owner), 2)
        [problem] = audit_problems(store, kit.authority, AuditLogOwner(kind="site", name="plant-a"))
        assert why in problem
        assert audit_problems(store) == []


def test_a_file_goes_on_where_it_stopped(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first, second = a_log(path, kit, 3), a_log(path, kit, 2)
    assert [entry.seq for entry in (*first, *second)] == [1, 2, 3, 4, 5]
    assert second[0].previous == first[-1].hash
    assert found(path, kit) == []
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_torn_line_is_set_aside_and_noted(kit: Kit, tmp_path: Path, cut: int) -> None:
    """As a kill leaves it: the line is not whole, and its head was not written."""
    path = tmp_path / "audit.jsonl"
    a_log(path, kit, 2)
    head = (tmp_path / "audit.jsonl.head").read_bytes()
    whole = path.read_bytes()
    a_log(path, kit, 1)
    torn = path.read_bytes()[len(whole) : -cut]
    path.write_bytes(whole + torn)
    (tmp_path / "audit.jsonl.head").write_bytes(head)
    assert found(path, kit) == ["line 3 is not an entry"]
    a_log(path, kit, 1)
    assert found(path, kit) == []
    noted = AuditEntry.parse(path.read_bytes().splitlines()[2])
    assert noted is not None
    assert (noted.who, noted.what, noted.target) == ("plant-a", "audit recovered", f"torn line of {len(torn)} bytes")
    assert (tmp_path / "audit.jsonl.torn").read_bytes() == torn + b"\n"


def test_a_line_whose_head_was_not_written_counts_and_is_marked(kit: Kit, tmp_path: Path) -> None:
    path, head = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.head"
    a_log(path, kit, 2)
    for _ in range(3):
        a_log(path, kit, 0)
        before = head.read_bytes()
        a_log(path, kit, 1)
        head.write_bytes(before)
        assert found(path, kit) == []
    a_log(path, kit, 1)
    assert found(path, kit) == []
    whats = [entry.what for line in path.read_bytes().splitlines() if (entry := AuditEntry.parse(line))]
    assert [whats.count(ADOPTED), len(whats)] == [3, 9]
    head.write_bytes(before)
    assert "were not signed by the owner of the log" in found(path, kit)[0]


def write(path: Path, entries: list[AuditEntry]) -> None:
    path.write_bytes(b"".join(entry.line() + b"\n" for entry in entries))


def forged_after(last: AuditEntry) -> AuditEntry:
    about = {"who": "ana", "organisation": "Institute", "what": "submit", "target": "job-x", "outcome": "accepted"}
    return AuditEntry.following(last, at=utc_now(), **about)


def test_an_entry_forged_after_the_head_is_marked_for_ever(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody can tell it from an entry that a killed process had no time to sign, so the log says what it is."""
    kit = kit_of(project, "plant-a")
    path = kit.path / "audit.jsonl"
    entries = a_log(path, kit, 2)
    write(path, [*entries, forged_after(entries[-1])])
    assert "entry 3 is not signed: the writing process was killed" in call(capsys, "audit", "verify", kit.path).out
    for _ in range(2):
        a_log(path, kit, 1)
        seen = call(capsys, "audit", "verify", kit.path)
        assert (seen.code, seen.out.count("entry 3 was adopted"), seen.out.count("not signed")) == (0, 1, 1)
    for each in kit.path.glob("audit.jsonl*"):
        each.unlink()


def test_an_owner_that_is_killed_while_it_marks_an_entry_marks_it_anew(kit: Kit, tmp_path: Path) -> None:
    path, head = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.head"
    entries = a_log(path, kit, 2)
    before = head.read_bytes()
    write(path, [*entries, forged_after(entries[-1])])
    for _ in range(3):
        a_log(path, kit, 0)
        head.write_bytes(before)
    a_log(path, kit, 0)
    assert found(path, kit) == []
    assert len(path.read_bytes().splitlines()) == 4
    seen = verify_audit_log(FileAuditStore(path), kit.authority, AuditLogOwner(kind="site", name="plant-a"))
    assert [line.split(" on ")[0] for line in seen.unsigned] == ["entry 3 was adopted"]


def test_an_owner_signs_nothing_behind_a_chain_that_it_did_not_sign(kit: Kit, project: Path, tmp_path: Path) -> None:
    """Else one more entry of its own would vouch for all that somebody forged before."""
    path, head = tmp_path / "audit.jsonl", tmp_path / "audit.jsonl.head"
    honest = a_log(path, kit, 3)
    signed = head.read_bytes()
    path.write_bytes(b"\n".join([*forged_from([entry.line() for entry in honest], 1), b""]))
    with pytest.raises(AuditError, match="the signed head does not cover entry 3; run winnow audit verify"):
        open_audit_log(path, kit)
    path.unlink()
    head.unlink()
    a_log(path, kit_of(project, "plant-b"), 3)
    with pytest.raises(AuditError, match=r"signed by site plant-b of Plant B, not by site plant-a"):
        open_audit_log(path, kit)
    write(path, honest)
    head.write_bytes(signed)
    a_log(path, kit, 1)
    assert found(path, kit) == []


def refuses_what_no_server_signed(database: Database, project: Path) -> None:
    """Rows that somebody added who can write to the database, and holds no server's key."""
    log, store = shared_audit_log(database, kit_of(project, "server-1")), DatabaseAuditStore(database)
    last = AuditEntry.parse(list(store.lines())[-1])
    assert last is not None
    forged = forged_after(last)
    with database.write_session() as session:
        session.add(AuditRow(seq=forged.seq, line=forged.line().decode()))
        before = session.get_one(AuditHeadRow, 1).head
    with pytest.raises(AuditError, match="the signed head does not cover entry 4"):
        fill(log, 1)
    site = AuditLog(store, kit_of(project, "plant-a"))
    with database.write_session() as session:
        session.get_one(AuditHeadRow, 1).head = msgspec.json.encode(site.sign_head(forged))
    with pytest.raises(AuditError, match="signed by site plant-a of Plant A, not by server"):
        fill(log, 1)
    with database.write_session() as session:
        session.delete(session.get_one(AuditRow, forged.seq))
        session.get_one(AuditHeadRow, 1).head = before


def test_a_log_that_lost_entries_is_not_continued(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    a_log(path, kit, 4)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))
    assert found(path, kit) == ["entries are missing at the end: 4 were written, the log ends at 2"]
    for _ in range(2):
        with pytest.raises(AuditError, match="ends at entry 2, but its signed head covers 4"):
            open_audit_log(path, kit)
    path.write_bytes(b"rubbish\n")
    with pytest.raises(AuditError, match="has an invalid entry near its end"):
        open_audit_log(path, kit)


def test_one_process_writes_a_log(kit: Kit, tmp_path: Path) -> None:
    log = open_audit_log(tmp_path / "audit.jsonl", kit)
    with pytest.raises(AuditError, match="is in use by another process"):
        open_audit_log(tmp_path / "audit.jsonl", kit)
    log.close()
    with pytest.raises(AuditError, match="not open for writing"):
        fill(log, 1)


def test_threads_take_turns(kit: Kit, tmp_path: Path) -> None:
    log = open_audit_log(tmp_path / "audit.jsonl", kit)
    threads = [threading.Thread(target=fill, args=(log, 10)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert found(tmp_path / "audit.jsonl", kit) == []
    assert len((tmp_path / "audit.jsonl").read_bytes().splitlines()) == 40


def test_a_log_can_be_verified_while_it_is_written(kit: Kit, tmp_path: Path) -> None:
    log = open_audit_log(tmp_path / "audit.jsonl", kit)
    fill(log, 1)
    writer = threading.Thread(target=fill, args=(log, 60))
    writer.start()
    while writer.is_alive():
        assert found(tmp_path / "audit.jsonl", kit) == []
    log.close()


WRITER = """
import sys
from pathlib import Path
from winnow.deploy.trust.audit_log_file import open_audit_log
from winnow.deploy.trust.kit import Kit
log = open_audit_log(Path(sys.argv[1]), Kit.load(sys.argv[2]))
while True:
    print(log.note("tick").seq, flush=True)
"""


def test_kills_lose_nothing_that_was_acknowledged(kit: Kit, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    acknowledged = 0
    for lines in (1, 5, 12, 30):
        command = [sys.executable, "-c", WRITER, str(path), str(kit.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(lines):
                acknowledged = int(writer.stdout.readline())
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().splitlines()
        acknowledged = int(rest[-1]) if rest and rest[-1].isdigit() else acknowledged
    a_log(path, kit, 1)
    assert found(path, kit) == []
    assert len(path.read_bytes().splitlines()) > acknowledged


def test_a_full_disk_leaves_the_log_as_it_was(kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    log = open_audit_log(path, kit)
    fill(log, 2)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(descriptor, line[:20]))
    with pytest.raises(AuditError, match="the disk is full"):
        fill(log, 1)
    monkeypatch.undo()
    assert found(path, kit) == []
    assert fill(log, 1)[0].seq == 3
    log.close()
    assert found(path, kit) == []


# Commands -------------------------------------------------------------------------------------------------------------


def test_a_log_is_verified_by_its_kit_or_its_file(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = project / "kits" / "plant-b"
    a_log(folder / "audit.jsonl", Kit.load(folder), 3)
    whole = call(capsys, "audit", "verify", folder)
    signed = "none changed, signed by site plant-b of Plant B"
    assert (whole.code, whole.out, whole.err) == (0, f"{folder}: 3 entries, {signed}\n", "")
    moved = tmp_path / "audit.jsonl"
    for name in ("audit.jsonl", "audit.jsonl.head"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert "signer was not verified" in call(capsys, "audit", "verify", moved).err
    assert "with --owner" in call(capsys, "audit", "verify", moved, "--ca", folder / "ca.pem").err
    assert call(capsys, "audit", "verify", moved, "--ca", folder / "ca.pem", "--owner", "plant-b").err == ""
    other = call(capsys, "audit", "verify", moved, "--ca", folder / "ca.pem", "--owner", "plant-a")
    assert (other.code, other.out) == (
        1,
        "the head was signed by site plant-b of Plant B; expected plant-a\n",
    )
    moved.write_bytes(moved.read_bytes().replace(b"job-1", b"job-7"))
    edited = call(capsys, "audit", "verify", moved, "--ca", folder / "ca.pem")
    assert (edited.code, edited.out) == (1, "line 2: entry 2 was changed\n")
    missing = call(capsys, "audit", "verify", tmp_path / "nothing")
    assert (missing.code, missing.out) == (2, "")


def test_servers_that_share_a_database_have_their_log_in_it(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kit = kit_of(project, "server-1")
    assert "does not exist" in call(capsys, "audit", "verify", kit.path).err
    a_log(kit.path / "audit.jsonl", kit, 2)
    signed = "none changed, signed by server server-1 of Institute"
    assert call(capsys, "audit", "verify", kit.path).out == f"{kit.path}: 2 entries, {signed}\n"
    with cluster() as folder:
        url = fresh_database(folder)
        (kit.path / "server.toml").write_text(f'database = "{url}"\n')
        assert "cannot be read" in call(capsys, "audit", "verify", kit.path).err
        database = Database(url)
        database.migrate()
        fill(shared_audit_log(database, kit), 3)
        assert call(capsys, "audit", "verify", kit.path).out == f"{kit.path}: 3 entries, {signed}\n"
        refuses_what_no_server_signed(database, project)
        with database.write_session() as session:
            session.execute(text("UPDATE audit SET line = replace(line, 'ana', 'bo') WHERE seq = 2"))
        edited = call(capsys, "audit", "verify", kit.path)
        assert (edited.code, edited.out) == (1, "line 2: entry 2 was changed\n")
        database.close()


def test_a_log_is_shown(kit: Kit, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "audit.jsonl"
    a_log(path, kit, 5)
    shown = call(capsys, "audit", "show", path, "--last", 2)
    assert "job-3" in shown.out
    assert "job-2" not in shown.out
    as_json = call(capsys, "audit", "show", path, "--json")
    assert [msgspec.json.decode(line)["seq"] for line in as_json.out.splitlines()] == [1, 2, 3, 4, 5]
