"""Tables on CIFAR-10 and PACS: labels at the server, features without labels, another domain. All are for an
accelerator, but those over a frozen encoder.
"""

from dataclasses import replace

from winnow.papers.few_labels.digit_tables import SEMIFL
from winnow.papers.few_labels.gap_table import (
    ALL_LABELS,
    ALL_LABELS_AND_SERVER,
    FIXMATCH,
    LABELLED_AT_SERVER,
    GapTable,
    Row,
)
from winnow.papers.few_labels.mean_table import MeanTable

AT_SERVER = (LABELLED_AT_SERVER, FIXMATCH, SEMIFL, ALL_LABELS_AND_SERVER)

DOMAINS = {"art": "art_painting", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"}
LABELLED_DOMAINS = Row(name="labelled-only", title="Labelled domains only", algorithm="fedavg")
NO_FACTOR = Row(
    name="fade-0",
    title="Labelled domains only, with changed samples",
    algorithm="fade",
    settings=("client.factor=0",),
)
FADE = Row(name="fade", title="FADE", algorithm="fade")
FADA = replace(FADE, name="fade-fada", title="FADE, sources weighed as by FADA", settings=("server.name=gap-gain",))


def _domain_table(name: str, owner: str) -> GapTable:
    """All domains but one have labels; the others' are for evaluation alone."""
    return GapTable(
        name=f"pacs-{name}",
        title=f"PACS, no labels in {owner.replace('_', ' ')}",
        preset="few-labels-pacs",
        settings=(f"data.test_owners=['{owner}']", f"data.labels={{at='some', without=['{owner}']}}"),
        rows=(LABELLED_DOMAINS, FIXMATCH, NO_FACTOR, FADE, FADA, ALL_LABELS),
        about="Four clients, a style each. Accuracy is on 600 pictures of the style without labels.",
        heavy=True,
    )


RATES = tuple(f"local.learning_rate={rate}" for rate in (0.01, 0.03, 0.1))
FACTORS = tuple(f"client.factor={factor}" for factor in (0.3, 1, 3))
"""FADE's candidates, with the preset's rate."""


def _encoded_table(name: str, owner: str) -> GapTable:
    """The same over features of a frozen encoder, which a processor computes."""
    pictures = _domain_table(name, owner)
    fade, fada = (replace(row, candidates=FACTORS) for row in (FADE, FADA))
    return replace(
        pictures,
        name=f"pacs-encoded-{name}",
        title=f"{pictures.title}, over a frozen encoder",
        preset="few-labels-encoded",
        rows=(LABELLED_DOMAINS, FIXMATCH, NO_FACTOR, fade, replace(fada, tuned_as=fade.name), ALL_LABELS),
        candidates=RATES,
        heavy=False,
    )


PHOTOS = _domain_table("photo", "photo")
FALLING = replace(
    PHOTOS,
    name="pacs-photo-falling",
    title="PACS, no labels in photo, with a rate that falls",
    settings=(*PHOTOS.settings, "local.decay=cosine"),
)

FEATURES = GapTable(
    name="cifar10-features",
    title="CIFAR-10, features without labels, two classes a client",
    preset="few-labels-features",
    rows=(
        LABELLED_AT_SERVER,
        FIXMATCH,
        Row(name="untrained", title="Probe of the untrained network", algorithm="fed-byol", untrained_of="fed-byol"),
        Row(name="fed-byol", title="Probe, averaged BYOL", algorithm="fed-byol"),
        Row(name="fedu", title="Probe, FedU", algorithm="fedu"),
        Row(name="fedema", title="Probe, FedEMA", algorithm="fedema"),
        Row(name="orchestra", title="Probe, Orchestra", algorithm="orchestra"),
        ALL_LABELS_AND_SERVER,
    ),
    about=(
        "Five clients with 2,000 photographs of two classes each. Rows with a probe learn without any label; then"
        " the server fits the last layer to its 4,000 labels, which the first two rows train on."
    ),
    heavy=True,
)
FALLING_FEATURES = replace(
    FEATURES,
    name="cifar10-features-falling",
    title=f"{FEATURES.title}, with a rate that falls",
    settings=("local.decay=cosine",),
)

ENCODED = tuple(_encoded_table(name, owner) for name, owner in DOMAINS.items())
ENCODED_MEAN = MeanTable(
    name="pacs-encoded-mean",
    title="PACS over a frozen encoder, mean of four domains without labels",
    about=(
        "A dense layer of 64 units over features of EfficientNet-Lite0, which ImageNet has taught. Every client"
        " standardises them by means and deviations of its own, and so does the server with those that it scores. Each"
        " column is a table below: the style that has no labels."
    ),
    tables=ENCODED,
    columns=tuple(owner.replace("_", " ").capitalize() for owner in DOMAINS.values()),
)

IID = GapTable(
    name="cifar10-iid",
    title="CIFAR-10, 4,000 labels at the server, IID",
    preset="few-labels-cifar10",
    rows=AT_SERVER,
    about="100 clients with 460 photographs each, drawn at random; 10 of them in each round.",
    heavy=True,
)

PICTURE_TABLES = (
    IID,
    replace(IID, name="cifar10-iid-five", title=f"{IID.title}, five local epochs", settings=("local.epochs=5",)),
    GapTable(
        name="cifar10-dirichlet",
        title="CIFAR-10, 4,000 labels at the server, Dirichlet 0.3",
        preset="few-labels-cifar10",
        settings=("data.partition={name='dirichlet', alpha=0.3}",),
        rows=AT_SERVER,
        about="100 clients whose classes are mixed by a Dirichlet distribution with α = 0.3; 10 in each round.",
        heavy=True,
    ),
    FEATURES,
    FALLING_FEATURES,
    *(_domain_table(name, owner) for name, owner in DOMAINS.items()),
    FALLING,
    ENCODED_MEAN,
    *ENCODED,
)
