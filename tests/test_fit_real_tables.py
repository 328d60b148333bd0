"""Logistic regression over five owners on two real tables scores as on the pooled rows."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
import statsmodels.api as sm
from sklearn.metrics import roc_auc_score

from support.needs import data_set
from winnow.analytics.fit.fit_question import FitQuestion
from winnow.analytics.fit.fitted_model import FittedModel
from winnow.analytics.program import run_plain
from winnow.analytics.question import MergedTerms
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

OWNERS = 5
Load: TypeAlias = Callable[[Path], tuple[pd.DataFrame, pd.DataFrame]]


def adult(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows; texts by their place in the alphabet. The last column is the outcome."""
    parts = [pd.read_csv(folder / f"adult.{part}.gz", header=None, comment="|") for part in ("data", "test")]
    rows = pd.concat(parts, ignore_index=True).dropna()
    rows[14] = rows[14].str.contains(">50K").astype(int)
    for column in rows.select_dtypes(exclude="number").columns:
        rows[column] = pd.Categorical(rows[column]).codes
    return rows.iloc[: len(parts[0])], rows.iloc[len(parts[0]) :]


def credit(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.read_csv(folder / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    order = np.random.default_rng(0).permutation(len(rows))
    return rows.iloc[order[:24_000]], rows.iloc[order[24_000:]]


@pytest.mark.slow(part="science")
@pytest.mark.parametrize(("load", "auc"), [(adult, 0.851), (credit, 0.726)])
def test_logistic_regression_scores_as_on_pooled_rows(data_directory: Path, load: Load, auc: float) -> None:
    train, test = load(data_set(data_directory, "tabular"))
    names = [f"c{place}" for place in range(train.shape[1] - 1)]
    train, test = (part.set_axis([*names, "y"], axis=1).astype(float) for part in (train, test))
    columns = {
        name: {"level": "protected", "type": "number", "bounds": [train[name].min(), train[name].max()]}
        for name in (*names, "y")
    }
    declaration = TableDeclaration.model_validate({"columns": columns})
    owner = np.random.default_rng(1).choice(OWNERS, len(train), p=[0.4, 0.25, 0.2, 0.1, 0.05])
    tables = [
        OwnerTable(declaration, arrow.Table.from_pandas(train[owner == place], preserve_index=False))
        for place in range(OWNERS)
    ]
    terms = MergedTerms(declaration=declaration, minimum=10, owners=tuple("abcde"))
    question = FitQuestion(table="rows", model="logistic", formula=f"y ~ {' + '.join(names)}")
    model = FittedModel(run_plain(lambda: question.program(terms), tables))
    found = roc_auc_score(test["y"], model.estimator.predict_proba(test)[:, 1])
    middle, width = train[names].mean(), train[names].std()
    pooled = sm.Logit(train["y"], sm.add_constant((train[names] - middle) / width)).fit(disp=0, maxiter=100)
    expected = roc_auc_score(test["y"], pooled.predict(sm.add_constant((test[names] - middle) / width)))
    assert found == pytest.approx(expected, abs=0.0005)
    assert found == pytest.approx(auc, abs=0.002)
