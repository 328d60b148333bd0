"""Tables on CIFAR-10 and PACS, for an accelerator: labels at the server, features without labels, another domain."""

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

AT_SERVER = (LABELLED_AT_SERVER, FIXMATCH, SEMIFL, ALL_LABELS_AND_SERVER)

DOMAINS = {"art": "art_painting", "cartoon": "cartoon", "photo": "photo", "sketch": "sketch"}
FADE = Row(name="fade", title="FADE", algorithm="fade")


def _domain_table(name: str, owner: str) -> GapTable:
    """All domains but one have labels; the others' are for evaluation alone."""
    return GapTable(
        name=f"pacs-{name}",
        title=f"PACS, no labels in {owner.replace('_', ' ')}",
        preset="few-labels-pacs",
        settings=(f"data.test_owners=['{owner}']", f"data.labels={{at='some', without=['{owner}']}}"),
        rows=(
            Row(name="labelled-only", title="Labelled domains only", algorithm="fedavg"),
            FIXMATCH,
            Row(
                name="fade-0",
                title="Labelled domains only, with changed samples",
                algorithm="fade",
                settings=("client.factor=0",),
            ),
            FADE,
            replace(
                FADE, name="fade-fada", title="FADE, sources weighed as by FADA", settings=("server.name=gap-gain",)
            ),
            ALL_LABELS,
        ),
        about="Four clients, a style each. Accuracy is on 600 pictures of the style without labels.",
        heavy=True,
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

PICTURE_TABLES = (
    GapTable(
        name="cifar10-iid",
        title="CIFAR-10, 4,000 labels at the server, IID",
        preset="few-labels-cifar10",
        rows=AT_SERVER,
        about="100 clients with 460 photographs each, drawn at random; 10 of them in each round.",
        heavy=True,
    ),
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
)
