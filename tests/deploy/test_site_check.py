"""`winnow site KIT --check` says what would make a job fail here. (With a server it is run by test_client_guide.)"""

from pathlib import Path

import pytest

from command_line import Outcome, call
from winnow.deploy.site import self_check

PROJECT = """
name = "study"
[[servers]]
name = "server-1"
organisation = "Institute"
hosts = ["localhost"]
port = 1
[[sites]]
name = "clinic"
organisation = "Clinic"
[[people]]
name = "ana"
organisation = "Institute"
role = "admin"
"""


@pytest.fixture
def kit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(self_check, "CONNECT_SECONDS", 0.0)
    Path("study.toml").write_text(PROJECT)
    assert call(capsys, "provision", "study.toml").code == 0
    return tmp_path / "study" / "kits" / "clinic"


def checked(capsys: pytest.CaptureFixture[str], kit: Path) -> Outcome:
    done = call(capsys, "site", str(kit), "--check")
    assert done.code == 1
    assert "not ready" in done.out
    return done


def test_a_bare_kit_lacks_data_a_policy_and_a_server(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = checked(capsys, kit).out
    assert "ok    kit: site clinic of Clinic" in out
    assert "FAILS data: site.toml names no data" in out
    assert "FAILS policy: there is no" in out
    assert "FAILS connection: grpc://localhost:1: no server is listening" in out
    assert not (kit / "state").exists(), "a check leaves nothing behind"


def test_data_are_read_as_a_job_would_read_them(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kit / "good.csv").write_text("a,b,y\n1,2,no\n3,4,yes\n5,6,yes\n")
    (kit / "bad.csv").write_text("a,b,y\n1,2,no\n3,4,maybe\n")
    table = '[data.{0}]\nfile = "{0}.csv"\ntargets = ["y"]\nclasses = ["no", "yes"]\n'
    (kit / "site.toml").write_text(table.format("good") + table.format("bad"))
    out = checked(capsys, kit).out
    assert "ok    data good: 1 client, 3 samples of 2 values, 2 classes (samples each: 1, 2)" in out
    assert "FAILS data bad: data.bad: there is a class 'maybe'" in out


def test_a_table_with_text_and_missing_values_is_ready_for_jobs_that_state_how_to_read_it(
    kit: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (kit / "stays.csv").write_text("age,ward,y\n1,east,no\n,west,yes\n5,,yes\n")
    (kit / "site.toml").write_text('[data.stays]\nfile = "stays.csv"\ntargets = ["y"]\n')
    line = (
        "ok    data stays: 1 client, 3 samples of 5 values, 2 classes (samples each: 1, 2); "
        "only for jobs that state a preprocessing, because of age (missing values), ward (text)"
    )
    assert line in checked(capsys, kit).out


def test_a_policy_is_held_against_the_data(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kit / "good.csv").write_text("a,y\n1,0.5\n3,0.1\n")
    (kit / "site.toml").write_text('[data.good]\nfile = "good.csv"\ntargets = ["y"]\n')
    (kit / "policy.toml").write_text('[[jobs]]\npeople = ["ana"]\ndata = ["goood"]\n')
    out = checked(capsys, kit).out
    assert "FAILS policy: a rule names data 'goood', which site.toml does not have" in out
    assert "FAILS policy: no [[jobs]] rule allows anybody to use data 'good'" in out
    (kit / "policy.toml").write_text("[[jobs]]\npeople = 3\n")
    assert "FAILS policy:" in checked(capsys, kit).out
    (kit / "policy.toml").write_text('[[jobs]]\npeople = ["ana"]\ndata = ["*"]\n')
    assert "ok    policy: ana may use any data, without code of their own" in checked(capsys, kit).out


def test_a_disk_that_is_too_small_is_noticed(kit: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (kit / "site.toml").write_text("disk_mb = 1_000_000_000\n")
    assert "but a job may write 1,000,000,000 MB" in checked(capsys, kit).out


def test_without_a_kit_there_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = call(capsys, "site", str(tmp_path / "none"), "--check")
    assert done.code == 2
    assert "does not exist; winnow provision creates kits" in done.err
