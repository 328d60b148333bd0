"""Few labels: what methods make of clients' unlabelled data, between what the labels alone give and what all labels
would. SemiFL's setting (Diao et al., 2022) with smaller networks and fewer steps, and clients whose data are foreign.
"""

from winnow.papers.few_labels.gap_table import ALL_LABELS, GapTable, Row
from winnow.papers.paper import Paper

LABELLED_ONLY = Row(name="labelled-only", title="Labelled only, at the server", algorithm="server-only")
FIXMATCH = Row(name="fixmatch", title="FixMatch", algorithm="fixmatch")
SEMIFL = Row(name="semifl", title="SemiFL", algorithm="semifl")
AT_SERVER = (LABELLED_ONLY, FIXMATCH, SEMIFL, ALL_LABELS)

AT_ONE_CLIENT = (
    Row(name="labelled-only", title="Labelled only, at one client", algorithm="fedavg"),
    FIXMATCH,
    Row(name="rscfed", title="RSCFed", algorithm="rscfed"),
    ALL_LABELS,
)

FOREIGN = ("data.corruptions=[{name='irrelevant', fraction=0.2}, {name='salt-and-pepper', fraction=0.2, density=0.5}]",)
"""Of every ten clients, two have patterns that are no digits, and two digits under heavy noise."""
PROFILE = Row(
    name="semifl-profile",
    title="SemiFL, clients selected by profile",
    algorithm="semifl",
    settings=("select.name=profile",),
)

FEW_LABELS = Paper(
    name="few-labels",
    title="Few labels",
    lead=(
        "Clients have data and no labels, and the server has a few. Each table stands between what these labels give"
        " by themselves and what FedAvg would make of all labels; the gap closed is how far a method comes on the way."
        " Mean ± standard deviation over seeds."
    ),
    items=(
        GapTable(
            name="mnist-iid",
            title="MNIST, 100 labels at the server, IID",
            preset="few-labels-mnist",
            rows=AT_SERVER,
            about="50 clients with 200 digits each, drawn at random; 10 of them in each round.",
        ),
        GapTable(
            name="mnist-classes",
            title="MNIST, 100 labels at the server, two classes a client",
            preset="few-labels-mnist",
            settings=("data.partition={name='classes', per_client=2}",),
            rows=AT_SERVER,
            about="50 clients with 200 digits of two classes each; 10 of them in each round.",
        ),
        GapTable(
            name="mnist-client",
            title="MNIST, one of ten clients has labels, Dirichlet 0.8",
            preset="few-labels-client",
            rows=AT_ONE_CLIENT,
            about=(
                "Ten clients share 10,000 digits, whose classes are mixed by a Dirichlet distribution with α = 0.8; one"
                " of them has labels. All take part in each round; 50,000 digits are left aside."
            ),
        ),
        GapTable(
            name="cifar10-iid",
            title="CIFAR-10, 4,000 labels at the server, IID",
            preset="few-labels-cifar10",
            rows=AT_SERVER,
            about="100 clients with 500 photographs each, drawn at random; 10 of them in each round.",
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
        GapTable(
            name="mnist-foreign",
            title="MNIST, 40 % of the clients with foreign or noisy data",
            preset="few-labels-mnist",
            settings=FOREIGN,
            rows=(LABELLED_ONLY, FIXMATCH, SEMIFL, PROFILE, ALL_LABELS),
            about=(
                "Of 50 clients, 10 have patterns that are no digits and 10 digits under heavy noise. FedProf's"
                " selection by profile needs no labels: it compares what the model makes of clients' data with what it"
                " makes of the reference set."
            ),
        ),
    ),
)
