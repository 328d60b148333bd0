"""The files in deploy/ are well-formed, and the commands in them exist."""

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from support.needs import SYSTEMD
from winnow.cli.app import app
from winnow.learn.stack.native.load_or_compile_kernels import COMPILERS

FOLDER = Path(__file__).parents[2] / "deploy"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


def unit_of(path: Path) -> configparser.ConfigParser:
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read_string(path.read_text())
    return unit


def assert_exists(command: list[str]) -> None:
    """Winnow has this command, and it has these options."""
    known = get_command(app).commands[command[0]]
    options = {option for parameter in known.params for option in parameter.opts}
    assert {word for word in command if word.startswith("-")} <= options


def test_there_are_units_for_servers_and_sites() -> None:
    assert [unit.stem for unit in UNITS] == ["winnow-server", "winnow-site"]


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_runs_a_command_that_exists(path: Path) -> None:
    program, *command = shlex.split(unit_of(path)["Service"]["ExecStart"])
    assert Path(program).name == "winnow"
    assert_exists(command)
    assert Path(command[1]).is_relative_to(f"/var/lib/{unit_of(path)['Service']['StateDirectory']}")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_is_hardened_and_leaves_the_sandbox_possible(path: Path) -> None:
    service = unit_of(path)["Service"]
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "RestrictNamespaces", "RestrictSUIDSGID"):
        assert service[key] == "yes"
    assert service["ProtectSystem"] == "strict"
    assert "MemoryDenyWriteExecute" not in service
    calls = {"seccomp", "landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"}
    assert calls <= set(service["SystemCallFilter"].split())


@pytest.mark.slow(part="deploy")
@SYSTEMD.unless(shutil.which("systemd-analyze") is not None)
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_no_fault_in_a_unit(path: Path, tmp_path: Path) -> None:
    there = tmp_path / "winnow"
    there.write_text("#!/bin/sh\n")
    there.chmod(0o755)
    (tmp_path / path.name).write_text(path.read_text().replace("/opt/winnow/bin/winnow", str(there)))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / path.name], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_container_file_uses_files_that_exist() -> None:
    text = (FOLDER / "container" / "Containerfile").read_text().replace("\\\n", " ")
    copied = [word for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE) for word in line.split()[:-1]]
    assert copied
    for word in copied:
        assert (FOLDER.parent / word).exists()
    extras = re.search(r"/src\[([\w,]+)\]", text)
    assert extras is not None
    project = (FOLDER.parent / "pyproject.toml").read_text()
    for extra in extras[1].split(","):
        assert re.search(rf"^{extra} = \[", project, re.MULTILINE)
    assert 'ENTRYPOINT ["winnow"]' in text
    installed = re.search(r"apt-get install ([^&]+)", text)
    assert installed is not None
    assert set(installed[1].split()) & set(COMPILERS), "the native execution finds its compiler"


@pytest.mark.slow(part="deploy")
def test_the_container_files_steps_make_a_winnow_that_knows_its_commit(tmp_path: Path) -> None:
    """Its COPY and pip steps, in a clean folder and from what is installed here: no network, no daemon."""
    text = (FOLDER / "container" / "Containerfile").read_text().replace("\\\n", " ")
    source, installed, elsewhere = tmp_path / "src", tmp_path / "installed", tmp_path / "elsewhere"
    for line in re.findall(r"^COPY (.+)$", text, re.MULTILINE):
        *copied, target = line.split()
        for name in copied:
            place = tmp_path / target.strip("/")
            if (FOLDER.parent / name).is_dir():
                shutil.copytree(FOLDER.parent / name, place, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
            else:
                place.mkdir(exist_ok=True)
                shutil.copy(FOLDER.parent / name, place / name)
    assert "ARG WINNOW_COMMIT" in text
    environment = {**os.environ, "WINNOW_COMMIT": "0123456789ab"}
    steps = ["install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--target", str(installed)]
    subprocess.run([sys.executable, "-m", "pip", *steps, str(source)], env=environment, check=True)
    shutil.rmtree(source)
    elsewhere.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    for arguments, expected in ((["--version"], "(commit 0123456789ab)"), (["server", "--help"], "winnow server")):
        command = [sys.executable, "-m", "winnow.cli", *arguments]
        done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, check=True)
        assert expected in done.stdout


def test_the_compose_file_runs_two_servers_on_one_database() -> None:
    described = yaml.safe_load((FOLDER / "container" / "compose.yaml").read_text())
    servers = [each for name, each in described["services"].items() if name.startswith("server")]
    assert len(servers) == 2
    for server in servers:
        assert_exists(server["command"])
        assert server["depends_on"] == {"database": {"condition": "service_healthy"}}
    assert len({volume for server in servers for volume in server["volumes"]}) == 2
    named = {secret for service in described["services"].values() for secret in service["secrets"]}
    assert named == set(described["secrets"])
