"""Two hospitals with tables of text and missing values, from provisioning to predictions, by commands alone."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest
from test_client_guide import in_background

import winnow
from command_line import call
from waiting import eventually
from winnow.deploy.client.free_port import free_port

pytestmark = pytest.mark.slow(part="deploy")

PROJECT = """
name = "study"
[[servers]]
name = "server-1"
organisation = "Institute"
hosts = ["127.0.0.1"]
port = {port}
[[sites]]
name = "altona"
organisation = "Altona"
[[sites]]
name = "berne"
organisation = "Berne"
[[people]]
name = "ana"
organisation = "Institute"
role = "admin"
"""
TABLE = '[data.stays]\n{key} = "../../../{file}"\ntargets = ["diagnosis"]\n'
POLICY = '[[jobs]]\npeople = ["ana"]\ndata = ["stays"]\nown_code = true\n'
PROGRAM = """
import json, winnow
from winnow.data import Preprocessing

stated = Preprocessing.from_json(json.loads({stated!r}))
winnow.run(
    data="stays", preprocessing=stated, model="mlp", metric="auc", algorithm="fedavg", rounds=8, seed=1,
    select=1.0, job={{"min_sites": 2}},
)
"""


def patients(seed: int, rows: int) -> pandas.DataFrame:
    rng = np.random.default_rng(seed)
    glucose = rng.normal(6, 2, rows)
    frame = pandas.DataFrame(
        {
            "age": rng.integers(20, 90, rows).astype(float),
            "glucose": glucose,
            "ward": rng.choice(["east", "west"], rows),
            "diagnosis": np.where(glucose > 6, "ill", "well"),
        }
    )
    frame.loc[::5, "age"], frame.loc[::6, "ward"] = np.nan, None
    return frame


def test_they_train_together_on_raw_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(PROJECT.format(port=free_port()))
    reference = patients(0, 200)
    reference.to_csv("reference.csv", index=False)
    berne = patients(2, 150)
    berne["glucose"] *= 18  # in mg/dL
    for name, rows in (("altona", patients(1, 150)), ("berne", berne)):
        rows.to_csv(f"{name}.csv", index=False)
    stated = winnow.data.from_frame(reference, targets="diagnosis").preprocessing
    Path("mine.py").write_text(PROGRAM.format(stated=json.dumps(stated.to_json())))

    def command(*words: str) -> str:
        done = call(capsys, *words)
        assert done.code == 0, done.err
        return done.out

    command("provision", "study.toml")
    kits = Path("study/kits")
    (kits / "server-1" / "server.toml").write_text(TABLE.format(key="reference", file="reference.csv"))
    for site in ("altona", "berne"):
        (kits / site / "site.toml").write_text(TABLE.format(key="file", file=f"{site}.csv"))
        (kits / site / "policy.toml").write_text(POLICY)
    person = ("--kit", str(kits / "ana"))
    with in_background() as running:
        for words in (("server", "server-1"), ("site", "altona"), ("site", "berne")):
            line = [sys.executable, "-m", "winnow.cli", words[0], str(kits / words[1])]
            running[words[1]] = subprocess.Popen(line)
        eventually(lambda: call(capsys, "site", str(kits / "berne"), "--check").code == 0, "the site is ready")
        eventually(lambda: call(capsys, "sites", *person).out.count("connected") >= 2, "both sites are connected")
        command("submit", "mine.py", *person, "--name", "first", "--wait", "--out", "first")
        log = command("logs", "first", *person)
    assert "site berne: column 'glucose' is about 16 times larger than the job states: other units?" in log
    assert "site altona: column" not in log
    model = winnow.load("first")
    assert model.predict([{"age": 50, "glucose": 12.0, "ward": "east"}, {"glucose": 1.0}]).tolist() == ["ill", "well"]
