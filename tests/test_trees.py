"""Trees over several owners: XGBoost's own on the same bins, however rows are divided and whoever carries the sums."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
import xgboost

from tree_rows import (
    KINDS,
    divided,
    federated_cuts,
    grown,
    in_bins,
    pooled_booster,
    rows_of,
    same_nodes,
    terms_of,
    trees_in,
)
from winnow.analytics.explain_question import explain_question
from winnow.analytics.program import run_plain
from winnow.analytics.query_rules import QueryRule
from winnow.analytics.question import Answer, merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.trees.binned_rows import held_out
from winnow.analytics.trees.boosted_trees import BoostedTrees
from winnow.analytics.trees.booster_json import booster_text
from winnow.analytics.trees.cut_points import Part, choose_bins
from winnow.analytics.trees.grown_tree import ABSENT, LEAF, GrownTree
from winnow.core import ConfigError, DataError, RunError, stream

TARGETS: Mapping[str, Mapping[str, Any]] = {
    "yes": {"objective": "binary:logistic"},
    "three": {"objective": "multi:softprob", "num_class": 3},
    "amount": {"objective": "reg:squarederror"},
}
COLUMNS = ["x", "heavy", "kind"]
ROUNDS = 4


def encoded(rows: pd.DataFrame, target: str) -> np.ndarray:
    if target == "amount":
        return rows[target].to_numpy()
    return rows[target].map({"no": 0, "yes": 1, "low": 0, "mid": 1, "high": 2}).to_numpy()


def cells_of(rows: pd.DataFrame) -> np.ndarray:
    codes = rows["kind"].map({value: place for place, value in enumerate(KINDS)})
    return np.stack([rows["x"], rows["heavy"], codes], axis=1).astype(np.float32)


@pytest.mark.parametrize(
    ("target", "owners", "how"), [("yes", 20, "size-skewed"), ("three", 5, "label-skewed"), ("amount", 2, "shuffled")]
)
def test_trees_are_those_of_xgboost_on_all_rows(target: str, owners: int, how: str) -> None:
    rows = rows_of(2000)
    tables = divided(rows, owners, how, target)
    answer = grown(tables, target=target, columns=COLUMNS, rounds=ROUNDS, depth=4)
    cuts = federated_cuts(tables, answer)
    pooled = pd.concat([table.rows.to_pandas() for table in tables])
    settings = {**TARGETS[target], "max_depth": 4, "eta": 0.1, "base_score": answer["base_score"]}
    cells = cells_of(pooled)
    binned = in_bins(cells, cuts)
    theirs = pooled_booster(binned, encoded(pooled, target), ROUNDS, **settings)
    counts = [
        same_nodes(own, other, cells, binned)
        for own, other in zip(trees_in(booster_text(answer)), trees_in(theirs.save_raw("json")), strict=True)
    ]
    same, nodes = np.sum(counts, axis=0)
    assert nodes > 60
    assert same >= 0.99 * nodes
    assert BoostedTrees(answer).predict(pooled) == pytest.approx(theirs.predict(xgboost.DMatrix(binned)), abs=2e-3)


@pytest.mark.parametrize("owners", [1, 2, 4])
def test_masked_sums_give_the_same_model_byte_for_byte(owners: int) -> None:
    tables = divided(rows_of(600), owners)
    given = {"target": "yes", "rounds": 3, "depth": 3, "holdout": 0.2}
    question = read_question({"kind": "trees", "table": "t", **given})
    named = {f"owner-{place}": table for place, table in enumerate(tables)}
    secure = ask_owners(question, named, terms_of(owners, minimum=5))
    assert secure == grown(tables, minimum=5, **given)
    plain = read_question({"kind": "trees", "table": "t", "secure": False, **given})
    assert ask_owners(plain, named, terms_of(owners, minimum=5)) == secure


def test_the_division_of_rows_does_not_matter() -> None:
    rows = rows_of(800)
    boosters = {
        booster_text(grown(divided(rows, owners, how), target="amount", rounds=3, depth=3))
        for owners in (1, 4)
        for how in ("shuffled", "size-skewed")
    }
    assert len(boosters) == 1


def test_children_have_the_minimum_of_rows_and_the_model_no_statistics_of_them() -> None:
    rows = rows_of(2000)
    answer = grown(divided(rows, 3), minimum=40, target="yes", rounds=5, depth=6, min_child_weight=0)
    trees = BoostedTrees(answer)
    data = xgboost.DMatrix(trees.cells(rows), feature_names=trees.columns)
    leaves = trees.model.predict(data, pred_leaf=True)
    assert min(np.bincount(own.astype(int))[np.unique(own.astype(int))].min() for own in leaves.T) >= 40
    for tree in trees_in(trees.model.save_raw("json")):
        for name in ("sum_hessian", "loss_changes", "base_weights"):
            assert not np.any(tree[name])


def test_a_heavy_value_has_a_bin_of_its_own_and_others_share_evenly() -> None:
    rows = rows_of(4000)
    tables = divided(rows, 3)
    answer = grown(tables, target="yes", rounds=1, depth=1)
    _, heavy, kind = federated_cuts(tables, {**answer, "columns": [{"name": name} for name in COLUMNS]}, bins=16)
    assert kind.tolist() == [0.5, 1.5, 2.5]
    counts = np.bincount(np.searchsorted(heavy, rows["heavy"].to_numpy(np.float32), side="right"))
    assert counts[0] == (rows["heavy"] == 0).sum()
    assert len(counts) >= 14
    assert counts[1:].max() < 2.2 * counts[1:].mean()


def test_no_bin_has_fewer_rows_than_the_minimum() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        edges = np.unique(rng.integers(0, 1000, 30))
        rows = rng.integers(0, 50, len(edges) - 1) * (rng.random(len(edges) - 1) < 0.5) + 500 * (
            rng.random(len(edges) - 1) < 0.05
        )
        parts = [Part(int(a), int(b), int(n)) for a, b, n in zip(edges, edges[1:], rows, strict=False)]
        begins = choose_bins(parts, 12, 40)
        assert len(begins) < 12
        places = np.searchsorted(begins, [part.first for part in parts], side="right")
        sums = np.bincount(places, weights=[part.rows for part in parts])
        assert len(begins) == 0 or sums.min() >= 40


def test_a_split_may_tell_missing_cells_from_all_others() -> None:
    rows = rows_of(600)
    rows["yes"] = np.where(rows["x"].isna(), "yes", "no")
    trees = BoostedTrees(grown(divided(rows, 2), target="yes", columns=["x"], rounds=5, depth=1, learning_rate=1.0))
    predicted = trees.predict(rows)
    assert predicted[rows["x"].isna()].min() > 0.8
    assert predicted[rows["x"].notna()].max() < 0.2


def test_early_stopping_keeps_the_best_rounds() -> None:
    rows = rows_of(600)
    rows["yes"] = np.random.default_rng(5).choice(["no", "yes"], len(rows))  # nothing to learn
    answer = grown(divided(rows, 2), target="yes", rounds=60, depth=4, holdout=0.3, early_stopping=5, learning_rate=0.5)
    losses = [each["holdout"] for each in answer["curve"]]
    assert answer["grown"] < 60
    assert answer["rounds"] == int(np.argmin(losses))
    assert answer["grown"] == answer["rounds"] + 6  # the loss after a round is told with the next one's first sum
    assert len(answer["trees"]) == answer["rounds"]
    assert answer["curve"][-1]["train"] < answer["curve"][0]["train"]


def test_the_learning_curve_is_the_loss_of_the_model() -> None:
    rows = rows_of(700)
    answer = grown(divided(rows, 3), target="three", rounds=4, depth=3)
    p = BoostedTrees(answer).predict(rows)
    expected = -np.log(p[np.arange(len(rows)), encoded(rows, "three")]).mean()
    assert answer["curve"][-1]["train"] == pytest.approx(expected, abs=1e-4)
    assert answer["left_out"] == ["note"]


def test_predictions_take_frames_mappings_and_records_with_missing_cells() -> None:
    rows = rows_of(500)
    trees = BoostedTrees(grown(divided(rows, 2), target="yes", columns=COLUMNS, rounds=2, depth=3))
    head = rows.head(5)
    expected = trees.predict(head)
    assert trees.predict(head.to_dict("list")).tolist() == expected.tolist()
    assert trees.predict(head.to_dict("records")).tolist() == expected.tolist()
    assert len(trees.predict({"x": [np.nan], "heavy": [np.nan], "kind": ["unheard of"]})) == 1
    with pytest.raises(DataError, match="the rows have no column 'heavy'"):
        trees.predict({"x": [1.0], "kind": ["a"]})


def test_who_has_no_xgboost_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    trees = BoostedTrees(grown(divided(rows_of(200), 2), target="yes", columns=COLUMNS, rounds=1, depth=1))
    monkeypatch.setattr("winnow.analytics.trees.boosted_trees.find_spec", lambda name: None)
    for use in (lambda: trees.model, lambda: trees.predict(rows_of(3)), lambda: trees.save("model.json")):
        with pytest.raises(ConfigError, match=r"xgboost is not installed: .*trees"):
            use()


def test_a_notebook_shows_trees_and_their_figures() -> None:
    trees = BoostedTrees(grown(divided(rows_of(300), 2), target="yes", columns=COLUMNS, rounds=2, depth=2, holdout=0.2))
    assert all(name in trees._repr_html_() for name in COLUMNS)
    assert [len(line.y) for line in trees.plot().data] == [3, 3]
    assert sorted(trees.plot("importance").data[0].y) == sorted(COLUMNS)
    with pytest.raises(ConfigError, match="'curves' is unknown; did you mean 'curve'"):
        trees.plot("curves")


def test_a_model_is_saved_as_xgboost_reads_it(tmp_path: Path) -> None:
    rows = rows_of(400)
    trees = BoostedTrees(grown(divided(rows, 2), target="amount", columns=COLUMNS, rounds=2, depth=2))
    for name in ("model.json", "model.ubj"):
        trees.save(tmp_path / name)
        booster = xgboost.Booster(model_file=tmp_path / name)
        data = xgboost.DMatrix(trees.cells(rows), feature_names=COLUMNS)
        assert booster.predict(data).tolist() == trees.predict(rows).tolist()
    with pytest.raises(ConfigError, match=r"writes models as \.json or \.ubj"):
        trees.save(tmp_path / "model.pkl")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"target": "nothing"}, "there is no column 'nothing'"),
        ({"target": "note"}, "target 'note' is protected without a list of values"),
        ({"target": "yes", "columns": ("note",)}, "column 'note' has neither bounds nor values"),
        ({"target": "yes", "columns": ("yes",)}, "column 'yes' is the target"),
        ({"target": "yes", "positive": "yess"}, "did you mean 'yes'"),
        ({"target": "yes", "early_stopping": 3}, "early_stopping needs holdout"),
        ({"target": "yes", "epsilon": 1.0}, "cannot be made noisy"),
        ({"target": "yes", "depth": 11}, "depth"),
    ],
)
def test_mistakes_are_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        grown(divided(rows_of(100), 2), **settings)


def test_too_few_rows_of_a_class_are_refused() -> None:
    rows = rows_of(300)
    rows.loc[5:, "yes"] = "no"
    with pytest.raises(ConfigError, match="fewer than 10 rows where yes is yes in all"):
        grown(divided(rows, 2), minimum=10, target="yes")


def test_one_of_several_values_is_predicted_where_it_is_named() -> None:
    rows = rows_of(500)
    answer = grown(divided(rows, 2), target="three", positive="high", columns=COLUMNS, rounds=3, depth=3)
    assert answer["classes"] == ["not high", "high"]
    predicted = BoostedTrees(answer).predict(rows)
    assert predicted[rows["three"] == "high"].mean() > predicted[rows["three"] != "high"].mean() + 0.05


# A server that lies about the model -----------------------------------------------------------------------------------


def _tampered(answer: dict[str, Any], **changes: Any) -> dict[str, Any]:
    trees = copy.deepcopy(answer["trees"])
    for name, (place, value) in changes.items():
        trees[0][name][place] = value
    return {**answer, "trees": trees}


@pytest.mark.parametrize(
    "changes",
    [
        {"left": (0, 1_000_000)},
        {"left": (0, 0)},
        {"left": (0, -7)},
        {"left": (1, 1)},
        {"left": (0, -1)},
        {"left": (0, "1")},
        {"column": (0, 99)},
        {"column": (0, -1)},
        {"condition": (0, 1e300)},
        {"missing_left": (0, 2)},
    ],
)
def test_a_model_with_impossible_nodes_never_reaches_xgboost(changes: dict[str, Any]) -> None:
    answer = grown(divided(rows_of(200), 1), target="yes", rounds=1, depth=2)
    with pytest.raises(RunError, match="the model in the answer"):
        BoostedTrees(_tampered(answer, **changes)).predict(rows_of(5))


@pytest.mark.parametrize(
    "changes",
    [{"trees": "none"}, {"round_ends": [0, 5]}, {"round_ends": []}, {"objective": "rank:ndcg"}, {"base_score": None}],
)
def test_a_model_with_impossible_parts_is_refused(changes: dict[str, Any]) -> None:
    answer = grown(divided(rows_of(200), 1), target="yes", rounds=1, depth=2)
    with pytest.raises(RunError, match="the model in the answer"):
        BoostedTrees({**answer, **changes}).predict(rows_of(5))
    other = {**answer, "trees": [{**tree, "output": 3} for tree in answer["trees"]]}
    with pytest.raises(RunError, match="classes that do not exist"):
        BoostedTrees(other).predict(rows_of(5))


# Trees that owners grow alone -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["bagging", "cyclic", "forest"])
@pytest.mark.parametrize("target", ["three", "amount"])
def test_owners_trees_are_those_that_each_grows_alone(method: str, target: str) -> None:
    """In the first round all begin at the same mean: what an owner tells is its own tree, weighed as it counts."""
    rows = rows_of(900)
    tables = divided(rows, 3, "label-skewed", target)
    given = {"target": target, "columns": COLUMNS, "depth": 3, "holdout": 0.2, "minimum": 5}
    answer = grown(tables, method=method, rounds=2, **given)
    outputs = 3 if target == "three" else 1
    assert len(answer["trees"]) == 2 * outputs * (1 if method == "cyclic" else 3)
    assert answer["round_ends"][1] == len(answer["trees"]) // 2
    held = held_out(0, 0, 0.2, len(tables[0]))
    grown_on = tables[0].rows.filter(arrow.array(~held)).to_pandas()
    leaves = BoostedTrees(answer).model.predict(
        xgboost.DMatrix(BoostedTrees(answer).cells(grown_on), feature_names=COLUMNS), pred_leaf=True
    )
    if method != "forest":  # whose rows are drawn
        counts = np.bincount(leaves[:, 0].astype(int))
        assert counts[counts > 0].min() >= 5
    if target == "amount" and method != "forest":
        residuals = grown_on["amount"].to_numpy() - answer["base_score"]
        scale = 0.1 / (1 if method == "cyclic" else 3)
        first = answer["trees"][0]
        for leaf in np.unique(leaves[:, 0]).astype(int):
            mine = residuals[leaves[:, 0] == leaf]
            assert first["condition"][leaf] == pytest.approx(scale * mine.sum() / (len(mine) + 1), rel=1e-4)


def test_owners_trees_need_a_permission_of_their_own() -> None:
    question = read_question({"kind": "trees", "table": "t", "target": "yes", "method": "bagging"})
    assert question.needs() == {"trees", "owner-trees"}
    assert not {"trees", "owner-trees"} & {*QueryRule().allow}
    told = explain_question(question, merge_terms(question, terms_of(2, minimum=10)))
    shown = " ".join(line for lines in told.learns.values() for line in lines)
    assert "trees that an owner grew on its own rows" in shown
    assert "an owner's part of these sums" not in shown
    of_all = read_question({"kind": "trees", "table": "t", "target": "yes"})
    told_of_all = explain_question(of_all, merge_terms(of_all, terms_of(2, minimum=10))).learns
    assert "unless the server and all other owners pool what they see" in told_of_all["nobody"][0]
    assert told.complete


def test_an_owner_with_too_few_rows_tells_no_tree() -> None:
    rows = rows_of(400)
    tables = [*divided(rows, 2), divided(rows.head(6), 1)[0]]
    answer = grown(tables, minimum=10, target="yes", method="bagging", rounds=1, depth=2)
    third = answer["trees"][2]
    assert (third["left"], third["condition"]) == ([-1], [0.0])


def test_leaves_of_a_forest_have_the_minimum_of_different_rows() -> None:
    """Rows that are drawn several times count once: the author knows the seed, and so which were drawn how often."""
    rows, minimum = rows_of(60).drop(columns="note"), 12
    (table,) = divided(rows, 1)
    answer = grown([table], minimum=minimum, target="amount", columns=["x"], method="forest", rounds=20, depth=4)
    model = BoostedTrees(answer)
    cells = xgboost.DMatrix(model.cells(table.rows.to_pandas()), feature_names=["x"])
    leaves = model.model.predict(cells, pred_leaf=True).astype(int)
    for number, own in enumerate(leaves.T):
        drawn = np.unique(stream(0, "forest", 0, number).integers(60, size=60))
        assert np.bincount(own[drawn])[np.unique(own[drawn])].min() >= minimum
    few = grown([divided(rows.head(16), 1)[0]], minimum=minimum, target="amount", method="forest", rounds=5)
    assert [tree["condition"] for tree in few["trees"]] == [[0.0]] * 5  # about 10 of 16 rows are drawn


def _tree(column: int = 0, cut: int = 0, below: int = LEAF, weight: float = 1.0, gain: float = 1.0) -> GrownTree:
    columns = np.array([column, below, LEAF])
    ones = np.ones(3, np.float32)
    return GrownTree(
        column=columns, cut=np.full(3, cut), missing_left=columns > 0, weight=ones * weight, gain=ones * gain
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"column": 99},
        {"column": -7},
        {"cut": 5_000},
        {"below": 0},
        {"below": ABSENT},
        {"weight": np.nan},
        {"weight": np.inf},
        {"gain": -1.0},
    ],
)
def test_an_owner_that_tells_an_impossible_tree_is_refused_by_all(changes: dict[str, Any]) -> None:
    """Another owner's tree would lead rows to nodes that there are not, or to no number."""
    question = read_question(
        {"kind": "trees", "table": "t", "target": "yes", "method": "bagging", "rounds": 1, "depth": 1}
    )
    merged = merge_terms(question, terms_of(2))

    def ask(tree: GrownTree) -> Answer:
        def program() -> Any:
            running = question.program(merged)
            step = next(running)
            while True:
                opened = yield step
                if step.label == "each owner's tree":
                    opened = np.concatenate([opened[:-9], tree.words()])
                try:
                    step = running.send(opened)
                except StopIteration as stop:
                    return stop.value

        return run_plain(program, divided(rows_of(200), 2))

    assert len(ask(_tree())["trees"]) == 2
    with pytest.raises(DataError, match="an owner tells a tree that cannot be"):
        ask(_tree(**changes))
