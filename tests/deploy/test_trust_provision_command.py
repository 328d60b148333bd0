"""winnow provision, as a person uses it."""

from pathlib import Path

import pytest

from command_line import call
from winnow.deploy.trust.kit import Kit

PROJECT = """
name = "turbines"

[[servers]]
name = "server-1"
organisation = "Institute"
hosts = ["localhost"]

[[sites]]
name = "plant-a"
organisation = "Plant A"

[[people]]
name = "ana"
organisation = "Institute"
role = "lead"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project.toml"
    path.write_text(PROJECT)
    return path


def test_kits_are_made_renewed_and_revoked(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = call(capsys, "provision", project)
    kits = project.parent / "turbines" / "kits"
    assert made.code == 0
    assert made.out.splitlines()[0] == f"made {kits / 'server-1'}: server server-1 of Institute"
    assert "is not encrypted" in made.err
    assert "fingerprint" in made.err
    serial = Kit.load(kits / "ana").peer.serial
    assert call(capsys, "provision", project, "--renew", "ana").code == 0
    assert Kit.load(kits / "ana").peer.serial != serial
    revoked = call(capsys, "provision", project, "--revoke", "ana")
    assert f"hand out to server-1: {kits / 'server-1' / 'revoked.json'}" in revoked.out
    assert Kit.load(kits / "server-1").revocations.number == 1


def test_a_passphrase_comes_from_the_environment(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WINNOW_CA_PASSPHRASE", "sesame")
    assert "is not encrypted" not in call(capsys, "provision", project, "--out", project.parent / "there").err
    monkeypatch.delenv("WINNOW_CA_PASSPHRASE")
    refused = call(capsys, "provision", project, "--out", project.parent / "there")
    assert refused.code == 2
    assert "wrong passphrase" in refused.err


def test_a_passphrase_is_asked_for(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "sesame")
    assert call(capsys, "provision", project, "--passphrase").code == 0
    assert call(capsys, "provision", project, "--passphrase", "--renew", "ana").code == 0
    monkeypatch.setattr("typer.prompt", lambda *_, **__: "simsim")
    assert "wrong passphrase" in call(capsys, "provision", project, "--passphrase").err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"lead"', '"leader"', "people[0].role = 'leader' is unknown; did you mean 'lead'?"),
        ('"plant-a"', '"../plant-a"', "sites[0].name"),
        ('"plant-a"', '"ANA"', "the name 'ana' is used twice"),
        ('"plant-a"', '"plant-a\\n"', "sites[0].name"),
        ('["localhost"]', '["local host"]', "neither a host name nor an IP address"),
        ('["localhost"]', "[]", "servers[0].hosts"),
        ("[[sites]]", "[[site]]", "unknown key site"),
        ("[[sites]]", "[sites", "not a TOML file"),
        ('name = "turbines"', "", "name is missing"),
    ],
)
def test_a_mistake_in_the_project_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, said: str
) -> None:
    project.write_text(PROJECT.replace(old, new, 1))
    refused = call(capsys, "provision", project)
    assert refused.code == 2
    assert said in refused.err
    assert len(refused.err.splitlines()) == 1
    assert not (project.parent / "turbines").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--renew", "anna"), "the project has no party named 'anna'; did you mean 'ana'?"),
        (("--revoke", "anna"), "no certificate was issued to 'anna'; did you mean 'ana'?"),
        (("--renew", "ana", "--revoke", "ana"), "cannot be given together"),
        (("--renew", "ana", "--out", "nowhere"), "nowhere contains no CA"),
    ],
)
def test_a_mistake_in_the_options_is_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], said: str
) -> None:
    call(capsys, "provision", project)
    refused = call(capsys, "provision", project, *options)
    assert refused.code == 2
    assert said in refused.err.splitlines()[-1]
