"""winnow trees TABLE --target COLUMN"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from winnow.cli.ask_owners import ExplainOption, FederationFile, FolderOption, OwnersOption, PersonKit
from winnow.cli.options import AsJson, number_option

if TYPE_CHECKING:
    from winnow.analytics.question import Question


def trees(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="The table to grow trees on.")],
    target: Annotated[str, typer.Option(metavar="COLUMN", help="The column to predict.")],
    federation: FederationFile = None,
    kit: PersonKit = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Split these columns alone.")] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="VALUE", help="The value whose probability is predicted.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD", help="histogram (default), or trees that owners grow alone: bagging, cyclic, forest."
        ),
    ] = None,
    rounds: Annotated[int | None, number_option("Rounds of boosting. Default: 100.")] = None,
    depth: Annotated[int | None, number_option("Of a tree. Default: 6.")] = None,
    learning_rate: Annotated[
        float | None, number_option("What a leaf's weight is multiplied by. Default: 0.1.")
    ] = None,
    bins: Annotated[int | None, number_option("Of a column, at most. Default: 64.")] = None,
    reg_lambda: Annotated[float | None, number_option("λ, added to sums of second derivatives. Default: 1.")] = None,
    reg_alpha: Annotated[float | None, number_option("α, taken off sums of gradients. Default: 0.")] = None,
    gamma: Annotated[float | None, number_option("What a split has to gain. Default: 0.")] = None,
    min_child_weight: Annotated[float | None, number_option("Σh of a child, at least. Default: 1.")] = None,
    minimum: Annotated[int | None, number_option("Rows of a child, where more than owners demand.")] = None,
    holdout: Annotated[float | None, number_option("The share of rows that trees are measured by. Default: 0.")] = None,
    early_stopping: Annotated[
        int | None, number_option("Stop after so many rounds that do not help rows held out.")
    ] = None,
    vertical: Annotated[
        str | None, typer.Option(metavar="TABLE", help="Another owner's table with columns of the same rows.")
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="COLUMN", help="With --vertical: match rows by it.")] = None,
    overlap: Annotated[int | None, number_option("With --vertical: rows in common, at least. Default: 1,000.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Without masks: the server sees each owner's sums.")] = False,
    seed: Annotated[int | None, number_option("Of the rows held out. Default: 0.")] = None,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write XGBoost's model, as .json or .ubj.")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE.html", help="Write a page about it.")] = None,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Grow boosted trees over the rows of several owners, from sums of gradients: the result is an XGBoost booster."""
    from winnow.analytics.question import read_question
    from winnow.analytics.trees.boosted_trees import MODEL_FILES, require_xgboost
    from winnow.cli.ask_owners import names
    from winnow.core import ConfigError
    from winnow.runs.output_file import check_output

    check_output(out, *MODEL_FILES, option="--out")
    check_output(page, ".html", option="--page")
    if out is not None:
        require_xgboost()
    given = {
        "kind": "trees",
        "table": table,
        "target": target,
        "columns": names(columns),
        "positive": positive,
        "method": method,
        "rounds": rounds,
        "depth": depth,
        "learning_rate": learning_rate,
        "bins": bins,
        "reg_lambda": reg_lambda,
        "reg_alpha": reg_alpha,
        "gamma": gamma,
        "min_child_weight": min_child_weight,
        "minimum": minimum,
        "holdout": holdout,
        "early_stopping": early_stopping,
        "vertical": vertical,
        "key": key,
        "overlap": overlap,
        "secure": False if plain else None,
        "seed": seed,
    }
    question = read_question(given)
    if explain:
        from winnow.cli.explain_question import explain_asked

        explain_asked(question, federation=federation, kit=kit, owners=owners, as_json=as_json)
        return
    if out is not None and vertical is not None and kit is not None:
        raise ConfigError("--out: each owner keeps its part of vertical trees; nobody has the whole model")
    _grow(question, federation=federation, kit=kit, owners=owners, folder=folder, out=out, page=page, as_json=as_json)


def _grow(
    question: "Question",
    *,
    federation: Path | None,
    kit: Path | None,
    owners: str | None,
    folder: Path | None,
    out: Path | None,
    page: Path | None,
    as_json: bool,
) -> None:
    """Ask for trees; save and show what comes."""
    from winnow.analytics.answers import render_answer, write_answer_page
    from winnow.analytics.question_run_folder import OwnerFiles
    from winnow.analytics.trees.boosted_trees import BoostedTrees
    from winnow.analytics.trees.vertical_parts import with_parts
    from winnow.cli.ask_owners import ask
    from winnow.cli.console import stdout_console, write_json

    files = OwnerFiles(folder)
    answer = ask(question, federation=federation, kit=kit, owners=owners, folder=folder, on_files=files.add)
    found = BoostedTrees(with_parts(answer, files.texts))
    if out is not None:
        found.save(out)
    if page is not None:
        write_answer_page(dict(answer), page)
    if as_json:
        write_json(answer)
    else:
        stdout_console().print(render_answer(dict(answer)))
