"""A party's own samples through the job's frozen encoder, once: features stay where the samples are."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.deploy.jobs.party_data import ServerData, SiteData
from winnow.experiment.build_training_workflow import set_up_device
from winnow.experiment.encode_data import SampleEncoder, encode_clients, feature_preprocessing
from winnow.experiment.standardise_features import (
    LABELLED,
    scaled_examples,
    server_scaling,
    standardised,
    standardised_open,
)
from winnow.runs.file_names import FEATURES

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.data import Preprocessing
    from winnow.data.types import Features

NOTICE_SECONDS = 10.0


def encode_site_data(experiment: "Experiment", data: SiteData, folder: Path, say: Callable[[str], object]) -> SiteData:
    """The site's clients over features, which are kept in the job's folder, where the job encodes anything."""
    encoder = _encoder(experiment, data.preprocessing, folder, say)
    if encoder is None:
        return data
    clients, local_test = encode_clients(encoder, data.clients, data.local_test)
    return replace(
        data,
        clients=clients,
        local_test=local_test,
        open=None if data.open is None else _open_features(encoder, data.open),
        tokens=False,
        preprocessing=feature_preprocessing(data.preprocessing),
    )


def encode_server_data(
    experiment: "Experiment", data: ServerData, folder: Path, say: Callable[[str], object]
) -> ServerData:
    """The same for what the server holds itself. Its preprocessing stays that of raw rows."""
    encoder = _encoder(experiment, data.preprocessing, folder, say)
    if encoder is None:
        return data
    reference, test, labelled = (
        None if each is None else encoder.examples(each) for each in (data.reference, data.test, data.labelled)
    )
    scaling = None
    if encoder.standardises:
        scaling = server_scaling(reference, test)
        reference, test = (each and scaled_examples(each, scaling) for each in (reference, test))
        labelled = labelled and standardised(labelled, LABELLED)
    shown = None if data.open is None else _open_features(encoder, data.open)
    return replace(data, reference=reference, test=test, labelled=labelled, open=shown, feature_scaling=scaling)


def _open_features(encoder: SampleEncoder, x: "Features") -> "Features":
    [features] = encoder.encode([x])
    return standardised_open(features) if encoder.standardises else features


def _encoder(
    experiment: "Experiment", preprocessing: "Preprocessing", folder: Path, say: Callable[[str], object]
) -> SampleEncoder | None:
    if experiment.encode is None:
        return None
    settings = experiment.encode.model_copy(update={"cache": None})  # a path is for the author's own machine
    device = set_up_device(experiment.engine)
    return SampleEncoder(settings, preprocessing, device, folder / FEATURES, _notices(say))


def _notices(say: Callable[[str], object]) -> Callable[[int, int], None]:
    """A line every few seconds, for the party's log."""
    told = time.monotonic()

    def notice(done: int, total: int) -> None:
        nonlocal told
        if time.monotonic() - told >= NOTICE_SECONDS:
            told = time.monotonic()
            say(f"encoding: {done:,} of {total:,} samples")

    return notice
