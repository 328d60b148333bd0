"""`winnow.stats` against pandas, NumPy and SciPy on the pooled rows."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats
from scipy.optimize import linprog

from statistics_tables import (
    DECLARATION,
    WARDS,
    answer_of,
    divided,
    merged,
    pooled_rows,
    recorded,
    told_counts,
)
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.stats.report import StatisticsReport
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.stats.suppression import HIDDEN, SMALL, CellIndex, CellTable, decide_cells
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError, WinnowError

NUMBERS = {"age": 110.0, "weight": 200.0, "income": 1e6}
"""The range of each column of numbers."""


def close(found: float, expected: float, column: str) -> None:
    assert abs(found - expected) <= 1e-6 * NUMBERS[column]


@pytest.mark.parametrize("owners", [2, 20])
def test_counts_are_exact_and_moments_within_a_millionth_of_the_range(owners: int) -> None:
    rows = pooled_rows(2000, owners)
    answer = answer_of(divided(rows, owners, owners), by=("sex",), histograms=15, correlation=True)
    report = StatisticsReport(answer)
    for name in NUMBERS:
        everybody, column = rows[name], report[name]
        groups = {"": (column, everybody)} | {
            label: (cell, everybody[rows["sex"] == label]) for label, cell in column.groups.items()
        }
        for cell, values in groups.values():
            assert cell.n == values.count()
            assert cell.missing in (None, values.isna().sum())
            close(cell.mean, values.mean(), name)
            close(cell.sd, values.std(), name)
            expected = np.histogram(values.dropna(), np.array(column.edges))[0]
            assert [a for a, b in zip(cell.histogram, expected, strict=True) if a is not None and a != b] == []
            assert sum(count is not None for count in cell.histogram) >= 8
    expected = rows[list(NUMBERS)].corr()
    for one, others in report.correlation.items():
        for other, value in others.items():
            assert abs(value - expected.loc[one, other]) <= 1e-6
    wards = rows["ward"].value_counts()
    assert report["ward"].counts == {**{ward: wards[ward] for ward in WARDS}, "other": wards["attic"]}
    assert report["ward"].missing == rows["ward"].isna().sum()
    assert report["age"].missing == rows["age"].isna().sum()
    assert answer["skipped"] == {"name": "is private; nothing can be told of it"}


@pytest.mark.parametrize("owners", [7])
def test_quantiles_within_a_65536th_of_the_range(owners: int) -> None:
    rows = pooled_rows(1500, 7)
    levels = (0.05, 0.25, 0.5, 0.9)
    report = StatisticsReport(answer_of(divided(rows, owners, 7), by=("sex",), quantiles=levels))
    for name, width in NUMBERS.items():
        for label, cell in (("", report[name]), *report[name].groups.items()):
            values = rows[name][rows["sex"] == label] if label else rows[name]
            expected = np.quantile(values.dropna(), levels, method="inverted_cdf")
            found = np.array([cell.quantiles[level] for level in levels])
            assert np.all(np.abs(found - expected) <= width / 65_536)
            if name == "age":
                assert found.tolist() == expected.tolist()


def test_a_quantile_with_few_rows_beyond_it_is_hidden() -> None:
    rows = pooled_rows(150, 1, missing=0.0)
    report = StatisticsReport(answer_of(divided(rows, 3, 1), columns=("age",), quantiles=(0.05, 0.5, 0.95)))
    assert [value is None for value in report["age"].quantiles.values()] == [True, False, True]


def test_a_constant_column_and_extreme_values() -> None:
    rows = pooled_rows(300, 2, missing=0.0)
    rows["age"], rows["weight"] = 110.0, np.where(rows["weight"] > 70, 200.0, 0.0)
    report = StatisticsReport(answer_of(divided(rows, 4, 2), correlation=True, quantiles=(0.5,), histograms=4))
    assert report["age"].mean == 110.0
    assert report["age"].sd == pytest.approx(0.0, abs=1e-4)
    assert report["age"].quantiles == {0.5: 110.0}
    assert report.correlation["age"]["weight"] is None
    close(report["weight"].sd, rows["weight"].std(), "weight")


@pytest.mark.parametrize(("lacking", "told"), [(0, True), (1, False), (9, False), (10, True)])
def test_rows_that_lack_one_of_two_values_are_not_told_by_subtraction(lacking: int, told: bool) -> None:
    """Their weights would be the sum of all weights less the sum over rows that have an age."""
    rows = pooled_rows(400, 3, missing=0.0)
    rows.loc[rows.index[:lacking], "age"] = np.nan
    opened: list[tuple[str, Any]] = []
    question = StatisticsQuestion(table="people", columns=("age", "weight"), correlation=True)
    tables = divided(rows, 3, 1)
    terms = merged(question, 3, tables[0].declaration)
    report = StatisticsReport(run_plain(lambda: recorded(question.program(terms), opened), tables))
    (moments,) = [values for label, values in opened if label == "moments"]
    assert len(moments) == 4 + 5 * told
    expected = pytest.approx(rows["age"].corr(rows["weight"]), abs=1e-6) if told else None
    assert report.correlation["age"]["weight"] == expected


def test_bins_follow_quantiles_and_edges_move_with_the_question() -> None:
    rows = pooled_rows(1500, 3, missing=0.0)
    tables = divided(rows, 3, 3)
    told = answer_of(tables, columns=("income",), histograms=10, histogram_range="quantiles")["columns"]["income"]
    again = answer_of(tables, columns=("income",), histograms=10, histogram_range="quantiles")["columns"]["income"]
    other = answer_of(
        tables, columns=("income",), histograms=10, histogram_range="quantiles", correlation=False, by=("sex",)
    )
    low, high = np.quantile(rows["income"].dropna(), [0.01, 0.99], method="inverted_cdf")
    assert (told["edges"][0], told["edges"][-1]) == (0.0, 1e6)
    assert low < told["edges"][1] < told["edges"][-2] < high
    assert all(one < two for one, two in pairwise(told["edges"]))
    assert told["edges"] == again["edges"] != other["columns"]["income"]["edges"]


def test_significance_tests_agree_with_scipy() -> None:
    rows = pooled_rows(3000, 4)
    tests = ("chi2:sex,ward", "t:weight,sex", "anova:age,ward")
    chi2, t, anova = answer_of(divided(rows, 5, 4), columns=("age",), tests=tests)["tests"]
    listed = rows[rows["ward"].isin(WARDS)]
    expected = scipy_stats.chi2_contingency(pd.crosstab(listed["sex"], listed["ward"]), correction=False)
    assert (chi2["statistic"], chi2["freedom"], chi2["p"]) == pytest.approx(
        (expected.statistic, expected.dof, expected.pvalue), rel=1e-9
    )
    present = rows.dropna(subset=["weight"])
    welch = scipy_stats.ttest_ind(*(present["weight"][present["sex"] == sex] for sex in "fm"), equal_var=False)
    assert (t["statistic"], t["freedom"], t["p"]) == pytest.approx((welch.statistic, welch.df, welch.pvalue), rel=1e-6)
    groups = [values.dropna() for _, values in listed.groupby("ward")["age"]]
    oneway = scipy_stats.f_oneway(*groups)
    assert (anova["statistic"], anova["p"]) == pytest.approx((oneway.statistic, oneway.pvalue), rel=1e-6)


def test_survival_agrees_with_a_life_table_of_the_pooled_rows() -> None:
    rows = pooled_rows(2500, 5, missing=0.01)
    told = answer_of(divided(rows, 4, 5), columns=("age",), tests=("survival:age,died,sex",))["tests"][0]
    kept = rows.dropna(subset=["age"])
    for sex, curve in told["curves"].items():
        group = kept[kept["sex"] == sex]
        bins = pd.cut(group["age"], told["times"], right=False)
        events = group[group["died"]].groupby(bins[group["died"]], observed=False).size().to_numpy()
        censored = group[~group["died"]].groupby(bins[~group["died"]], observed=False).size().to_numpy()
        assert (curve["events"], curve["censored"]) == (events.tolist(), censored.tolist())
        alive, left = 1.0, len(group)
        for place, (d, c) in enumerate(zip(events, censored, strict=True)):
            assert curve["at_risk"][place] == left
            alive *= 1 - d / (left - c / 2)
            assert curve["survival"][place] == pytest.approx(alive)
            left -= d + c
        assert min(*curve["events"], *curve["censored"]) >= 10
    assert 0 <= told["p"] <= 1
    apart = rows.assign(
        died=np.where(rows["sex"] == "f", rows["died"], np.random.default_rng(0).random(len(rows)) < 0.2)
    )
    unlike = answer_of(divided(apart, 4, 5), columns=("age",), tests=("survival:age,died,sex",))["tests"][0]
    assert unlike["p"] < 1e-6


def test_owners_are_told_apart_only_where_all_have_enough_rows() -> None:
    rows = pooled_rows(400, 6, missing=0.0)
    whole = divided(rows, 1, 6)[0].rows
    sizes = (120, 4, 130, 146)
    tables = [OwnerTable(DECLARATION, whole.slice(sum(sizes[:place]), size)) for place, size in enumerate(sizes)]
    told = answer_of(tables, columns=("age",), per_owner=True)["per_owner"]
    hidden = [owner for owner, columns in told.items() if columns["age"] is None]
    assert hidden == ["owner 1", "owner 2"]
    for place, (owner, columns) in enumerate(told.items()):
        if owner not in hidden:
            values = tables[place].numbers("age")
            assert columns["age"]["n"] == len(values)
            close(columns["age"]["mean"], values.mean(), "age")


def planted(seed: int) -> tuple[list[Any], dict[str, Any]]:
    """A table in which groups, values, bins and missing cells of 1 to 9 rows are planted."""
    rng = np.random.default_rng(seed)
    rows = pooled_rows(int(rng.integers(60, 400)), seed, missing=0.0)
    small = rng.choice(len(rows), int(rng.integers(1, 10)), replace=False)
    rows.loc[small, "sex"] = rng.choice(["f", "x"])
    rows.loc[rng.choice(len(rows), int(rng.integers(1, 10)), replace=False), "ward"] = "west"
    rows.loc[rng.choice(len(rows), int(rng.integers(1, 10)), replace=False), "age"] = np.nan
    question = {"by": ("sex",), "histograms": 6, "correlation": True, "per_owner": True}
    question["tests"] = ("chi2:sex,ward", "chi2:ward,sex", "anova:age,ward")
    if seed % 2:
        question |= {"histograms": 0, "tests": (*question["tests"], "survival:age,died")}
    return divided(rows, int(rng.integers(2, 6)), seed), question


def check_planted(seed: int) -> None:
    tables, settings = planted(seed)
    question = StatisticsQuestion(table="people", **settings)
    terms, opened = merged(question, len(tables)), list[tuple[str, Any]]()
    answer = run_plain(lambda: recorded(question.program(terms), opened), tables)
    assert not [count for count in told_counts(answer) if 0 < count < 10]
    assert not [
        value for label, values in opened if label in ("counts", "survival") for value in values if 0 < value < 10
    ]
    for column in answer["columns"].values():
        for cell in (column["all"], *column["groups"].values()):
            parts = cell.get("histogram") or ([*cell["counts"], cell["other"]] if "counts" in cell else [])
            if cell["n"] is not None and None in parts:
                assert cell["n"] - sum(part or 0 for part in parts) >= 10
        names = list(column["groups"])
        told = [column["groups"][name]["n"] for name in names]
        if None in told and column["all"]["n"] is not None and sum(part or 0 for part in told):
            assert column["all"]["n"] - sum(part or 0 for part in told) >= 10


@pytest.mark.parametrize("seed", range(5))
def test_nothing_is_told_of_fewer_rows_than_the_minimum(seed: int) -> None:
    check_planted(seed)


@pytest.mark.slow(part="attacks")
def test_nothing_is_told_of_fewer_rows_in_200_tables() -> None:
    for seed in range(5, 205):
        check_planted(seed)


@pytest.mark.parametrize("seed", range(8))
def test_hidden_cells_cannot_be_worked_out_from_their_lines(seed: int) -> None:
    """Every count that is told, and every total, is known to a linear program that looks for a hidden cell's value."""
    rng = np.random.default_rng(seed + 54)
    rows = int(rng.integers(2, 5))
    tables = dict[tuple[str, ...], CellTable]()
    by_value = rng.choice([0, 3, 7, 12, 40, 200], rows, p=[0.1, 0.2, 0.1, 0.2, 0.2, 0.2])
    for by in ("sex", "ward")[: int(rng.integers(1, 3))]:
        groups = int(rng.integers(1, 5))
        counts = np.stack([rng.multinomial(count, rng.dirichlet(np.full(groups, 0.3))) for count in by_value])
        key = ("n", "column", by) if groups > 1 else ("n", "column")
        tables[key] = CellTable(key=key, shape=counts.shape, count=lambda _, counts=counts: counts)
    cells, table = CellIndex(tables), divided(pooled_rows(20, 0), 1, 0)
    states, full = run_plain(lambda: decide_cells(cells, 10, 20), table), cells.counts(table[0])
    hidden = np.flatnonzero(np.isin(states, HIDDEN))
    known = np.setdiff1d(np.arange(len(full)), hidden)
    equations, values = [], []
    for line in cells.lines():
        signs = np.zeros(len(full))
        signs[line[:-1]], signs[line[-1]] = 1, -1
        equations.append(signs[hidden])
        values.append(-signs[known] @ full[known])
    for place in np.flatnonzero(states[hidden] == SMALL):
        goal = np.zeros(len(hidden))
        goal[place] = 1.0
        ends = [linprog(sign * goal, A_eq=equations, b_eq=values, bounds=(0, None)) for sign in (1, -1)]
        low, high = ends[0].fun, -ends[1].fun if ends[1].status == 0 else np.inf
        assert high - low >= 1


def test_a_small_group_hides_little_more_of_a_category_than_itself() -> None:
    """Its cells are protected by other groups', and those by their own; most are told."""
    counts = np.array([[100, 90, 3, 80], [110, 95, 4, 70]])
    key = ("n", "smoker", "sex")
    cells = CellIndex({key: CellTable(key=key, shape=counts.shape, count=lambda _: counts)})
    states = run_plain(lambda: decide_cells(cells, 10, 20), divided(pooled_rows(20, 0), 1, 0))
    hidden = np.isin(states, HIDDEN)[cells.places[key]].reshape(3, 5)
    assert not hidden[-1, -1]
    assert hidden[:, 2].all()
    assert hidden.sum() <= 7


def test_shares_give_the_plain_answer() -> None:
    rows = pooled_rows(200, 8)
    tables = divided(rows, 3, 8)
    question = StatisticsQuestion(table="people", columns=("age", "ward"), by=("sex",), quantiles=(0.5,))
    terms = QueryTerms(declaration=DECLARATION, allow=PERMISSIONS)
    owners = [f"owner {place}" for place in range(3)]
    secure = ask_owners(question, dict(zip(owners, tables, strict=True)), dict.fromkeys(owners, terms))
    merged_terms = merge_terms(question, dict.fromkeys(owners, terms))
    assert secure == run_plain(lambda: question.program(merged_terms), tables)


NOISY = {"columns": ("age", "weight", "ward"), "by": ("sex",), "histograms": 4, "epsilon": 4.0}


def coverage(repeats: int) -> float:
    rows = pooled_rows(4000, 9, missing=0.1)
    tables = divided(rows, 5, 9)
    covered = list[bool]()
    for seed in range(repeats):
        answer = answer_of(tables, seed=seed, **NOISY)
        for name in ("age", "weight"):
            for sex, cell in answer["columns"][name]["groups"].items():
                values = rows[name][rows["sex"] == sex]
                truth = {"n": values.count(), "mean": values.mean(), "sd": values.std(), "missing": values.isna().sum()}
                for key in ("n", "missing"):
                    covered.append(abs(cell[key] - truth[key]) <= cell[f"{key}_error"] + 0.5)
                covered += [abs(cell[key] - truth[key]) <= cell[f"{key}_error"] for key in ("mean", "sd")]
                edges = np.array(answer["columns"][name]["edges"])
                bins = np.histogram(values.dropna(), edges)[0]
                covered += [
                    abs(told - true) <= cell["histogram_error"] + 0.5
                    for told, true in zip(cell["histogram"], bins, strict=True)
                    if told is not None and true > 200
                ]
    return float(np.mean(covered))


def test_intervals_with_noise_cover_the_truth() -> None:
    assert 0.90 <= coverage(15) <= 0.99


@pytest.mark.slow(part="science")
def test_intervals_with_noise_cover_the_truth_in_500_repeats() -> None:
    assert 0.90 <= coverage(500) <= 0.99


def test_noise_is_as_large_as_rho_demands() -> None:
    """One block of counts for one column: ρ = Δ²/(2σ²) with Δ = `rows`, of which all owners but one make σ."""
    declaration = DECLARATION.model_copy(update={"unit": "name", "rows": 3})
    tables = divided(pooled_rows(500, 10), 3, 10, declaration)
    answer = answer_of(tables, columns=("ward",), epsilon=1.0, delta=1e-6)
    log_term = np.log(1e6)
    rho = (np.sqrt(1.0 + log_term) - np.sqrt(log_term)) ** 2
    deviation = 3 / np.sqrt(2 * rho) * np.sqrt(3 / 2)
    assert answer["columns"]["ward"]["all"]["counts_error"] == pytest.approx(1.959964 * deviation, rel=1e-4)
    assert answer == answer_of(tables, columns=("ward",), epsilon=1.0, delta=1e-6)


def test_a_report_as_object_json_and_page(tmp_path: Path) -> None:
    rows = pooled_rows(800, 11)
    settings = {"by": ("sex",), "histograms": 8, "correlation": True, "quantiles": (0.5,), "per_owner": True}
    settings["columns"] = ("age", "weight", "ward", "died")
    report = StatisticsReport(answer_of(divided(rows, 3, 11), tests=("survival:income,died",), **settings))
    assert json.loads(report.to_json()) == report.answer
    frame = report.to_frame()
    assert frame.loc[("age", "f"), "n"] == report["age"].groups["f"].n
    assert report.scale["mean"]["age"] == report["age"].mean
    page = report.write(tmp_path / "people.html").read_text()
    assert all(text in page for text in ("Statistics of people", "Distribution of weight", "Without the event"))
    assert "somebody" not in page
    assert len(report.plot("ward").data) == 2
    with pytest.raises(ConfigError, match=r"no column 'agee'; did you mean 'age'\?"):
        report["agee"]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"columns": ["agee"]}, "there is no column 'agee'; did you mean 'age'?"),
        ({"columns": ["name"]}, "column 'name' is private; nothing can be told of it"),
        ({"columns": ["hours"]}, "column 'hours' has no bounds; declare bounds = [low, high]"),
        ({"columns": ["note"]}, "column 'note' has no list of values; declare values = […] to count them"),
        ({"by": ["age"]}, "column 'age' has no list of values; declare values = […] to count by it"),
        ({"columns": ["age", "age"]}, "[question]: columns: 'age' is named twice"),
        ({"quantiles": [1.5]}, "[question]: quantiles[0] = 1.5: must be below 1"),
        ({"tests": ["t:age"]}, "[question]: tests: 't:age' is not a test; write one of chi2:a,b"),
        ({"tests": ["t:age,ward"]}, "t:age,ward: a t test compares two groups; 'ward' has 4: use anova"),
        ({"tests": ["chi2:age,ward"]}, "column 'age' has no list of values"),
        ({"tests": ["survival:age,sex"]}, "survival:age,sex: 'sex' must be of type boolean, or have values = [0, 1]"),
        ({"columns": ["ward"], "histograms": 5}, "histograms need a column of numbers with bounds; there is none"),
        ({"columns": ["age"], "correlation": True}, "correlation needs 2 to 60 columns of numbers; here it is 1"),
        ({"histograms": 1000, "by": ["ward", "sex", "big"]}, "cells, at most 20,000 can be told; ask for less"),
        ({"epsilon": 1.0, "quantiles": [0.5]}, "quantiles cannot be told with noise; leave it out"),
        ({"epsilon": -1.0}, "[question]: epsilon = -1.0: must be above 0"),
        ({"medians": True}, "[question]: unknown key medians; valid: by,"),
    ],
)
def test_bad_questions_get_one_line(settings: dict[str, Any], line: str) -> None:
    columns = {
        **DECLARATION.columns,
        "hours": "protected",
        "note": {"level": "public", "type": "text"},
        "big": {"level": "public", "values": list(range(100))},
    }
    declaration = TableDeclaration.model_validate({"columns": columns})

    def ask() -> None:
        question = read_question({"kind": "statistics", "table": "people", **settings})
        terms = QueryTerms(declaration=declaration, allow=PERMISSIONS)
        next(question.program(merge_terms(question, {"a": terms, "b": terms})))

    with pytest.raises(WinnowError) as told:
        ask()
    assert line in str(told.value)
    assert "\n" not in str(told.value)


def test_owners_that_forbid_are_named() -> None:
    question = StatisticsQuestion(table="people", correlation=True)
    free = QueryTerms(declaration=DECLARATION, allow=PERMISSIONS)
    strict = QueryTerms(declaration=DECLARATION, allow=("statistics",))
    with pytest.raises(ConfigError, match="clinic forbids correlation on table 'people'"):
        merge_terms(question, {"ward": free, "clinic": strict})
    noisy = QueryTerms(declaration=DECLARATION, allow=PERMISSIONS, noise_needed=True)
    with pytest.raises(ConfigError, match=r"clinic .*--epsilon"):
        merge_terms(question, {"ward": free, "clinic": noisy})
    fit = read_question({"kind": "fit", "table": "people", "model": "linear", "formula": "age ~ weight"})
    with pytest.raises(ConfigError, match="with noise only; only statistics and statements in SQL can have it"):
        merge_terms(fit, {"ward": free, "clinic": noisy})


def test_too_few_rows() -> None:
    with pytest.raises(DataError, match="fewer than 10 rows have a value"):
        answer_of(divided(pooled_rows(7, 12), 2, 12))
