"""The pages of `winnow ui`: what they show of runs, and of run folders that somebody made to do harm."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.requests import ClientDisconnect

import winnow
from web_client import WebClient
from winnow.core import RoundFinished, Selected
from winnow.report.plot_data import ParticipationCounts
from winnow.runs import RunFolder
from winnow.runs.atomic_write import FileLock
from winnow.runs.event_log import encode_event
from winnow.web.app import create_app
from winnow.web.live_run import follow_run
from winnow.web.log_tail import LogCutBack, LogTail
from winnow.web.request_guard import Access
from winnow.web.run_files import open_download
from winnow.web.run_index import RunIndex
from winnow.web.run_page import FileDownload
from winnow.web.selection_map import selection_map
from winnow.web.serve import run_page_sets

SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one experiment and one of another, which cost the time of one."""
    folder = tmp_path_factory.mktemp("made")
    x = np.random.default_rng(1).normal(size=(120, 3)).astype(np.float32)
    data, first = (x, (x.sum(1) > 0).astype(int)), folder / "rate0.1-seed0"
    winnow.run(data=data, clients=3, rounds=3, seed=0, progress=False, local={"learning_rate": 0.1}, out=first)
    for seed, rate in ((1, 0.1), (0, 0.5)):
        copy = shutil.copytree(first, folder / f"rate{rate}-seed{seed}")
        edit(copy / "run.json", lambda table, seed=seed: table.update(seed=seed))
        text = (first / "config.toml").read_text()
        (copy / "config.toml").write_text(text.replace("learning_rate = 0.1", f"learning_rate = {rate}"))
        log = (first / "events.jsonl").read_text()
        (copy / "events.jsonl").write_text(log.replace('"loss":0.', f'"loss":{seed + rate:.0f}.'))
        (copy / "checkpoint.safetensors").unlink()
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> Path:
    return shutil.copytree(made, tmp_path / "runs")


@pytest.fixture
def client(runs: Path) -> WebClient:
    return logged_in(runs)


def logged_in(*folders: Path) -> WebClient:
    access = Access.loopback(8765)
    client = WebClient(create_app(access, run_page_sets(folders)))
    assert client.get("/", params={"token": access.token}).status == 303
    return client


def keys(*folders: Path) -> dict[str, str]:
    """The keys of the runs below, by folder."""
    return {run.shown: run.key for run in RunIndex(folders).runs()}


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def unfinish(folder: Path) -> None:
    """As a run that was killed leaves its folder."""
    for name in ("result.json", "evaluation.json", "checkpoint.safetensors"):
        (folder / name).unlink(missing_ok=True)


def finished_round(number: int, accuracy: float) -> bytes:
    metrics = {"reference": {"accuracy": accuracy, "loss": 1.0}}
    none = np.zeros(0, np.int64)
    return encode_event(
        RoundFinished(round=number, at=60.0 * number, version=number, metrics=metrics, aggregated=none, joules=3600.0)
    )


# What is shown --------------------------------------------------------------------------------------------------------


def test_the_list_has_every_run_with_its_result(client: WebClient, runs: Path) -> None:
    text = client.get("/").text
    for name, key in keys(runs).items():
        best = json.loads((runs / name / "result.json").read_text())["best"]["value"]
        row = text.partition(f'href="/runs/{key}"')[2].partition("</tr>")[0]
        assert f"{best:.4f}" in row
        assert 'data-verdict="finished"' in row


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", {"rate0.1-seed0", "rate0.1-seed1", "rate0.5-seed0"}),
        ("local.learning_rate=0.5", {"rate0.5-seed0"}),
        ("learning_rate=0.1 seed=1", {"rate0.1-seed1"}),
        ("finished RATE0.1", {"rate0.1-seed0", "rate0.1-seed1"}),
        ("learning_rate=0", set()),
        ("<script>", set()),
    ],
)
def test_runs_are_found_by_words_and_settings(client: WebClient, runs: Path, query: str, found: set[str]) -> None:
    text = client.get("/", params={"q": query}).text
    assert {name for name, key in keys(runs).items() if f'"/runs/{key}"' in text} == found
    assert "<script>" not in text


def test_a_run_has_curves_clients_costs_privacy_configuration_and_files(client: WebClient, runs: Path) -> None:
    text = client.get(f"/runs/{keys(runs)['rate0.1-seed0']}").text
    for part in ("Clients", "Summary", "Progress", "Losses", "Costs", "Who learns what", "Selection by round", "Files"):
        assert part in text, part
    assert "Against device time" in text
    assert "Against energy" in text
    assert unescape(text).count("learning_rate = 0.1") == 1


def test_files_are_served_by_their_names_alone(client: WebClient, runs: Path) -> None:
    key = keys(runs)["rate0.1-seed0"]
    answer = client.get(f"/runs/{key}/files/metrics.csv")
    assert answer.content == (runs / "rate0.1-seed0" / "metrics.csv").read_bytes()
    assert answer.headers["content-disposition"].startswith("attachment")
    for name in ("best.safetensors", "checkpoint.safetensors", "lock", "nothing", "CONFIG.TOML", "config.toml%00.csv"):
        assert client.get(f"/runs/{key}/files/{name}").status == 404, name


def test_runs_are_compared_with_the_settings_that_differ(client: WebClient, runs: Path) -> None:
    found = keys(runs)
    text = client.get("/compare?" + "&".join(f"run={key}" for key in found.values())).text
    settings = text.partition("Settings that differ")[2].partition("</section>")[0]
    assert "local.learning_rate" in settings.replace("<wbr>", "")
    assert "seed" not in settings.partition("<tbody>")[2].replace("-seed", "")
    assert "mean of 2" in text
    assert "Thin lines are single seeds" in text
    same = client.get(f"/compare?run={found['rate0.1-seed0']}&run={found['rate0.1-seed1']}").text
    assert "None but the seed" in same


def test_a_comparison_of_nothing_much_says_what_to_do(client: WebClient, runs: Path) -> None:
    key = keys(runs)["rate0.1-seed0"]
    for query in ("", f"?run={key}", f"?run={key}&run={key}"):
        assert "Tick two or more runs" in client.get(f"/compare{query}").text
    assert client.get("/compare?run=0123").status == 404
    assert "at most" in client.get("/compare?" + "&".join(f"run={number}" for number in range(201))).text


def test_different_metrics_are_not_compared(client: WebClient, runs: Path) -> None:
    found = keys(runs)
    edit(runs / "rate0.1-seed0" / "run.json", lambda table: table.update(metric="other"))
    (runs / "rate0.1-seed0" / "checkpoint.safetensors").unlink(missing_ok=True)
    answer = client.get(f"/compare?run={found['rate0.1-seed0']}&run={found['rate0.1-seed1']}")
    assert answer.status == 400
    assert "different metrics" in answer.text


def test_a_download_is_closed_when_the_browser_has_gone(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("round\n1\n")
    file = open_download(tmp_path, "metrics.csv")
    assert file is not None

    async def gone(message: Any) -> None:
        raise OSError("the connection was lost")

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    with pytest.raises(ClientDisconnect):
        asyncio.run(FileDownload(file, "metrics.csv")(scope, receive, gone))
    assert file.closed


def test_an_answer_has_its_page(tmp_path: Path) -> None:
    rows = "ward,cost\n" + "".join(f"{ward},{cost}\n" for ward in ("heart", "eye") for cost in range(20))
    for owner in ("a", "b"):
        (tmp_path / f"{owner}.csv").write_text(rows)
    (tmp_path / "federation.toml").write_text(
        '[tables.stays]\nfiles = ["a.csv", "b.csv"]\n[tables.stays.columns]\n'
        'ward = { level = "public", values = ["heart", "eye"] }\n'
        'cost = { level = "protected", bounds = [0, 100] }\n'
    )
    winnow.stats("stays", federation=tmp_path / "federation.toml", folder=tmp_path / "runs" / "stats", histograms=5)
    winnow.query(
        "SELECT ward, COUNT(*) AS n, AVG(cost) AS mean FROM stays GROUP BY ward",
        tmp_path / "federation.toml",
        folder=tmp_path / "runs" / "query",
    )
    winnow.fit("linear", "cost ~ C(ward)", tmp_path / "federation.toml", folder=tmp_path / "runs" / "fit")
    client, found = logged_in(tmp_path / "runs"), keys(tmp_path / "runs")
    assert all(f"/runs/{key}" in client.get("/questions").text for key in found.values())
    assert not any(f"/runs/{key}" in client.get("/").text for key in found.values())
    told = client.get(f"/runs/{found['query']}").text
    assert "GROUP BY ward" in unescape(told)
    assert 'class="plot"' in told
    assert "<td>40</td>" in told
    assert "9.5" in told
    assert "Distribution of cost" in client.get(f"/runs/{found['stats']}").text
    fitted = client.get(f"/runs/{found['fit']}").text
    assert '<th scope="row">Intercept</th><td>9.5' in fitted
    (drawn,) = re.findall(r'<script type="application/json">(.*?)</script>', fitted)
    assert "ward" in drawn
    assert "Intercept" not in drawn, "it has a scale of its own"
    assert client.get(f"/compare?run={found['stats']}&run={found['query']}").status == 400


# States and live changes ----------------------------------------------------------------------------------------------


def test_states(runs: Path) -> None:
    folders = sorted(path.name for path in runs.iterdir())
    running, killed, damaged = folders
    unfinish(runs / running)
    unfinish(runs / killed)
    (runs / damaged / "result.json").write_text("{")
    lock = FileLock(runs / running / "lock")
    states = {run.shown: run.state for run in RunIndex([runs]).runs()}
    lock.release()
    assert states == {running: "running", killed: "interrupted", damaged: "damaged"}


def test_looking_never_keeps_a_run_from_starting(runs: Path) -> None:
    folder = runs / "rate0.1-seed0"
    unfinish(folder)
    index = RunIndex([runs])
    for _ in range(50):
        index._looked = -1e9
        index.refresh()
        FileLock(folder / "lock").release()


def test_the_list_follows_the_folders(runs: Path) -> None:
    index = RunIndex([runs])
    before = {run.shown: run.rounds for run in index.runs()}
    version = index.version

    def again() -> dict[str, int]:
        index._looked = -1e9
        return {run.shown: run.rounds for run in index.runs()}

    assert again() == before
    assert index.version == version
    unfinish(runs / "rate0.1-seed0")
    with (runs / "rate0.1-seed0" / "events.jsonl").open("ab") as log:
        log.write(finished_round(7, 0.5)[:-9])
        log.flush()
        assert again()["rate0.1-seed0"] == 3  # a line that is being written is not there yet
        log.write(finished_round(7, 0.5)[-9:])
    assert again()["rate0.1-seed0"] == 7
    shutil.rmtree(runs / "rate0.5-seed0")
    assert "rate0.5-seed0" not in again()
    assert index.version > version


def test_a_page_hears_of_new_rounds_once(runs: Path) -> None:
    folder = runs / "rate0.1-seed0"
    unfinish(folder)
    run = next(run for run in RunIndex([runs]).runs() if run.shown == folder.name)
    shown = len((folder / "metrics.csv").read_text().splitlines()) - 1
    look = follow_run(run, after=shown)
    assert look() is None
    with (folder / "events.jsonl").open("ab") as log:
        log.write(finished_round(4, 0.99))
    news = look()
    assert news is not None
    assert [(row["round"], row["reference.accuracy"]) for row in news["rows"]] == [(4, 0.99)]
    assert news["facts"]["Last accuracy"] == "0.9900"
    assert news["id"] == shown + 1
    assert look() is None
    back = follow_run(run, after=news["id"] - 1)()  # a browser that lost the connection before the last round
    assert back is not None
    assert len(back["rows"]) == 1
    with (folder / "events.jsonl").open("r+b") as log:
        log.truncate(100)
    cut = look()
    assert cut is not None
    assert cut["restart"]


def test_the_stream_says_so(client: WebClient, runs: Path) -> None:
    unfinish(runs / "rate0.1-seed0")
    key = keys(runs)["rate0.1-seed0"]
    assert f'data-live="/runs/{key}/live?after=4"' in client.get(f"/runs/{key}").text
    answer = client.get(f"/runs/{key}/live?after=2", stop_after=3)
    assert answer.headers["content-type"].startswith("text/event-stream")
    retry, number, data = answer.text.split("\n", 3)[0], *answer.text.split("\n")[2:4]
    assert retry.startswith("retry: ")
    assert number == "id: 4"
    assert [row["round"] for row in json.loads(data.removeprefix("data: "))["rows"]] == [2, 3]


def test_a_log_that_is_cut_back_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    assert list(LogTail(path).new_events()) == []
    path.write_bytes(finished_round(1, 0.1) + finished_round(2, 0.2))
    tail = LogTail(path)
    assert [event.round for event in tail.new_events()] == [1, 2]
    path.write_bytes(finished_round(1, 0.1))
    with pytest.raises(LogCutBack):
        list(tail.new_events())


def test_selections_of_many_clients_are_counted_by_condition() -> None:
    rng = np.random.default_rng(5)
    of_client = rng.integers(0, 3, 1_000)
    clients = ParticipationCounts(labels=("a", "<b>", "c"), of_client=of_client, selections=of_client)
    drawn = [rng.choice(1_000, 50, replace=False) for _ in range(4)]
    events = [
        Selected(round=number, at=0.0, version=0, clients=chosen, counts=np.ones(50, np.int64))
        for number, chosen in zip((2, 1, 3, 4), drawn, strict=True)
    ]
    figure = selection_map(events, clients)
    assert figure is not None
    ordered = [drawn[1], drawn[0], drawn[2], drawn[3]]
    share = [[np.mean(np.isin(np.flatnonzero(of_client == each), chosen)) for chosen in ordered] for each in range(3)]
    np.testing.assert_allclose(figure.data[0].z, share)
    assert list(figure.data[0].x) == [1, 2, 3, 4]
    assert (figure.layout.xaxis.title.text, figure.layout.xaxis.dtick) == ("Round", 1)
    assert figure.data[0].customdata[1][0] == "&lt;b&gt;"


# Liars ----------------------------------------------------------------------------------------------------------------


def test_names_are_text(client: WebClient, runs: Path) -> None:
    folder = (runs / "rate0.1-seed0").rename(runs / "<img src=x onerror=alert(2)>")
    scores = {"name": SCRIPT, "samples": 1, "metrics": {SCRIPT: 1.0}}
    edit(
        folder / "evaluation.json",
        lambda table: table.update(classes=[SCRIPT, "b"], notes=[SCRIPT], by_client=[scores]),
    )
    edit(folder / "run.json", lambda table: table.update(name=SCRIPT, algorithm=SCRIPT, machine=SCRIPT, commit=SCRIPT))
    edit(
        folder / "conditions.json",
        lambda table: table.update(labels=[SCRIPT] * len(table["labels"]), names=[SCRIPT] * len(table["of_client"])),
    )
    (folder / "config.toml").write_text(f'name = "{SCRIPT}"\nrounds = 3\n')
    (folder / "checkpoint.safetensors").unlink()
    found = keys(runs)
    pages = ["/", f"/runs/{found[folder.name]}", f"/compare?run={found[folder.name]}&run={found['rate0.1-seed1']}"]
    for page in pages:
        text = client.get(page).text
        assert "alert(" in text
        assert "<script>alert" not in text
        assert "<img" not in text


@pytest.mark.parametrize("name", ["run.json", "config.toml", "conditions.json", "events.jsonl", "result.json"])
def test_links_are_not_followed(client: WebClient, runs: Path, tmp_path: Path, name: str) -> None:
    folder, secret = runs / "rate0.1-seed0", tmp_path / "secret"
    shutil.copy(folder / name, secret)
    (folder / name).unlink()
    (folder / name).symlink_to(secret)
    key = keys(runs)["rate0.1-seed0"]
    text = client.get(f"/runs/{key}").text
    assert f"{name} is a link" in text
    assert client.get(f"/runs/{key}/files/{name}").status in (400, 404)


def test_a_link_that_comes_after_the_look_is_refused(client: WebClient, runs: Path, tmp_path: Path) -> None:
    key, folder = keys(runs)["rate0.1-seed0"], runs / "rate0.1-seed0"
    assert client.get(f"/runs/{key}").status == 200
    (tmp_path / "secret").write_text("mine")
    (folder / "metrics.csv").unlink()
    (folder / "metrics.csv").symlink_to(tmp_path / "secret")
    assert "mine" not in client.get(f"/runs/{key}/files/metrics.csv").text
    assert "metrics.csv is a link" in client.get(f"/runs/{key}").text


def test_folders_behind_links_are_not_runs(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(runs / "rate0.1-seed0", other / "run")
    (runs / "link").symlink_to(other)
    (runs / "loop").symlink_to(runs)
    assert len(keys(runs)) == 3


@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "lock"])
def test_a_pipe_keeps_nobody_waiting(client: WebClient, runs: Path, name: str) -> None:
    folder = runs / "rate0.1-seed0"
    unfinish(folder)
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)
    assert client.get("/").status == 200
    assert client.get(f"/runs/{keys(runs)['rate0.1-seed0']}").status == 200


def test_giants_are_not_read(client: WebClient, runs: Path) -> None:
    with (runs / "rate0.1-seed0" / "config.toml").open("r+b") as file:
        file.truncate(2**33)
    assert "config.toml is larger than" in client.get(f"/runs/{keys(runs)['rate0.1-seed0']}").text


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("events.jsonl", "{}\n"),
        ("events.jsonl", '{"kind":"round_finished","round":"x"}\n'),
        ("config.toml", "[[["),
        ("conditions.json", '{"labels": [], "of_client": [1]}'),
        ("evaluation.json", "{"),
        ("result.json", '{"rounds": "many"}'),
        ("run.json", "[" * 100_000),
    ],
)
def test_damage_is_one_line_and_hides_no_other_run(client: WebClient, runs: Path, file: str, content: str) -> None:
    (runs / "rate0.1-seed0" / file).write_text(content)
    found = keys(runs)
    answer = client.get(f"/runs/{found['rate0.1-seed0']}")
    assert answer.status in (200, 400)
    assert "damaged" in answer.text or "has changed" in answer.text
    assert client.get(f"/runs/{found['rate0.1-seed1']}").status == 200
    assert client.get("/").status == 200


@pytest.mark.parametrize(
    "way",
    [
        *("../secret", "..%2Fsecret", "%2e%2e/secret", "%2e%2e%2fsecret", "..%252Fsecret", "....//secret"),
        *(
            "..\\secret",
            "..%5Csecret",
            "%c0%ae%c0%ae/secret",
            "/etc/passwd",
            "%2Fetc%2Fpasswd",
            "config.toml/../../secret",
        ),
    ],
)
def test_no_path_leads_out(client: WebClient, runs: Path, way: str) -> None:
    (runs.parent / "secret").write_text("mine")
    key = keys(runs)["rate0.1-seed0"]
    for address in (f"/runs/{key}/files/{way}", f"/runs/{way}", f"/static/{way}", f"/{way}", f"/compare?run={way}"):
        answer = client.get(address)
        assert "mine" not in answer.text
        assert answer.status in (200, 400, 404)
        assert answer.status != 200 or "Tick two" in answer.text
    assert client.get("/runs/" + "x" * 5000).status == 404


def test_an_answer_that_was_exchanged_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "q"
    folder.mkdir(parents=True)
    label = {"schema": 2, "name": "q", "algorithm": "query", "seed": 0, "metric": "", "kind": "query", "clock": "none"}
    (folder / "run.json").write_text(json.dumps(label))
    (folder / "config.toml").write_text("")
    (folder / "conditions.json").write_text('{"labels": ["as given"], "of_client": [0]}')
    (folder / "result.json").write_text('{"rounds": 0}')
    (folder / "answer.json").write_text('{"kind": "query"}')
    client = logged_in(tmp_path / "runs")
    answer = client.get(f"/runs/{keys(tmp_path / 'runs')['q']}")
    assert answer.status == 400
    assert "not the answer that the run gave" in answer.text


@pytest.mark.parametrize(
    ("file", "found", "put"),
    [
        ("config.toml", "rounds = 3", "rounds = 3\ndeep = " + "[" * 5_000 + "]" * 5_000),
        ("config.toml", "rounds = 3", "rounds = " + "3" * 5_000),
        ("events.jsonl", '"clients":[', '"clients":true,"other":['),
        ("events.jsonl", '"scores":[', '"scores":[0.5,'),
    ],
)
def test_values_that_no_reader_foresaw_are_one_line(
    client: WebClient, runs: Path, file: str, found: str, put: str
) -> None:
    folder = runs / "rate0.1-seed1"
    text = (folder / file).read_text()
    assert found in text
    (folder / file).write_text(text.replace(found, put, 1))
    known = keys(runs)
    for address in (f"/runs/{known[folder.name]}", f"/compare?run={known[folder.name]}&run={known['rate0.5-seed0']}"):
        answer = client.get(address)
        assert answer.status == 400
        assert "damaged" in answer.text
    assert client.get("/").status == 200


def test_a_search_passes_over_settings_without_a_bottom(client: WebClient, runs: Path) -> None:
    (runs / "rate0.1-seed1" / "config.toml").write_text(".".join("a" * 5_000) + " = 1\nrounds = 3\n")
    answer = client.get("/?q=rounds%3D3")
    assert answer.status == 200
    assert "rate0.5-seed0" in answer.text
    assert "rate0.1-seed1" not in answer.text


def test_no_code_of_a_folder_runs(client: WebClient, runs: Path, tmp_path: Path) -> None:
    folder, code = runs / "rate0.1-seed1", tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n\ndef make(shape, outputs):\n    pass\n")
    plain = f'plugins = ["{code}"]\nrounds = 3\n'
    for text in (f'{plain}[model]\nname = "python"\nfactory = "{code}:make"\n', plain):
        (folder / "config.toml").write_text(text)
        assert client.get(f"/runs/{keys(runs)[folder.name]}").status == 200
    assert not (tmp_path / "ran").exists()


def test_a_log_that_is_damaged_while_it_is_followed_ends_the_stream(runs: Path) -> None:
    """Or the browser would come back every second, and have the log read from its beginning each time."""
    folder = runs / "rate0.1-seed0"
    unfinish(folder)
    run = next(run for run in RunIndex([runs]).runs() if run.path == folder)
    look = follow_run(run, after=0)
    look()
    with (folder / "events.jsonl").open("ab") as log:
        log.write(b'{"kind":"round_finished"}\n')
    assert look() == {"restart": True, "ended": True}


def test_a_run_of_another_version_is_listed(runs: Path, client: WebClient) -> None:
    edit(runs / "rate0.1-seed0" / "run.json", lambda table: table.update(schema=1))
    assert "made by Winnow 0.1" in client.get("/").text


def test_a_view_of_a_run_is_what_the_log_says(runs: Path) -> None:
    """The list's numbers of a run that is not finished are those of its summary."""
    unfinish(runs / "rate0.5-seed0")
    run = next(run for run in RunIndex([runs]).runs() if run.shown == "rate0.5-seed0")
    summary = RunFolder.open(run.path).summary()
    assert summary.best
    assert (run.rounds, run.best, run.seconds, run.wh) == (
        summary.rounds,
        summary.best.value,
        summary.seconds,
        summary.wh,
    )
