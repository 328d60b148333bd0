"""winnow export MODEL"""

from pathlib import Path
from typing import Annotated

import typer

from winnow.cli.options import Encoder, Factory, ModelFolder


def export(
    model: ModelFolder,
    onnx: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the model in ONNX.")] = None,
    torchscript: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the model in TorchScript.")] = None,
    folder: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write a folder that winnow.load reads, without the run.")
    ] = None,
    factory: Factory = None,
    encoder: Encoder = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the run's rounds for TensorBoard.")
    ] = None,
    mlflow: Annotated[
        str | None, typer.Option(metavar="URI", help="Write the run's rounds to MLflow: an address or sqlite:///FILE.")
    ] = None,
    wandb: Annotated[
        str | None, typer.Option(metavar="PROJECT", help="Write the run's rounds to Weights & Biases.")
    ] = None,
    offline: Annotated[bool, typer.Option(help="With --wandb: keep them here, for `wandb sync`.")] = False,
    follow: Annotated[bool, typer.Option(help="Go on until the run is finished.")] = False,
) -> None:
    """Write a trained model for other programs or in a folder of its own, or a run's rounds for a tracker."""
    from winnow.core import ConfigError
    from winnow.experiment.saved_model import ONNX_FILES, TORCHSCRIPT_FILES, load_model
    from winnow.runs.output_file import check_output
    from winnow.tracking.mlflow_tracker import MlflowTracker
    from winnow.tracking.tensorboard_tracker import TensorBoardTracker
    from winnow.tracking.track_run import export_run
    from winnow.tracking.wandb_tracker import WandbTracker

    check_output(onnx, *ONNX_FILES, option="--onnx")
    check_output(torchscript, *TORCHSCRIPT_FILES, option="--torchscript")
    trackers = [
        *([TensorBoardTracker(folder=str(tensorboard))] if tensorboard else []),
        *([MlflowTracker(uri=mlflow)] if mlflow else []),
        *([WandbTracker(project=wandb, mode="offline" if offline else "online")] if wandb else []),
    ]
    for tracker in trackers:
        rounds = export_run(model, tracker, follow=follow)
        typer.echo(f"{rounds} rows written to {tracker.package}")
    if onnx is None and torchscript is None and folder is None:
        if not trackers:
            raise ConfigError("say what to write: --onnx, --torchscript, --folder, --tensorboard, --mlflow or --wandb")
        return
    saved = load_model(model, factory=factory, encoder=encoder)
    if onnx is not None:
        typer.echo(saved.export_onnx(onnx))
    if torchscript is not None:
        typer.echo(saved.export_torchscript(torchscript))
    if folder is not None:
        typer.echo(saved.save(folder))
