"""The report: one file, offline, complete, and harmless whatever its texts say."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from winnow.core import AnyEvent, Cost, Evaluated, Rejected, RoundFinished, RunError, Scored, Selected, stream
from winnow.report import write_report
from winnow.runs import RunFolder, RunLabel, RunView

LABELS = ["clean", "noise", "pollution"]


def fabricate(
    algorithm: str, seed: int, *, rounds: int = 40, clients: int = 50, speed: float = 1.0, picky: bool = False
) -> RunView:
    """A run that never was, but could have been: a tenth of the clients polluted, four tenths noisy."""
    rng = stream(seed, "fabricated", algorithm)
    shares = [clients - clients // 10 - 4 * clients // 10, 4 * clients // 10, clients // 10]
    of_client = rng.permutation(np.repeat([0, 1, 2], shares))
    weights = np.array([1.0, 0.4, 1e-5])[of_client] if picky else np.ones(clients)
    return RunView(
        label=RunLabel(name="gas-turbine", algorithm=algorithm, seed=seed, metric="accuracy", target=0.8),
        log=list(_events(rng, weights, rounds=rounds, speed=speed, picky=picky)),
        config_text=f'algorithm = "{algorithm}"\nrounds = {rounds}\n\n[data]\nname = "gas-turbine"\n',
        conditions={"labels": LABELS, "of_client": of_client.tolist()},
    )


def _events(rng: np.random.Generator, weights: np.ndarray, *, rounds: int, speed: float, picky: bool) -> list[AnyEvent]:
    def metrics(number: int) -> dict[str, dict[str, float]]:
        value = 0.83 - 0.5 * np.exp(-speed * number / 8) + rng.normal(0, 0.004)
        return {"reference": {"accuracy": value}, "test": {"accuracy": value - 0.01}}

    events: list[AnyEvent] = [Evaluated(round=0, at=0.0, version=0, metrics=metrics(0))]
    at, cohort = 0.0, len(weights) // 5
    for number in range(1, rounds + 1):
        scores = weights * rng.lognormal(0, 0.3 if picky else 0.0, len(weights))
        scores /= scores.sum()
        clients = np.sort(rng.choice(len(weights), cohort, replace=False, p=scores))
        cost = Cost(
            transfer_seconds=265.0, training_seconds=2.2, profiling_seconds=1.1 * picky,
            transfer_joules=rng.normal(199, 5), training_joules=0.2, profiling_joules=0.1 * picky,
        )  # fmt: skip
        if picky:
            events.append(Scored(round=number, at=at, scores=scores))
        events.append(
            Selected(round=number, at=at, version=number - 1, clients=clients, counts=np.ones(cohort, np.int64))
        )
        if number % 10 == 0:
            events.append(Rejected(round=number, at=at, client=int(clients[0]), reason="the update is not finite"))
        at += rng.normal(35, 2)
        events.append(
            RoundFinished(
                round=number, at=at, version=number, metrics=metrics(number), aggregated=clients, loss=0.1,
                joules=cost.joules, cost=cost,
            )
        )  # fmt: skip
    return events


class Outline(HTMLParser):
    """What a browser would see: headings, tables as text, figures as data, and every address."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.figures: list[dict[str, Any]] = []
        self.headings: list[str] = []
        self._in_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self._in_data = ("type", "application/json") in attrs
        if tag == "tr":
            self.rows.append([])

    def handle_data(self, data: str) -> None:
        if self._in_data:
            self.figures.append(json.loads(data))
            self._in_data = False
        elif self.tags[-1:] in (["td"], ["th"]) and data.strip():
            self.rows[-1].append(data)
        elif self.tags[-1:] in (["h1"], ["h2"]) and data.strip():
            self.headings.append(data)


def outline(path: Path) -> Outline:
    return Outline(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Outline:
    runs = [fabricate("fedprof", seed, speed=1.6, picky=True) for seed in range(3)]
    runs += [fabricate("fedavg-rp", seed) for seed in range(3)]
    return outline(write_report(tmp_path_factory.mktemp("report") / "report.html", runs))


def test_it_needs_nothing_but_itself(comparison: Outline) -> None:
    assert comparison.addresses == []
    assert "link" not in comparison.tags
    assert "img" not in comparison.tags


def test_it_has_every_section(comparison: Outline) -> None:
    assert comparison.headings == [
        "gas-turbine: fedprof vs fedavg-rp", "Summary", "Progress", "Losses", "Client selection",
        "Selection scores by round",
        "Costs", "Rejected replies", "Configuration",
    ]  # fmt: skip


def test_a_comparison_has_a_row_an_algorithm(comparison: Outline) -> None:
    header, fedprof, fedavg = comparison.rows[:3]
    assert header[:2] == ["Algorithm", "Best accuracy"]
    assert (fedprof[0], fedavg[0]) == ("fedprof", "fedavg-rp")
    assert fedprof[3] == "3 of 3"
    assert float(fedprof[4].split()[0]) < float(fedavg[4].split()[0]), "fedprof was made to be faster"


@pytest.mark.parametrize(("rounds", "ticks"), [(1, {1}), (3, {1}), (40, {None})])
def test_no_tick_is_between_rounds(tmp_path: Path, rounds: int, ticks: set[int | None]) -> None:
    page = write_report(tmp_path / "report.html", [fabricate("fedprof", 0, rounds=rounds, picky=True)]).read_text()
    drawn = [
        json.loads(text) for text in re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)
    ]
    axes = [each["layout"]["xaxis"] for each in drawn if "xaxis" in each["layout"]]
    of_rounds = [axis for axis in axes if axis.get("title", {}).get("text") == "Round"]
    assert len(of_rounds) >= 3, "progress, losses, scores"
    assert {axis.get("dtick") for axis in of_rounds} == ticks
    assert all("dtick" not in axis for axis in axes if axis not in of_rounds)


@pytest.mark.parametrize(("rivals", "title", "cards"), [(6, "a0 vs a1 vs", 6), (7, ": 7 algorithms", 0)])
def test_many_algorithms_are_counted_and_have_no_cards(tmp_path: Path, rivals: int, title: str, cards: int) -> None:
    runs = [fabricate(f"a{number}", 0, rounds=2) for number in range(rivals)]
    text = write_report(tmp_path / "report.html", runs).read_text()
    assert title in text.split("<h1>")[1].split("</h1>")[0]
    assert text.count('<div class="card">') == cards


def test_relative_participation_agrees_with_a_count_by_hand(tmp_path: Path) -> None:
    run = fabricate("fedprof", 7, picky=True)
    counts = np.zeros(50)
    for event in run.events():
        if isinstance(event, Selected):
            counts[event.clients] += 1
    rates = [counts[np.array(run.conditions["of_client"]) == index].mean() for index in range(3)]

    rows = outline(write_report(tmp_path / "report.html", [run])).rows

    shown = {row[0]: row[-1] for row in rows if row and row[0] in LABELS}
    assert shown == {label: f"{rate / rates[0]:.1%}" for label, rate in zip(LABELS, rates, strict=True)}


def test_curves_hold_the_points_of_the_run(tmp_path: Path) -> None:
    run = fabricate("fedprof", 1, rounds=3)
    rounds, minutes, energy, *_ = outline(write_report(tmp_path / "report.html", [run])).figures
    finished = [event for event in run.events() if isinstance(event, RoundFinished)]
    assert numbers(rounds["data"][0]["x"]) == [0, 1, 2, 3]
    np.testing.assert_allclose(numbers(minutes["data"][0]["x"])[1:], [event.at / 60 for event in finished])
    np.testing.assert_allclose(
        numbers(energy["data"][0]["x"])[1:], np.cumsum([event.joules for event in finished]) / 3600
    )
    np.testing.assert_allclose(
        numbers(rounds["data"][0]["y"])[1:], [event.metrics["reference"]["accuracy"] for event in finished]
    )


def test_the_score_map_has_a_row_a_client_ordered_by_condition(tmp_path: Path) -> None:
    run = fabricate("fedprof", 1, rounds=4, clients=20, picky=True)
    *_, heat = outline(write_report(tmp_path / "report.html", [run])).figures
    first = next(event for event in run.events() if isinstance(event, Scored))
    order = np.argsort(run.conditions["of_client"], kind="stable")
    z = np.array(numbers(heat["data"][0]["z"])).reshape(20, 4)
    np.testing.assert_allclose(z[:, 0], np.log10(np.maximum(first.scores[order] * 20, 1e-3)))


def numbers(array: Any) -> list[float]:
    """Plotly's JSON keeps arrays as lists, or as base64 of their bytes."""
    if isinstance(array, list):
        return array
    import base64

    return np.frombuffer(base64.b64decode(array["bdata"]), array["dtype"]).tolist()


@pytest.mark.parametrize("clients", [400, 3_000])
def test_large_populations_are_averaged_by_condition(tmp_path: Path, clients: int) -> None:
    run = fabricate("fedprof", 1, rounds=3, clients=clients, picky=True)
    *_, bars, heat = outline(write_report(tmp_path / "report.html", [run])).figures
    assert heat["layout"]["yaxis"]["ticktext"] == LABELS
    assert len(numbers(heat["data"][0]["z"])) == 3 * 3
    assert sum(len(numbers(trace["y"])) for trace in bars["data"]) == (clients if clients <= 2_000 else 3)


def test_nothing_from_a_file_becomes_markup(tmp_path: Path) -> None:
    attack = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    label = RunLabel(name=attack, algorithm=attack, seed=1, metric="accuracy", target=0.8)
    honest = fabricate("fedprof", 1, rounds=2, picky=True)
    events = [*honest.events(), Rejected(round=2, at=0.0, client=0, reason=attack)]
    conditions = {"labels": [attack, "noise", "pollution"], "of_client": honest.conditions["of_client"]}

    path = write_report(
        tmp_path / "report.html", [RunView(label=label, log=events, config_text=attack, conditions=conditions)]
    )

    text = path.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "onerror" not in re.sub(r"(&lt;|\\u003c)img src=x onerror=alert\(2\)", "", text.split("</head>")[1])


def test_a_run_without_events_scores_or_conditions_still_has_a_report(tmp_path: Path) -> None:
    label = RunLabel(name="empty", algorithm="fedavg", seed=1, metric="accuracy")
    page = outline(write_report(tmp_path / "a.html", [RunView(label=label, log=[])]))
    assert "Selection scores by round" not in page.headings
    some = list(fabricate("fedavg", 1, rounds=1, clients=200, picky=True).events())
    page = outline(write_report(tmp_path / "b.html", [RunView(label=label, log=some)]))
    assert any(row[0] == "all clients" for row in page.rows if row)


def test_a_folder_and_the_same_run_in_memory_give_the_same_report(tmp_path: Path) -> None:
    run = fabricate("fedavg-rp", 1, rounds=3)
    with RunFolder.create(tmp_path / "run", run.config_text, run.conditions, run.label) as folder:
        for event in run.events():
            folder.record(event)
    in_memory = write_report(tmp_path / "memory.html", [run]).read_bytes()
    assert write_report(tmp_path / "folder.html", [RunFolder.open(tmp_path / "run")]).read_bytes() == in_memory


def cards(path: Path) -> dict[str, tuple[str, str]]:
    """Value and note of each card by its title."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r'<h3>([^<]*)</h3><p class="value">([^<]*)</p><p class="note">([^<]*)</p>', text)
    return {title: (value, note) for title, value, note in found}


def test_cards_tell_of_a_target_only_where_there_is_one(tmp_path: Path) -> None:
    run = fabricate("fedavg-rp", 1, rounds=3)
    aimless = replace(run, label=replace(run.label, target=None))
    shown = cards(write_report(tmp_path / "aimless.html", [aimless]))
    assert set(shown) == {"Best accuracy", "Rounds", "Device time", "Energy"}
    assert shown["Rounds"] == ("3", "in total")
    assert shown["Device time"][1] == shown["Energy"][1] == "in total"
    assert cards(write_report(tmp_path / "missed.html", [run]))["Rounds"] == (
        "not reached",
        "to accuracy 0.8; 3 in total",
    )
    other = fabricate("fedprof", 1, rounds=3)
    both = [aimless, replace(other, label=replace(other.label, target=None))]
    shown = cards(write_report(tmp_path / "both.html", both))
    assert [note for _, note in shown.values()] == ["1 run", "1 run"]
    assert not any("–" in text for card in shown.values() for text in card)


def test_a_report_says_when_where_and_from_which_commit(tmp_path: Path) -> None:
    run = fabricate("fedavg-rp", 1, rounds=1)
    facts = {"started": "2026-11-16T07:01:23+00:00", "machine": "a <b>fast</b> one", "commit": "1a2b3c4d5e6f-dirty"}
    path = write_report(tmp_path / "a.html", [replace(run, label=replace(run.label, **facts))])
    row = ["fedavg-rp, seed 1", "2026-11-16 07:01 UTC", "1a2b3c4d5e6f-dirty", "a <b>fast</b> one"]
    assert row in outline(path).rows
    assert "<b>fast" not in path.read_text()


def test_what_cannot_be_reported_on(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="at least one"):
        write_report(tmp_path / "report.html", [])
    others = [
        RunView(label=RunLabel(name="x", algorithm="a", seed=1, metric=metric), log=[]) for metric in ("r2", "accuracy")
    ]
    with pytest.raises(RunError, match="accuracy, r2"):
        write_report(tmp_path / "report.html", others)
    with pytest.raises(RunError, match="nowhere"):
        write_report(tmp_path / "nowhere" / "report.html", others[:1])
