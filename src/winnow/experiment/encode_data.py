"""Data as a frozen encoder sees them: every sample passes through it once, and the run has features for data."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import DataError, OwnCodeError
from winnow.data import ClientData, ClientsOnDemand, Examples, FederatedData, Preprocessing
from winnow.data.text import decode_characters
from winnow.data.types import Features
from winnow.experiment.feature_cache import FeatureCache, sample_digests
from winnow.experiment.standardise_features import (
    LABELLED,
    scaled_examples,
    server_scaling,
    standardise_clients,
    standardised,
    standardised_on_demand,
    standardised_open,
)
from winnow.learn.encoders import EncodeSettings, FrozenEncoder, Samples, build_encoder
from winnow.learn.encoders.settings import checked_features

OnEncoded: TypeAlias = Callable[[int, int], None]
"""Is told how many samples are encoded, of how many."""
CHUNK = 128
"""Samples that are encoded between two notices of progress."""
SAVE_SECONDS = 15.0
"""What a killed process loses at most, and a chunk."""


def say_nothing(done: int, total: int) -> None:
    """For whoever does not watch."""


def feature_preprocessing(raw: Preprocessing) -> Preprocessing:
    """What is left to do to features: nothing; labels and units are as they were."""
    return Preprocessing(classes=raw.classes, targets=raw.targets)


class SampleEncoder:
    """Encodes samples that a preprocessing made out of raw rows, as they were before it scaled them."""

    def __init__(
        self,
        settings: EncodeSettings,
        preprocessing: Preprocessing,
        device: torch.device,
        folder: Path | None = None,
        on_encoded: OnEncoded = say_nothing,
    ) -> None:
        self._settings, self._preprocessing, self._device = settings, preprocessing, device
        self._folder, self._on_encoded = settings.cache or folder, on_encoded
        self._width: int | None = None
        _check_kind(settings, preprocessing)

    @property
    def standardises(self) -> bool:
        """Whether whoever holds features is to standardise them."""
        return self._settings.scale == "standard"

    @cached_property
    def _encoder(self) -> FrozenEncoder:
        return build_encoder(self._settings, self._device)

    @cached_property
    def _cache(self) -> FeatureCache:
        return FeatureCache(self._folder, f"{self._encoder.identity}\n{self._preprocessing.model_dump_json()}")

    def encode(self, arrays: Sequence[Features]) -> list[NDArray[np.float32]]:
        """The features of each array's samples."""
        digests = [sample_digests(x) for x in arrays]
        places = {digest: (array, row) for array, each in enumerate(digests) for row, digest in enumerate(each)}
        missing = [digest for digest in places if digest not in self._cache]
        pending: list[tuple[list[bytes], NDArray[np.float32]]] = []
        saved = time.monotonic()
        for first in range(0, len(missing), CHUNK):
            chunk = missing[first : first + CHUNK]
            x = np.stack([arrays[array][row] for array, row in (places[digest] for digest in chunk)])
            found = checked_features(self._encoder(self._raw(x)), len(x), self._settings.name)
            self._check_width(found.shape[1])
            pending.append((chunk, found))
            self._on_encoded(first + len(chunk), len(missing))
            if time.monotonic() - saved > SAVE_SECONDS:
                self._keep(pending)
                saved = time.monotonic()
        self._keep(pending)
        width = len(self._cache.rows(digests[0][:1])[0]) if digests and digests[0] else 0
        return [self._cache.rows(each) if each else np.empty((0, width), np.float32) for each in digests]

    def _check_width(self, width: int) -> None:
        """Every sample becomes as many features as those before it."""
        self._width = self._width or self._cache.width or width
        if width != self._width:
            raise OwnCodeError(
                f"encoder '{self._settings.name}' must return equally many features for all samples, in any batch",
                f"it returned {self._width}, and then {width}",
            )

    def _keep(self, pending: list[tuple[list[bytes], NDArray[np.float32]]]) -> None:
        if pending:
            digests = [digest for chunk, _ in pending for digest in chunk]
            self._cache.add(digests, np.concatenate([found for _, found in pending]))
            pending.clear()

    def _raw(self, x: Features) -> Samples:
        texts = self._preprocessing.columns
        if texts:
            return decode_characters(x)
        array = self._preprocessing.array
        return x if array is None or array.scaling is None else array.scaling.undo(x).astype(np.float32)

    def examples(self, held: Examples) -> Examples:
        return replace(held, x=self.encode([held.x])[0]) if len(held) else held


def encode_clients(
    encoder: SampleEncoder, clients: ClientData | ClientsOnDemand, local_test: ClientData | None
) -> tuple[ClientData | ClientsOnDemand, ClientData | None]:
    """Clients whose samples are features, and their local tests. What is not in memory is encoded when it is loaded."""
    if isinstance(clients, ClientsOnDemand):
        load, template = clients.load, encoder.examples(clients.template)
        encoded = replace(clients, load=lambda client: encoder.examples(load(client)), template=template)
        return standardised_on_demand(encoded) if encoder.standardises else encoded, None
    rows = _rows_of(clients, local_test)
    [found] = encoder.encode([clients.x[rows]])
    return _with_client_features(encoder, clients, local_test, rows, found)


def _with_client_features(
    encoder: SampleEncoder,
    clients: ClientData,
    local_test: ClientData | None,
    rows: NDArray[np.int64],
    found: NDArray[np.float32],
    names: Sequence[str] | None = None,
) -> tuple[ClientData, ClientData | None]:
    own, held_out = _with_features(clients, rows, found), local_test and _with_features(local_test, rows, found)
    if encoder.standardises:
        standardise_clients(own, held_out, names)
    return own, held_out


def _rows_of(clients: ClientData, local_test: ClientData | None) -> NDArray[np.int64]:
    """Of the array that both share, the rows that are anybody's."""
    return np.unique(np.concatenate([clients.rows, *([] if local_test is None else [local_test.rows])]))


def _check_kind(settings: EncodeSettings, preprocessing: Preprocessing) -> None:
    columns = preprocessing.columns
    if preprocessing.inputs:
        raise DataError(
            f"encoder '{settings.name}' reads one input a sample; the data have {len(preprocessing.inputs)}"
        )
    if columns and (len(columns) > 1 or columns[0].kind != "text"):
        raise DataError(f"encoder '{settings.name}' reads arrays or one column of texts; the data are a table")
    if columns and columns[0].unit != "characters":
        raise DataError(f"encoder '{settings.name}' reads texts as they are: set data.text = {{ unit = 'characters' }}")


def _with_features(clients: ClientData, rows: NDArray[np.int64], features: NDArray[np.float32]) -> ClientData:
    """The clients over the features of those rows alone."""
    return replace(clients, x=features, y=clients.y[rows], rows=np.searchsorted(rows, clients.rows))


def encode_federated(federated: FederatedData, encoder: SampleEncoder) -> FederatedData:
    """The same federation over features: clients, their local tests, and what the server holds."""
    clients, local_test = federated.clients, federated.local_test
    held = [federated.reference, federated.test]
    if isinstance(clients, ClientsOnDemand):
        reference, test = map(encoder.examples, held)
        encoded = replace(
            federated,
            clients=encode_clients(encoder, clients, None)[0],
            reference=reference,
            test=test,
            preprocessing=feature_preprocessing(federated.preprocessing),
        )
        return _standardised_at_server(encoded) if encoder.standardises else encoded
    rows = _rows_of(clients, local_test)
    taught, shown = federated.server_labelled, federated.open
    besides = [*(each.x for each in held), *([] if taught is None else [taught.x]), *([] if shown is None else [shown])]
    found, *others = encoder.encode([clients.x[rows], *besides])
    features = iter(others)
    reference, test = (replace(each, x=next(features)) for each in held)
    labelled = None if taught is None else replace(taught, x=next(features))
    own, held_out = _with_client_features(encoder, clients, local_test, rows, found, federated.client_names)
    encoded = replace(
        federated,
        clients=own,
        local_test=held_out,
        reference=reference,
        test=test,
        server_labelled=labelled,
        open=None if shown is None else next(features),
        hidden_labels=None if federated.hidden_labels is None else federated.hidden_labels[rows],
        preprocessing=feature_preprocessing(federated.preprocessing),
    )
    return _standardised_at_server(encoded) if encoder.standardises else encoded


def _standardised_at_server(encoded: FederatedData) -> FederatedData:
    scaling = server_scaling(encoded.reference, encoded.test)
    labelled, shown = encoded.server_labelled, encoded.open
    return replace(
        encoded,
        reference=scaled_examples(encoded.reference, scaling),
        test=scaled_examples(encoded.test, scaling),
        server_labelled=None if labelled is None else standardised(labelled, LABELLED),
        open=None if shown is None else standardised_open(shown),
        feature_scaling=scaling,
    )
