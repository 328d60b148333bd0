"""Fits over several owners against statsmodels and scikit-learn on the pooled rows."""

import warnings
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy.linalg import subspace_angles
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.linear_model import Ridge
from sklearn.metrics import roc_auc_score
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from winnow.analytics.fit.fit_question import FitQuestion
from winnow.analytics.fit.fitted_model import FittedModel
from winnow.analytics.fit.formula import parse_formula
from winnow.analytics.program import Compare, Sum, run_plain
from winnow.analytics.question import MergedTerms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, DataError

ROWS = 3000
MINIMUM = 10
DECLARATION = TableDeclaration.model_validate(
    {
        "columns": {
            "age": {"level": "protected", "bounds": [0, 110]},
            "dose": {"level": "protected", "bounds": [0.05, 50]},
            "year": {"level": "public", "bounds": [1990, 2030]},
            "ward": {"level": "public", "values": ["a", "b", "c", "d", "e"]},
            "sex": {"level": "public", "values": ["f", "m"]},
            "died": {"level": "protected", "values": ["no", "yes"]},
            "visits": {"level": "protected", "bounds": [0, 60]},
            "cost": {"level": "protected", "bounds": [0, 2000]},
            "pay": {"level": "protected", "bounds": [1, 3000]},
            "note": "public",
            "patient": {"level": "private", "key": True},
        }
    }
)


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    rng = np.random.default_rng(5)
    frame = pd.DataFrame(
        {
            "age": rng.uniform(18, 90, ROWS),
            "dose": rng.lognormal(0, 1, ROWS).clip(0.05, 50),
            "year": rng.integers(2001, 2026, ROWS).astype(float),
            "ward": rng.choice(["a", "b", "c", "d"], ROWS, p=[0.45, 0.3, 0.2, 0.05]),
            "sex": rng.choice(["f", "m"], ROWS),
        }
    )
    predictor = -2 + 0.03 * frame.age + 0.5 * np.log(frame.dose) + 0.7 * (frame.ward == "b")
    frame["died"] = np.where(rng.uniform(size=ROWS) < 1 / (1 + np.exp(-predictor)), "yes", "no")
    frame["visits"] = rng.poisson(np.exp(-0.5 + 0.01 * frame.age + 0.2 * np.log(frame.dose))).clip(0, 60).astype(float)
    frame["cost"] = (100 + 3 * frame.age + 20 * frame.dose + rng.normal(0, 30, ROWS)).clip(0, 2000)
    frame["pay"] = rng.gamma(2, np.exp(3 + 0.01 * frame.age) / 2).clip(1, 3000)
    frame["note"], frame["patient"] = "x", [f"p{place}" for place in range(ROWS)]
    frame.loc[rng.choice(ROWS, 100, replace=False), "age"] = np.nan
    return frame


def owners(frame: pd.DataFrame, count: int) -> list[OwnerTable]:
    """Of very different sizes, each with rows of its own kind: sorted by age."""
    ordered = frame.sort_values("age")
    ends = np.floor(len(frame) * (np.arange(1, count) / count) ** 2).astype(int)
    parts = [ordered.iloc[start:end] for start, end in zip([0, *ends], [*ends, len(frame)], strict=True)]
    return [OwnerTable(DECLARATION, arrow.Table.from_pandas(part, preserve_index=False)) for part in parts]


def fitted(frame: pd.DataFrame, count: int = 3, **question: Any) -> FittedModel:
    tables = owners(frame, count)
    terms = MergedTerms(declaration=DECLARATION, minimum=MINIMUM, owners=tuple(str(i) for i in range(count)))
    asked = FitQuestion(table="stays", **question)
    return FittedModel(run_plain(lambda: asked.program(terms), tables))


def compare(found: FittedModel, reference: Any, names: dict[str, str]) -> None:
    for term in found.answer["terms"]:
        name = names.get(term["term"], term["term"])
        assert term["estimate"] == pytest.approx(reference.params[name], rel=1e-5)
        assert term["std_error"] == pytest.approx(reference.bse[name], rel=1e-5)
        assert term["p"] == pytest.approx(reference.pvalues[name], rel=1e-3, abs=1e-12)
    assert len(found.answer["terms"]) == len(reference.params)


CATEGORIES = {f"ward[{ward}]": f"C(ward)[T.{ward}]" for ward in "bcd"} | {"sex[m]": "C(sex)[T.m]"}
WARDS = {f"ward[{ward}]": f"C(ward)[T.{ward}]" for ward in "bcd"}


@pytest.mark.parametrize("count", [1, 2, 20])
def test_linear_regression_is_that_of_statsmodels(frame: pd.DataFrame, count: int) -> None:
    found = fitted(frame, count, model="linear", formula="cost ~ age + dose + year + ward")
    reference = smf.ols("cost ~ age + dose + year + C(ward)", frame).fit()
    compare(found, reference, WARDS)
    assert found.answer["r2"] == pytest.approx(reference.rsquared, abs=1e-8)
    assert found.rows == ROWS - 100
    assert found.answer["pooled"] == ["ward[e]"]  # listed, and in no row
    rows = frame.dropna().head(50)
    assert found.predict(rows) == pytest.approx(reference.predict(rows).to_numpy(), rel=1e-6)


def test_interactions_logarithms_and_no_intercept(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="linear", formula="cost ~ sex*age + log(dose) - 1")
    reference = smf.ols("cost ~ C(sex)*age + np.log(dose) - 1", frame).fit()
    names = {"sex[f]": "C(sex)[f]", "sex[m]": "C(sex)[m]", "sex[m]:age": "C(sex)[T.m]:age", "log(dose)": "np.log(dose)"}
    compare(found, reference, names)
    rows = frame.dropna().head(20)
    assert found.predict(rows) == pytest.approx(reference.predict(rows).to_numpy(), rel=1e-6)


def test_ridge_is_that_of_scikit_learn_on_standardised_columns(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="ridge", formula="cost ~ age + dose", penalty=250.0)
    rows = frame.dropna()
    scaler = StandardScaler().fit(rows[["age", "dose"]])
    reference = Ridge(alpha=250.0).fit(scaler.transform(rows[["age", "dose"]]), rows.cost)
    expected = reference.predict(scaler.transform(rows[["age", "dose"]]))
    assert found.predict(rows) == pytest.approx(expected, rel=1e-7)


def test_logistic_regression_is_that_of_statsmodels(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="logistic", formula="died ~ age + log(dose) + ward")
    numbers = frame.assign(died=(frame.died == "yes").astype(int))
    family = sm.families.Binomial()
    reference = smf.glm("died ~ age + np.log(dose) + C(ward)", numbers, family=family).fit(tol=1e-12, maxiter=100)
    compare(found, reference, {**WARDS, "log(dose)": "np.log(dose)"})
    rows = frame.dropna().head(50)
    assert found.estimator.predict_proba(rows)[:, 1] == pytest.approx(reference.predict(rows).to_numpy(), rel=1e-6)
    assert {*found.predict(rows)} <= {"yes", "no"}


def test_the_positive_value_can_be_chosen(frame: pd.DataFrame) -> None:
    yes = fitted(frame, model="logistic", formula="died ~ age").coef
    no = fitted(frame, model="logistic", formula="died ~ age", positive="no").coef
    assert no["age"] == pytest.approx(-yes["age"], rel=1e-7)
    ward = fitted(frame, model="logistic", formula="ward ~ age", positive="b")
    assert ward.answer["classes"] == ["not b", "b"]


def test_poisson_and_gamma_regression_are_those_of_statsmodels(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="poisson", formula="visits ~ age + log(dose)")
    reference = smf.glm("visits ~ age + np.log(dose)", frame, family=sm.families.Poisson()).fit(tol=1e-12, maxiter=100)
    compare(found, reference, {"log(dose)": "np.log(dose)"})
    rows = frame.dropna().head(20)
    assert found.predict(rows) == pytest.approx(reference.predict(rows).to_numpy(), rel=1e-6)
    found = fitted(frame, 5, model="gamma", formula="pay ~ age + ward")
    family = sm.families.Gamma(sm.families.links.Log())
    reference = smf.glm("pay ~ age + C(ward)", frame, family=family).fit(tol=1e-12, maxiter=100)
    compare(found, reference, WARDS)
    assert found.answer["dispersion"] == pytest.approx(reference.scale, rel=1e-6)


COLUMNS = ("age", "dose", "cost")


def standardised(frame: pd.DataFrame) -> Any:
    return StandardScaler().fit_transform(frame.dropna()[list(COLUMNS)])


def test_principal_components_span_the_pooled_ones(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="pca", columns=COLUMNS, components=2)
    reference = PCA(2).fit(standardised(frame))
    axes = found.estimator["model"].components_
    assert subspace_angles(axes.T, reference.components_.T).max() < 1e-4
    assert found.answer["explained_variance"] == pytest.approx(reference.explained_variance_, rel=1e-6)
    scores = found.predict(frame.dropna())
    assert np.abs(scores) == pytest.approx(np.abs(reference.transform(standardised(frame))), abs=1e-5)


@pytest.mark.parametrize("clusters", [3, 6])
def test_clusters_are_about_as_tight_as_the_best_of_ten(frame: pd.DataFrame, clusters: int) -> None:
    found = fitted(frame, model="kmeans", columns=COLUMNS, clusters=clusters)
    assigned = found.predict(frame.dropna())
    rows = standardised(frame)
    with warnings.catch_warnings():  # joblib warns where a container hides how many cores there are
        warnings.filterwarnings("ignore", "Could not find the number of physical cores")
        best = KMeans(clusters, n_init=10, random_state=1).fit(rows).inertia_
    assert found.answer["inertia"] <= 1.02 * best
    centres = found.estimator["model"].cluster_centers_
    assert ((rows - centres[assigned]) ** 2).sum() <= 1.02 * best
    assert min(np.bincount(assigned)) >= MINIMUM


def test_support_vector_classification_needs_no_support_vectors(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="svm", formula="died ~ age + dose + ward", features=60)
    rows = frame.dropna()
    mapped = found.estimator[:-1].transform(rows)
    reference = LinearSVC(C=1.0, tol=1e-8, max_iter=100_000, intercept_scaling=100).fit(mapped, rows.died)
    ours = found.estimator["model"].decision_function(mapped)
    assert np.corrcoef(ours, reference.decision_function(mapped))[0, 1] > 0.9999
    auc = roc_auc_score(rows.died == "yes", ours)
    assert auc == pytest.approx(roc_auc_score(rows.died == "yes", reference.decision_function(mapped)), abs=5e-4)


def test_naive_bayes_is_that_of_scikit_learn(frame: pd.DataFrame) -> None:
    rows = frame.dropna()
    found = fitted(frame, model="naive-bayes", formula="died ~ age + dose")
    reference = GaussianNB().fit(rows[["age", "dose"]], rows.died)
    expected = reference.predict_proba(rows[["age", "dose"]])
    assert found.estimator.predict_proba(rows) == pytest.approx(expected, abs=1e-6)
    found = fitted(frame, model="naive-bayes", formula="died ~ ward + sex")
    codes = np.stack([frame.ward.map({"a": 0, "b": 1, "c": 2, "d": 3}), frame.sex.map({"f": 0, "m": 1})], axis=1)
    reference = CategoricalNB().fit(codes, frame.died)
    assert found.estimator.predict_proba(frame) == pytest.approx(reference.predict_proba(codes), abs=1e-9)


def watched(frame: pd.DataFrame, question: FitQuestion) -> list[tuple[Any, Any]]:
    """All steps, and what they opened."""
    terms, tables = MergedTerms(declaration=DECLARATION, minimum=MINIMUM, owners=("a", "b")), owners(frame, 2)
    seen = []

    def program() -> Any:
        running = question.program(terms)
        step = next(running)
        while True:
            opened = yield step
            seen.append((step, opened))
            try:
                step = running.send(opened)
            except StopIteration as stop:
                return stop.value

    run_plain(program, tables)
    return seen


@pytest.mark.parametrize("rare", [1, 4, 9])
def test_no_level_with_too_few_rows_is_summed(frame: pd.DataFrame, rare: int) -> None:
    few = frame.dropna().copy()
    few.loc[few.index[:rare], "ward"] = "e"
    few = few[(few.ward != "e") | (few.died == "yes")]
    question = FitQuestion(table="stays", model="logistic", formula="died ~ age + ward*sex")
    seen = watched(few, question)
    design = fitted(few, 2, model="logistic", formula="died ~ age + ward*sex").answer
    assert "ward[e]" in design["pooled"]
    sums = [(step, opened) for step, opened in seen if isinstance(step, Sum)]
    compares = [step for step, _ in seen if isinstance(step, Compare)]
    assert compares
    assert sums[0][0].label == "complete rows"
    # XᵀX of 0/1 columns counts rows: nothing on it, and no difference to a level's own count, is between 1 and 9.
    names = ["Intercept", *(term["name"] for term in design["design"]["terms"])]
    gram = np.zeros((len(names), len(names)))
    start = next(opened for step, opened in sums if "mean response" in step.label)
    gram[np.triu_indices(len(names))] = np.array(
        [float(int(each)) for each in start[: len(names) * (len(names) + 1) // 2]]
    )
    scale = len(few) / gram[0, 0]
    dummies = [place for place, name in enumerate(names) if "age" not in name]
    counts = np.rint(gram[np.ix_(dummies, dummies)][np.triu_indices(len(dummies))] * scale)
    assert not [count for count in counts if 0 < count < MINIMUM]


@pytest.mark.parametrize(
    ("question", "reason"),
    [
        ({"model": "linear", "formula": "cost ~ agee"}, "there is no column 'agee'; did you mean 'age'"),
        ({"model": "linear", "formula": "cost ~ note"}, "column 'note' has no bounds"),
        ({"model": "linear", "formula": "cost ~ C(note)"}, "column 'note' has no list of values"),
        ({"model": "linear", "formula": "cost ~ patient"}, "'patient' is private"),
        ({"model": "linear", "formula": "cost ~ age + log(age)"}, r"log\(age\) needs bounds above 0"),
        ({"model": "linear", "formula": "ward ~ age"}, "column 'ward' has no bounds"),
        ({"model": "logistic", "formula": "ward ~ age"}, "tells two values apart; 'ward' has 5"),
        ({"model": "logistic", "formula": "died ~ age", "positive": "ja"}, "positive = 'ja'"),
        ({"model": "logistic", "formula": "cost ~ age"}, "column 'cost' has no list of values"),
        ({"model": "gamma", "formula": "cost ~ age"}, "needs bounds above 0"),
        ({"model": "linear", "formula": "cost ~ age + year:year + C(sex) + sex"}, "collinear"),
        ({"model": "naive-bayes", "formula": "died ~ age + ward"}, "numbers or categories, not both"),
        ({"model": "naive-bayes", "formula": "died ~ age:dose"}, "takes single columns"),
        ({"model": "kmeans", "columns": ("age",), "clusters": 100}, "ask for fewer clusters"),
        ({"model": "pca", "columns": ("age", "dose"), "components": 3}, "there are only 2 columns"),
    ],
)
def test_bad_questions_get_one_clear_line(frame: pd.DataFrame, question: dict[str, Any], reason: str) -> None:
    few = frame.head(300)
    with pytest.raises(ConfigError, match=reason):
        fitted(few, 2, **question)


def test_too_few_rows_are_refused_before_anything_is_summed(frame: pd.DataFrame) -> None:
    with pytest.raises(ConfigError, match="fewer than 10 complete rows in all"):
        fitted(frame.dropna().head(9), 2, model="linear", formula="cost ~ age")
    with pytest.raises(ConfigError, match="fewer than 10 complete rows with the response yes"):
        fitted(frame[frame.died == "no"], 2, model="logistic", formula="died ~ age")


def test_outcomes_that_are_separated_perfectly_are_no_fit(frame: pd.DataFrame) -> None:
    apart = frame.dropna().assign(died=lambda rows: np.where(rows.age > 50, "yes", "no"))
    with pytest.raises(ConfigError, match="separate the outcomes perfectly"):
        fitted(apart, 2, model="logistic", formula="died ~ age")


@pytest.mark.parametrize(
    "text", ["", "y", "y ~", "y ~ a ~ b", "y ~ a +", "y ~ a - b", "y ~ sin(a)", "y ~ a b", "y ~ y", "1 ~ a"]
)
def test_formulas_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="formula"):
        parse_formula(text)


def test_questions_are_read_from_a_bundle() -> None:
    asked = read_question({"kind": "fit", "model": "linear", "table": "stays", "formula": "cost ~ age"})
    assert isinstance(asked, FitQuestion)
    for wrong in ({"model": "tree"}, {"formula": None}, {"model": "pca"}, {"epsilon": 1.0}):
        with pytest.raises(ConfigError, match=r"\[question\]"):
            read_question({"kind": "fit", "model": "linear", "table": "stays", "formula": "y ~ a", **wrong})


def test_a_setting_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="penalty is for ridge, not for linear"):
        read_question({"kind": "fit", "model": "linear", "table": "t", "formula": "y ~ a", "penalty": 2.0})
    with pytest.raises(ConfigError, match="columns is for pca and kmeans, not for linear"):
        read_question({"kind": "fit", "model": "linear", "table": "t", "formula": "y ~ a", "columns": ["b"]})
    sent = FitQuestion(table="t", model="linear", formula="y ~ a").section()
    assert read_question(sent) == FitQuestion(table="t", model="linear", formula="y ~ a")


def test_names_with_signs_stand_in_backticks() -> None:
    formula = parse_formula("`a:b` ~ `hours-per-week` * log(`x+y`) - 1")
    assert formula.columns == ("a:b", "hours-per-week", "x+y")
    assert [len(term) for term in formula.terms] == [1, 1, 2]
    assert not formula.intercept


def test_rows_to_predict_must_have_the_columns_and_known_levels(frame: pd.DataFrame) -> None:
    found = fitted(frame, model="linear", formula="cost ~ age + ward")
    with pytest.raises(DataError, match="the rows have no column 'ward'"):
        found.predict({"age": [1.0]})
    with pytest.raises(DataError, match="did not know: 'z'"):
        found.predict([{"age": 1.0, "ward": "z"}])
    assert found.predict([{"age": 50.0, "ward": "e"}]).shape == (1,)
    assert "std. error" in found.summary()


@pytest.mark.parametrize("model", ["linear", "logistic"])
def test_rows_with_a_combination_that_few_have_are_left_out(frame: pd.DataFrame, model: str) -> None:
    """XᵀX counts the rows that have two levels, which must not be few, though each level has many."""
    rows = frame.dropna()
    both = rows[(rows.ward == "b") & (rows.sex == "m")].index
    few, kept = rows.drop(both[3:]), rows.drop(both)
    formula = "cost ~ age + ward + sex" if model == "linear" else "died ~ age + ward + sex"
    found = fitted(few, 2, model=model, formula=formula)
    assert found.answer["rare"] == 1
    assert found.rows == len(kept)
    assert "combinations of values" in found.summary()
    kept = kept.assign(died=(kept.died == "yes").astype(float))
    of = smf.ols if model == "linear" else smf.logit
    compare(found, of(formula.replace("ward", "C(ward)").replace("sex", "C(sex)"), kept).fit(), CATEGORIES)
    seen = watched(few, FitQuestion(table="stays", model=model, formula=formula))
    size = len(found.answer["terms"])
    gram = next(opened for step, opened in seen if isinstance(step, Sum) and step.label.startswith("XᵀX"))
    entries = np.array([int(each) for each in gram], float) * len(kept) / int(gram[0])
    named = [name["term"] for name in found.answer["terms"]]
    width = size + (model == "linear")
    at = {pair: place for place, pair in enumerate(zip(*np.triu_indices(width), strict=True))}
    assert entries[at[named.index("ward[b]"), named.index("sex[m]")]] == 0


def test_a_level_whose_combinations_are_all_rare_joins_another(frame: pd.DataFrame) -> None:
    rows = frame.dropna()
    burnt = rows[rows.ward == "d"]
    some = pd.concat([burnt[burnt.sex == "f"].head(6), burnt[burnt.sex == "m"].head(6)])
    few = pd.concat([rows[rows.ward != "d"], some])
    found = fitted(few, 2, model="linear", formula="cost ~ age + ward + sex")
    assert (found.rows, found.answer["rare"], found.answer["pooled"]) == (len(few), 0, ["ward[e]", "ward[d]"])
    merged = few.assign(ward=few.ward.replace("d", "a"))
    compare(found, smf.ols("cost ~ age + C(ward) + C(sex)", merged).fit(), CATEGORIES)


def test_no_cluster_can_be_worked_out_from_what_is_left(frame: pd.DataFrame) -> None:
    """One row far from all others makes a cell of its own, which the total less all other cells would tell."""
    few = frame.dropna().copy()
    few.loc[few.index[0], ["age", "dose", "year"]] = [0.0, 50.0, 1990.0]
    seen = watched(few, FitQuestion(table="stays", model="kmeans", columns=("age", "dose", "year"), clusters=3))
    told = 0
    for step, opened in seen:
        if isinstance(step, Sum) and step.label.startswith("sums, cells"):
            left = len(few) - sum(int(size) for size in opened[:: 3 + 2])
            assert left == 0 or left >= MINIMUM
            told += left > 0
    assert told


def test_the_margin_of_two_steps_differs_by_enough_rows_or_the_search_ends(frame: pd.DataFrame) -> None:
    rows = frame.dropna().copy()
    chance = np.random.default_rng(2).uniform(size=len(rows))
    rows["died"] = np.where((rows.age > 55) ^ (chance < 0.05), "yes", "no")
    seen = watched(rows, FitQuestion(table="stays", model="svm", formula="died ~ age + dose", features=20))
    sums = [opened for step, opened in seen if isinstance(step, Sum) and "inside the margin" in step.label]
    size = 20 + 1
    last = size * (size + 1) // 2 - 1  # the constant's own square: how many rows are inside
    scale = len(rows) / int(sums[0][last])
    inside = [round(int(each[last]) * scale) for each in sums]
    assert len(inside) > 2
    assert all(abs(one - other) >= MINIMUM for one, other in combinations(inside, 2))
    final, _ = [(step, opened) for step, opened in seen if isinstance(step, Compare)][-1]
    assert len(final.thresholds) == 1 + len(inside)  # against every step that was summed
    assert (final.thresholds == MINIMUM).all()
