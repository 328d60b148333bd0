"""winnow export MODEL"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import Factory, ModelFolder


def export(
    model: ModelFolder,
    onnx: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model in ONNX.", show_default=False)
    ] = None,
    torchscript: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the model in TorchScript.", show_default=False)
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write a folder that winnow.load reads, without the run.", show_default=False),
    ] = None,
    factory: Factory = None,
) -> None:
    """Write a trained model for other programs, or in a folder of its own."""
    from winnow.core import ConfigError
    from winnow.experiment.saved_model import load_model

    if onnx is None and torchscript is None and folder is None:
        raise ConfigError("say what to write: --onnx FILE, --torchscript FILE or --folder DIR")
    saved = load_model(model, factory=factory)
    if onnx is not None:
        typer.echo(saved.export_onnx(onnx))
    if torchscript is not None:
        typer.echo(saved.export_torchscript(torchscript))
    if folder is not None:
        typer.echo(saved.save(folder))
