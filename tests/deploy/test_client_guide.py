"""The guide to deployment, followed word by word on one machine: what runs until it is stopped runs beside the rest."""

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import winnow
from command_line import call
from waiting import eventually
from winnow.deploy.client.free_port import free_port

GUIDE = Path(__file__).parents[2] / "docs" / "deployment.md"
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def steps(text: str) -> list[tuple[str, str, str]]:
    """The blocks of a page, for this machine."""
    here = text.replace('hosts = ["fl.institute.example"]', f'hosts = ["127.0.0.1"]\nport = {free_port()}')
    return BLOCK.findall(here.replace("127.0.0.1:9464", f"127.0.0.1:{free_port()}"))


@contextmanager
def in_background() -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    running: dict[str, subprocess.Popen[bytes]] = {}
    try:
        yield running
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait(30)


def follow(text: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Do what a page says, in this folder; what the first command of each name answered."""
    said: dict[str, str] = {}

    def command(words: list[str]) -> str:
        done = call(capsys, *words)
        assert done.code == 0, done.err
        return done.out

    with in_background() as running:
        for kind, title, block in steps(text):
            if title:
                Path(title).write_text(block)
            elif kind == "python":
                exec(compile(block, "guide", "exec"), {})
                said["python"] = capsys.readouterr().out
            for line in re.findall(r"^\$ winnow (.+)$", block, flags=re.MULTILINE) if kind == "console" else ():
                words = shlex.split(line)
                if words[0] in ("server", "site") and "--check" not in words:
                    running[line] = subprocess.Popen([sys.executable, "-m", "winnow.cli", *words])
                    continue
                if "--check" in words:  # the server may still be starting
                    eventually(lambda words=words: call(capsys, *words).code == 0, "the site is ready")
                if words[0] == "sites":
                    wait_for_two(lambda words=words: command(words))
                name = f"{words[0]} --kit" if "--kit" in words and words[0] in said else words[0]
                said.setdefault(name, command(words))
        assert all(process.poll() is None for process in running.values())
    return said


@pytest.mark.slow(part="deploy")
def test_the_guide_leads_from_nothing_to_a_finished_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = GUIDE.read_text()
    said = follow(text[text.index("## Two organisations") : text.index("## Jobs")], capsys)
    assert said["site"].endswith("ready for jobs\n")
    assert said["submit"] == "first\n"
    assert "finished after round 3" in said["logs"]
    assert "finished, 3 rounds" in said["show"]
    assert said["python"].startswith("['clinic', 'institute']\n{'reference': {'accuracy'")
    assert Path("runs", "second", "best.safetensors").is_file()


@pytest.mark.slow(part="deploy")
def test_two_hospitals_get_the_answers_and_the_training_of_their_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    said = follow((GUIDE.parent / "between-two-hospitals.md").read_text(), capsys)
    assert said["site"].endswith("ready for jobs\n")
    assert said["query --kit"] == said["query"]
    assert said["fit --kit"] == said["fit"]
    assert said["submit"] == "first\n"
    assert "finished after round 6" in said["logs"]
    assert "finished, 6 rounds" in said["show"]


def wait_for_two(listed: Callable[[], str]) -> None:
    eventually(lambda: listed().count("connected") >= 2, "both sites are connected")


@pytest.mark.parametrize("word", ["winnow_leader", "winnow_sites_connected", "winnow_jobs", "winnow_rounds_committed"])
def test_the_guide_names_metrics_that_there_are(word: str) -> None:
    source = Path(winnow.__file__).parent / "deploy" / "server" / "prometheus_metrics.py"
    assert word in GUIDE.read_text()
    assert f'"{word}"' in source.read_text()
