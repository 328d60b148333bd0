"""winnow fit MODEL FORMULA"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.ask_owners import ExplainOption, FederationFile, FolderOption, OwnersOption, PersonKit
from winnow.cli.options import AsJson, number_option


def fit(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="linear, ridge, logistic, poisson, gamma, svm, naive-bayes, pca or kmeans."
        ),
    ],
    subject: Annotated[
        str, typer.Argument(metavar="FORMULA|TABLE", help="'y ~ a + C(b)'; for pca and kmeans a table.")
    ],
    federation: FederationFile = None,
    kit: PersonKit = None,
    table: Annotated[
        str | None, typer.Option(metavar="TABLE", help="The formula's table, if there are several.")
    ] = None,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Of pca and kmeans: these columns alone.")] = None,
    positive: Annotated[
        str | None, typer.Option(metavar="VALUE", help="The value that logistic and svm predict.")
    ] = None,
    penalty: Annotated[float | None, number_option("Of ridge: λ for columns of deviation 1. Default: 1.")] = None,
    clusters: Annotated[int | None, number_option("Of kmeans. Default: 8.")] = None,
    components: Annotated[int | None, number_option("Of pca. Default: all.")] = None,
    features: Annotated[int | None, number_option("Random features of svm. Default: 100.")] = None,
    width: Annotated[float | None, number_option("γ of svm's kernel. Default: 1/columns.")] = None,
    cost: Annotated[float | None, number_option("C of svm. Default: 1.")] = None,
    seed: Annotated[int | None, number_option("Of kmeans and svm. Default: 0.")] = None,
    owners: OwnersOption = None,
    folder: FolderOption = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the fit to a file, for winnow.load_fit.")
    ] = None,
    explain: ExplainOption = False,
    as_json: AsJson = False,
) -> None:
    """Fit a model to the rows of several owners, from sums alone: no row and no owner's own value leaves."""
    from winnow.analytics.answers import render_answer
    from winnow.analytics.fit.fit_question import WITHOUT_RESPONSE
    from winnow.analytics.fit.fitted_model import FittedModel
    from winnow.analytics.question import read_question
    from winnow.cli.ask_owners import ask, names
    from winnow.cli.console import stdout_console, write_json
    from winnow.core import ConfigError
    from winnow.questions import only_table
    from winnow.runs.output_file import check_output

    check_output(out, ".json", option="--out")
    if model in WITHOUT_RESPONSE and table is not None:
        raise ConfigError(f"{model} takes the table in the place of a formula; leave out --table")
    formula = None if model in WITHOUT_RESPONSE else subject
    name = subject if formula is None else table or only_table(federation, kit)
    given = {
        "kind": "fit",
        "model": model,
        "table": name,
        "formula": formula,
        "columns": names(columns),
        "positive": positive,
        "penalty": penalty,
        "clusters": clusters,
        "components": components,
        "features": features,
        "width": width,
        "cost": cost,
        "seed": seed,
    }
    question = read_question(given)
    if explain:
        from winnow.cli.explain_question import explain_asked

        explain_asked(question, federation=federation, kit=kit, owners=owners, as_json=as_json)
        return
    found = FittedModel(ask(question, federation=federation, kit=kit, owners=owners, folder=folder))
    if out is not None:
        found.save(out)
    if as_json:
        write_json(found.answer)
    else:
        stdout_console().print(render_answer(dict(found.answer)))
