"""The rows of the tables, and the runs of which they are made."""

from collections.abc import Sequence
from dataclasses import dataclass

from winnow.config.resolve import resolve
from winnow.data.pacs import DOMAINS
from winnow.papers.paper import PaperRun, ReproductionOptions

PRESET = "fedclip-pacs"
SHORT = {"art_painting": "Art", "cartoon": "Cartoon", "photo": "Photo", "sketch": "Sketch"}
PUBLISHED = {
    "scratch-fedavg": (31.54, 43.69, 44.55, 36.29),
    "scratch-fedprox": (29.79, 46.80, 44.67, 35.12),
    "whole-fedavg": (53.08, 80.08, 90.00, 76.99),
    "whole-fedprox": (66.06, 87.33, 91.68, 78.42),
    "fedclip": (96.34, 97.91, 99.76, 85.59),
}
"""The paper's table 2, with CLIP (ViT-B/32) and AlexNet."""

SCRATCH = (
    "model={name='cnn', channels=[8, 16], hidden=128, norm='group'}",
    "local={name='sgd', epochs=1, batch_size=32, learning_rate=0.01, momentum=0.9}",
    "data.scale=default",
)
WHOLE = (
    "model={name='efficientnet-lite0', side=128}",
    "local={name='sgd', epochs=1, batch_size=32, learning_rate=0.01, momentum=0.9}",
    "data.scale=none",
    "engine.execution=loop",
)
PROBE = ("model={name='linear'}",)


@dataclass(frozen=True, kw_only=True)
class FedClipMethod:
    """A row: an algorithm with its settings."""

    name: str
    title: str
    algorithm: str
    settings: tuple[str, ...] = ()
    seeds: int | None = None
    """At most so many, where a run takes thousands of times as long as others."""
    alone: bool = False
    """Whether each client trains by itself; the row is the mean over them."""
    rounds: int | None = None

    @property
    def trains(self) -> bool:
        """Whether there is anything to train, and so a rate to choose."""
        return "model.kind=none" not in self.settings

    @property
    def encodes(self) -> bool:
        """Whether the encoder is frozen: settings that name pixels train a network on them."""
        return not any(setting.startswith("data.scale") for setting in self.settings)


FEDCLIP_ROW = FedClipMethod(name="fedclip", title="FedCLIP (attention adapter)", algorithm="fedclip")
FROZEN = (
    FedClipMethod(name="zero-shot", title="Zero-shot", algorithm="fedclip", settings=("model.kind=none",), rounds=1),
    FedClipMethod(name="alone", title="FedCLIP's adapter, each client alone", algorithm="fedclip", alone=True),
    FedClipMethod(name="probe", title="Linear probe, aligned features", algorithm="fedclip", settings=PROBE),
    FedClipMethod(
        name="probe-1280",
        title="Linear probe, all 1,280 features",
        algorithm="fedclip",
        settings=(*PROBE, "encode.align=none"),
    ),
    FedClipMethod(
        name="text-head", title="Head that starts as the texts", algorithm="fedclip", settings=("model.kind=head",)
    ),
    FedClipMethod(name="text", title="Text adapter", algorithm="fedclip", settings=("model.kind=text",)),
    FedClipMethod(
        name="bottleneck", title="Bottleneck adapter", algorithm="fedclip", settings=("model.kind=bottleneck",)
    ),
    FEDCLIP_ROW,
)
TRAINED = (
    FedClipMethod(name="scratch-fedavg", title="FedAvg, small network", algorithm="fedavg", settings=SCRATCH),
    FedClipMethod(name="scratch-fedprox", title="FedProx, small network", algorithm="fedprox", settings=SCRATCH),
    FedClipMethod(name="whole-fedavg", title="FedAvg, whole encoder", algorithm="fedavg", settings=WHOLE, seeds=2),
    FedClipMethod(name="whole-fedprox", title="FedProx, whole encoder", algorithm="fedprox", settings=WHOLE, seeds=2),
)


def method_run(
    item: str, method: FedClipMethod, name: str, sets: Sequence[str], seed: int, wanted: ReproductionOptions
) -> PaperRun:
    """The run of a row."""
    given = (*sets, *method.settings, *wanted.sets)
    rounds = method.rounds or wanted.rounds
    experiment = resolve(PRESET, sets=given, algorithm=method.algorithm, seed=seed, rounds=rounds)
    if not method.encodes:
        experiment = experiment.model_copy(update={"encode": None})
    return PaperRun(item=item, algorithm=name, experiment=experiment)


def cases(method: FedClipMethod, target: str) -> list[tuple[str, tuple[str, ...]]]:
    """The names and settings of the runs that make one cell."""
    left_out = (f"data.left_out=['{target}']",)
    if not method.alone:
        return [(f"{method.name}-{target}", left_out)]
    clients = [domain for domain in DOMAINS if domain != target]
    return [(f"{method.name}-{client}-{target}", (*left_out, _only(client, clients))) for client in clients]


def _only(client: str, clients: Sequence[str]) -> str:
    trust = ", ".join(f"{each} = {float(each == client)}" for each in clients)
    return f"select={{name = 'trust', count = 1, trust = {{{trust}}}}}"
