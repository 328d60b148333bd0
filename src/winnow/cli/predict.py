"""winnow predict MODEL ROWS"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import Encoder, Factory, ModelFolder


def predict(
    model: ModelFolder,
    rows: Annotated[Path, typer.Argument(metavar="ROWS", help="A .csv, .parquet or .npz file with raw rows.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The output, .csv or .parquet; default: standard output.")
    ] = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add the probability of each class.")] = False,
    factory: Factory = None,
    encoder: Encoder = None,
) -> None:
    """Predict raw rows with a trained model; the rows are written with a column "prediction" added."""
    from winnow.experiment.predict_file import predict_file
    from winnow.experiment.saved_model import load_model

    predict_file(load_model(model, factory=factory, encoder=encoder), rows, out, probabilities=probabilities)
