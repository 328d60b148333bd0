"""The comparison with other frameworks measures what it says, on a contender whose figures are known."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bench.rivals.contenders import CONTENDERS, Places, Rival
from bench.rivals.measure import FailedError, Start, measure, tree_bytes

from child_processes import running
from support.needs import PROC

CONTENDER = """
import json, sys, time
log, megabytes = sys.argv[1], int(sys.argv[2])
ballast = bytearray(megabytes << 20)
time.sleep(0.3)
for number in range(6):
    time.sleep(0.5 if number < 2 else 0.1)
    with open(log, "a") as file:
        file.write(json.dumps({"kind": "begin"}) + "\\n" if number == 0 else "")
        file.write(json.dumps({"kind": "round", "metric": number / 10}) + "\\n")
"""

pytestmark = PROC.unless(Path("/proc/self/statm").exists())


def start(folder, program, *arguments):
    log = folder / "log"
    command = [sys.executable, "-c", program, str(log), *arguments]
    return Start(command=command, environment={}, log=log, score=lambda finished: finished.get("metric"))


def test_a_contender_is_timed_from_its_start_weighed_and_scored(tmp_path):
    before = time.perf_counter()
    figures = measure(start(tmp_path, CONTENDER, "200"), tmp_path / "words")
    whole = time.perf_counter() - before
    assert 0.8 <= figures.first < whole
    assert 0 < figures.steady < (whole - figures.first) / 4, "of the four rounds after the second"
    assert 200 << 20 < figures.peak_bytes < 300 << 20
    assert (figures.score, figures.rounds) == (0.5, 6)


def test_one_that_fails_is_reported_by_its_last_words(tmp_path):
    with pytest.raises(FailedError, match="no such thing"):
        measure(start(tmp_path, "raise SystemExit('no such thing')"), tmp_path / "words")


def test_memory_of_children_counts():
    code = "import time; ballast = bytearray(100 << 20); print(flush=True); time.sleep(60)"
    alone = tree_bytes(os.getpid())
    with running([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        grown = tree_bytes(os.getpid()) - alone
    assert grown > 100 << 20


def test_a_rival_without_its_environment_is_left_out_by_name(tmp_path):
    places = Places(data=tmp_path, scripts=tmp_path, venvs=tmp_path)
    rivals = [contender for contender in CONTENDERS if isinstance(contender, Rival)]
    assert len(rivals) == 8
    for rival in rivals:
        assert rival.missing("mnist", places) in {f"no environment {tmp_path / rival.venv}", "not tried"}
