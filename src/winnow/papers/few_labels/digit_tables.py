"""Tables on MNIST, which two cores compute: labels at the server, at one client, at all; and foreign clients."""

from dataclasses import replace

from winnow.papers.few_labels.gap_table import (
    ALL_LABELS,
    ALL_LABELS_AND_SERVER,
    FIXMATCH,
    LABELLED_AT_SERVER,
    GapTable,
    Row,
)

SEMIFL = Row(name="semifl", title="SemiFL", algorithm="semifl")
RATES = ("local.learning_rate=0.01", "local.learning_rate=0.03")
FEDMATCH = Row(
    name="fedmatch",
    title="FedMatch",
    algorithm="fedmatch",
    candidates=("local.learning_rate=0.003", "local.learning_rate=0.01"),
)
"""Its regularisation bounds the rate: see `fedmatch.py`."""
RSCFED = Row(
    name="rscfed",
    title="RSCFed",
    algorithm="rscfed",
    candidates=(
        "client.factor=0.02",
        "client.factor=1",
        "client.factor=0.02 local.learning_rate=0.1",
        "client.factor=0.02 local.decay=cosine",
    ),
)
"""The authors' factor and rate; a factor by which clients without labels move more; a rate that makes up for groups, of
which half have no labelled client and stay where they are; a rate that falls.
"""
DS_FL = Row(
    name="ds-fl",
    title="DS-FL, predictions for 1,000 open digits",
    algorithm="ds-fl",
    candidates=(
        "local.learning_rate=0.03",
        "local.learning_rate=0.1",
        "local.learning_rate=0.3",
        "local.learning_rate=0.1 client.epochs=2 server.epochs=2",
    ),
)
AT_SERVER = (LABELLED_AT_SERVER, FIXMATCH, FEDMATCH, SEMIFL, ALL_LABELS_AND_SERVER)

FOREIGN = ("data.corruptions=[{name='irrelevant', fraction=0.2}, {name='salt-and-pepper', fraction=0.2, density=0.5}]",)
"""Of every ten clients, two have patterns that are no digits, and two digits under heavy noise."""
PROFILE = Row(
    name="semifl-profile",
    title="SemiFL, clients selected by profile",
    algorithm="semifl",
    settings=("select.name=profile",),
    tuned_as=SEMIFL.name,
)
CONSTANT = ("local.decay=1.0",)
"""In the place of the presets' rate, which falls."""
SHORT = ("rounds=30", "local.epochs=2", *CONSTANT)
"""How the first tables were made: too few steps for SemiFL."""
IID = GapTable(
    name="mnist-iid",
    title="MNIST, 100 labels at the server, IID",
    preset="few-labels-mnist",
    rows=AT_SERVER,
    candidates=RATES,
    about="50 clients with 200 digits each, drawn at random; 10 of them in each round.",
)
AMONG_FOREIGN = GapTable(
    name="mnist-foreign",
    title="MNIST, 40 % of the clients with foreign or noisy data",
    preset="few-labels-mnist",
    settings=FOREIGN,
    rows=(LABELLED_AT_SERVER, FIXMATCH, SEMIFL, PROFILE, ALL_LABELS_AND_SERVER),
    tuned_in=IID,
    about=(
        "Of 50 clients, 10 have patterns that are no digits and 10 digits under heavy noise. FedProf's selection"
        " by profile needs no labels: it compares what the model makes of clients' data with what it makes of the"
        " reference set."
    ),
)

BY_CLASSES = GapTable(
    name="mnist-classes",
    title="MNIST, 100 labels at the server, two classes a client",
    preset="few-labels-mnist",
    settings=("data.partition={name='classes', per_client=2}",),
    rows=AT_SERVER,
    tuned_in=IID,
    about="50 clients with 200 digits of two classes each; 10 of them in each round.",
)


def _short(table: GapTable) -> GapTable:
    return replace(
        table,
        name=f"{table.name}-short",
        title=f"{table.title}: 30 rounds of two epochs, constant rate",
        settings=(*table.settings, *SHORT),
        candidates=(),
        tuned_in=None,
    )


ONE_LABELLED = GapTable(
    name="mnist-client",
    title="MNIST, one of ten clients has labels, Dirichlet 0.8",
    preset="few-labels-client",
    rows=(
        Row(name="labelled-only", title="Labelled only, at one client", algorithm="fedavg"),
        FIXMATCH,
        RSCFED,
        ALL_LABELS,
    ),
    candidates=(
        "local.learning_rate=0.01",
        "local.learning_rate=0.03",
        "local.learning_rate=0.1",
        "local.learning_rate=0.03 local.decay=cosine",
    ),
    about=(
        "Ten clients share 10,000 digits, whose classes are mixed by a Dirichlet distribution with α = 0.8; one of"
        " them has labels. All take part in each round; 50,000 digits are left aside. RSCFed begins with ten rounds"
        " of the labelled client alone."
    ),
)
PREDICTIONS = GapTable(
    name="mnist-predictions",
    title="MNIST, one label in twenty at every client, predictions instead of models",
    preset="few-labels-predictions",
    rows=(
        Row(name="labelled-only", title="FedAvg on the same labels", algorithm="fedavg"),
        FIXMATCH,
        DS_FL,
        ALL_LABELS,
    ),
    candidates=(
        "local.learning_rate=0.01",
        "local.learning_rate=0.03",
        "local.learning_rate=0.1",
        "local.learning_rate=0.3",
    ),
    about=(
        "Ten clients with 1,000 digits each, drawn at random, have labels for 50 of them; 20,000 digits are open to"
        " all. In a round a client of DS-FL sends predictions for 1,000 of these, 4 · 1,000 · 10 = 40,000 bytes;"
        " the others send a model of 108,000 bytes."
    ),
)


DIGIT_TABLES = (
    IID,
    _short(IID),
    BY_CLASSES,
    _short(BY_CLASSES),
    ONE_LABELLED,
    PREDICTIONS,
    AMONG_FOREIGN,
    _short(AMONG_FOREIGN),
)
