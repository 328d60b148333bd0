"""A party's own samples through the job's frozen encoder, once: features stay where the samples are."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.deploy.jobs.party_data import ServerData, SiteData
from winnow.experiment.build_training_workflow import set_up_device
from winnow.experiment.encode_data import SampleEncoder, encode_clients, feature_preprocessing
from winnow.runs.file_names import FEATURES

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.data import Preprocessing

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
        open=None if data.open is None else encoder.encode([data.open])[0],
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
    shown = None if data.open is None else encoder.encode([data.open])[0]
    return replace(data, reference=reference, test=test, labelled=labelled, open=shown)


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
