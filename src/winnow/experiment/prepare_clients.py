"""The clients of a simulation: their data, loaded, split, encoded and put where the run computes."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from winnow.config.label_checks import method_name
from winnow.config.schema import Experiment
from winnow.data import ClientsOnDemand, DataSettings, FederatedData, Preprocessing, federate
from winnow.data.hidden_labels import with_labelled_rows
from winnow.experiment.build_training_workflow import RunInputs, set_up_device
from winnow.experiment.encode_data import SampleEncoder, encode_federated
from winnow.experiment.load_data import load_data
from winnow.experiment.model_card_data import DataSizes
from winnow.learn.stack import ClientSamples, LazyTensorData, TensorData, as_tensor


@dataclass(frozen=True, kw_only=True)
class PreparedClients:
    """What clients and server hold."""

    federated: FederatedData
    """Of a frozen encoder's features, where there is one."""
    preprocessing: Preprocessing
    """What made samples out of raw rows, before any encoder."""
    samples: ClientSamples
    local_test: TensorData | None
    open_samples: Tensor | None
    """Unlabelled samples that everybody has."""
    labels_notice: str
    """What was left out because the method does not use it."""

    @property
    def sizes(self) -> DataSizes:
        counts = self.federated.clients.sizes
        return DataSizes(
            clients=len(counts),
            samples=int(counts.sum()),
            reference=len(self.federated.reference),
            test=len(self.federated.test),
        )


def prepare_clients(experiment: Experiment, inputs: RunInputs, features: Path | None) -> PreparedClients:
    """Load the data and split them over the clients. What a frozen encoder makes of samples is kept in `features`."""
    dataset = inputs.dataset or load_data(experiment.data, inputs.data_directory)
    federated = federate(
        dataset, data_settings_for(experiment), experiment.seed, in_place=dataset is not inputs.dataset
    )
    preprocessing, device = federated.preprocessing, set_up_device(experiment.engine)
    if experiment.encode is not None:
        encoder = SampleEncoder(experiment.encode, preprocessing, device, features, inputs.on_encoded)
        federated = encode_federated(federated, encoder)
    left_out = ""
    if not experiment.client.uses_unlabelled:
        federated, left_out = with_labelled_rows(federated, method_name(experiment.client))
    samples, local_test = _client_tensors(federated, device)
    return PreparedClients(
        federated=federated,
        preprocessing=preprocessing,
        samples=samples,
        local_test=local_test,
        open_samples=None if federated.open is None else as_tensor(federated.open, samples.device),
        labels_notice=left_out,
    )


def data_settings_for(experiment: Experiment) -> DataSettings:
    """Where clients hold the reference set, no rows are set aside for one."""
    return experiment.data.model_copy(update={"reference": 0}) if experiment.reference_clients else experiment.data


def _client_tensors(federated: FederatedData, device: torch.device) -> tuple[ClientSamples, TensorData | None]:
    """The clients' samples, and their local tests on the same tensors."""
    clients, local_test = federated.clients, federated.local_test
    if isinstance(clients, ClientsOnDemand):
        return LazyTensorData(loader=clients, device=device), None
    data = TensorData.from_client_data(clients, device)
    if local_test is None:
        return data, None
    return data, TensorData(x=data.x, y=data.y, rows=local_test.rows, offsets=local_test.offsets)
