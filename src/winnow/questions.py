"""Questions in Python: `winnow.fit` and its like, over simulated owners or a federation. None of them loads torch."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.analytics.query_extra import require_query_extra
from winnow.core import AnyEvent, ConfigError

if TYPE_CHECKING:
    from winnow.analytics.fit.fitted_model import FittedModel
    from winnow.analytics.question import Answer, Question
    from winnow.analytics.sql.query_answer import QueryAnswer
    from winnow.analytics.stats.report import StatisticsReport
    from winnow.analytics.trees.boosted_trees import BoostedTrees
    from winnow.analytics.truth.truth_report import TruthReport

FEDERATION_FILE = "federation.toml"


def ask(
    question: "Question",
    *,
    federation: str | Path | None = None,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    on_event: Callable[[AnyEvent], object] = lambda event: None,
    on_line: Callable[[str], None] = lambda line: None,
    on_match: Callable[[str, list[str]], object] = lambda owner, keys: None,
    on_files: Callable[[str, Mapping[str, str]], object] = lambda owner, files: None,
) -> "Answer":
    """Put a question to the owners in a federation file, or (with `kit`) to those of a real federation.

    `owners` restricts it to some; `folder` keeps the run, and a run that is there is continued or read.
    `on_match` gets what simulated owners learn in a set intersection, `on_files` what each has for itself in the end;
    real ones keep it to themselves.
    """
    if federation is not None and kit is not None:
        raise ConfigError("name a federation file or a kit, not both")
    place = None if folder is None else Path(folder)
    if kit is not None:
        from winnow.deploy.client.submit_question import submit_question  # noqa: PLC0415 - simulations need no deployment

        return submit_question(
            Path(kit), question, owners=owners, on_event=on_event, on_line=on_line, folder=place
        ).values
    require_query_extra()
    from winnow.analytics.simulate import ask_simulated  # noqa: PLC0415 - needs the extra `query`

    return ask_simulated(
        question,
        Path(federation or FEDERATION_FILE),
        owners=owners,
        folder=place,
        on_event=on_event,
        on_match=on_match,
        on_files=on_files,
    )


def stats(
    table: str | None = None,
    federation: str | Path | None = None,
    *,
    by: str | Sequence[str] = (),
    columns: Sequence[str] = (),
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> "StatisticsReport":
    """Statistics of a table whose rows several owners hold.

    table       its name; not needed where the federation file has one table
    federation  a federation file with simulated owners; default federation.toml
    by          a column with listed values, or several: everything by group, too
    kit         your kit: the question goes to the owners of a real federation
    settings    histograms=20, quantiles=[0.05, 0.5, 0.95], correlation=True, tests=["t:age,sex"], per_owner=True,
                epsilon=1.0, delta=1e-6, histogram_range="quantiles"
    """
    from winnow.analytics.question import read_question  # noqa: PLC0415 - import winnow is instant
    from winnow.analytics.stats.report import StatisticsReport  # noqa: PLC0415

    name = table if table is not None else only_table(federation, kit)
    groups = (by,) if isinstance(by, str) else tuple(by)
    question = read_question({"kind": "statistics", "table": name, "by": groups, "columns": columns, **settings})
    return StatisticsReport(ask(question, federation=federation, kit=kit, owners=owners, folder=folder))


def fit(
    model: str,
    formula: str | None = None,
    federation: str | Path | None = None,
    *,
    table: str | None = None,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> "FittedModel":
    """Fit a model to rows of several owners, from sums alone.

    model       "linear", "ridge", "logistic", "poisson", "gamma", "svm", "naive-bayes" with a formula ("y ~ a + C(b)");
                "pca", "kmeans" with columns=[…]
    table       its name; not needed where the federation file has one table
    federation  a federation file with simulated owners; default federation.toml
    kit         your kit: the question goes to the owners of a real federation
    settings    positive, penalty, clusters, components, features, width, cost, seed
    """
    from winnow.analytics.fit.fitted_model import FittedModel  # noqa: PLC0415 - import winnow is instant
    from winnow.analytics.question import read_question  # noqa: PLC0415

    name = table if table is not None else only_table(federation, kit)
    given = {"kind": "fit", "model": model, "table": name, "formula": formula, **settings}
    question = read_question(given)
    return FittedModel(ask(question, federation=federation, kit=kit, owners=owners, folder=folder))


def trees(
    table: str | None = None,
    target: str = "",
    federation: str | Path | None = None,
    *,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> "BoostedTrees":
    """Boosted trees over rows of several owners, grown from sums of gradients; the result's `model` is XGBoost's.

    table       its name; not needed where the federation file has one table
    target      the column to predict: two values, several, or a number with bounds
    federation  a federation file with simulated owners; default federation.toml
    kit         your kit: the question goes to the owners of a real federation
    settings    columns=[…], positive, rounds=100, depth=6, learning_rate=0.1, bins=64, reg_lambda=1.0, reg_alpha=0.0,
                gamma=0.0, min_child_weight=1.0, minimum, holdout=0.1, early_stopping=10, secure=False, seed=0;
                vertical="another owner's table", key="a column to match rows by", overlap=1000
    """
    from winnow.analytics.question import read_question  # noqa: PLC0415 - import winnow is instant
    from winnow.analytics.question_run_folder import OwnerFiles  # noqa: PLC0415
    from winnow.analytics.trees.boosted_trees import BoostedTrees  # noqa: PLC0415
    from winnow.analytics.trees.vertical_parts import with_parts  # noqa: PLC0415

    name = table if table is not None else only_table(federation, kit)
    question = read_question({"kind": "trees", "table": name, "target": target, **settings})
    files = OwnerFiles(None if folder is None else Path(folder))
    answer = ask(question, federation=federation, kit=kit, owners=owners, folder=folder, on_files=files.add)
    return BoostedTrees(with_parts(answer, files.texts))


def intersect(
    table: str,
    key: str,
    federation: str | Path | None = None,
    *,
    between: Sequence[str] = (),
    kit: str | Path | None = None,
    reveal: str = "intersection",
    share: bool = False,
    folder: str | Path | None = None,
) -> int | None:
    """How many keys owners have in common; None if they are fewer than the owners' minimum.

    The first of `between` learns which (unless reveal="size"), with `share` the others do, too.
    """
    from winnow.analytics.question import read_question  # noqa: PLC0415 - import winnow is instant

    given = {"kind": "intersect", "table": table, "key": key, "between": list(between), "reveal": reveal}
    question = read_question({**given, "share": share})
    answer = ask(question, federation=federation, kit=kit, owners=between, folder=folder)
    size: int | None = answer["size"]
    return size


def query(
    sql: str,
    federation: str | Path | None = None,
    *,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
) -> "QueryAnswer":
    """The answer to a SELECT statement about a table whose rows several owners hold.

    sql         in DuckDB's dialect: aggregates, GROUP BY, HAVING, ORDER BY; docs/query.md has the grammar
    federation  a federation file with simulated owners; default federation.toml
    kit         your kit: the statement goes to the owners of a real federation
    epsilon     answer with noise, differentially private
    """
    from winnow.analytics.question import read_question  # noqa: PLC0415 - import winnow is instant
    from winnow.analytics.sql.query_answer import QueryAnswer  # noqa: PLC0415

    given = {"kind": "query", "sql": sql, "epsilon": epsilon, "delta": delta}
    question = read_question(given)
    return QueryAnswer(ask(question, federation=federation, kit=kit, owners=owners, folder=folder))


def explain_statement(
    sql: str,
    federation: str | Path | None = None,
    *,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    epsilon: float | None = None,
    delta: float | None = None,
) -> str:
    """What a statement would make owners do, who would learn what, and what it would cost. Nothing is computed: owners
    of a real federation (`kit`) are asked for their terms alone; simulated ones are looked at here.
    """
    from winnow.analytics.question import read_question  # noqa: PLC0415

    given = {"kind": "query", "sql": sql, "epsilon": epsilon, "delta": delta}
    if kit is not None:
        from winnow.analytics.answers import answer_errors  # noqa: PLC0415

        told = ask(read_question({**given, "explain": True}), kit=kit, owners=owners)
        with answer_errors():
            return "\n".join([*told["plan"], told["costs"]])
    require_query_extra()
    from winnow.analytics.simulate import planned_steps  # noqa: PLC0415 - needs the extra `query`
    from winnow.analytics.step_costs import explained_costs  # noqa: PLC0415

    answer, steps = planned_steps(read_question(given), Path(federation or FEDERATION_FILE), owners)
    costs = explained_costs(steps, len(answer["owners"]), complete=True, deployed=False)
    return "\n".join([*answer["plan"], costs])


def truth(
    answers: str | Path | Mapping[str, Sequence[Any]],
    federation: str | Path | None = None,
    *,
    item: str = "item",
    worker: str | None = None,
    label: str = "label",
    method: str = "logistic",
    private: bool = False,
    kit: str | Path | None = None,
    owners: Sequence[str] = (),
    folder: str | Path | None = None,
    **settings: Any,
) -> "TruthReport":
    """What is true of items that workers answered differently, and how far each worker can be trusted.

    answers     a CSV file, a data frame, or columns by name; `item`, `worker` and `label` name three of them
    method      "logistic", "sum", "dawid-skene"; "crh" for numbers
    private     by secret shares between simulated participants: only sums are opened
    settings    labels=["yes", "no"], iterations=30; with private: ranking=True, holders=9, threshold=5, dropout=0.05,
                dropouts="kept", seed=0
    federation  a federation file with simulated owners: `answers` is the name of their table, and settings are
                iterations, ranking=True, trust=True; without `worker` each owner is one worker
    kit         your kit: the question goes to the owners of a real federation
    """
    if federation is None and kit is None:
        from winnow.analytics.truth.find_truth import find_truth  # noqa: PLC0415 - import winnow is instant

        by = "worker" if worker is None else worker
        return find_truth(answers, item=item, worker=by, label=label, method=method, private=private, **settings)
    from winnow.analytics.question import read_question  # noqa: PLC0415
    from winnow.analytics.truth.truth_report import TruthReport  # noqa: PLC0415

    if private:
        raise ConfigError("private simulates the participants of a file; owners of a table always keep their answers")
    given = {"kind": "truth", "table": answers, "item": item, "label": label, "worker": worker, "method": method}
    question = read_question({**given, **settings})
    return TruthReport(ask(question, federation=federation, kit=kit, owners=owners, folder=folder))


def load_fit(path: str | Path) -> "FittedModel":
    """A fit that `winnow fit --out` or `.save` wrote, or that a run folder holds."""
    from winnow.analytics.fit.fitted_model import read_fit  # noqa: PLC0415

    return read_fit(Path(path))


def load_trees(path: str | Path, parts: Sequence[str | Path] = ()) -> "BoostedTrees":
    """Trees from the run folder of `winnow trees --folder`. Of vertical trees between organisations the folder has no
    model: `parts` are the two files trees.json that the owners have, of labels and of features.
    """
    from winnow.analytics.trees.boosted_trees import read_trees  # noqa: PLC0415

    return read_trees(Path(path), [Path(part) for part in parts])


def only_table(federation: str | Path | None, kit: str | Path | None) -> str:
    """The table that is meant where none is named."""
    if kit is not None:
        raise ConfigError("name the table; a federation may offer several (winnow sites --kit KIT)")
    from winnow.analytics.tables.federation_file import load_federation  # noqa: PLC0415

    tables = list(load_federation(Path(federation or FEDERATION_FILE)).tables)
    if len(tables) != 1:
        raise ConfigError(f"name the table: {', '.join(tables)}")
    return tables[0]
