"""Few labels: what methods make of clients' unlabelled data, between what the labels alone give and what all labels
would. The settings of the methods' own papers, with smaller networks and fewer steps; clients whose data are foreign.
"""

from winnow.papers.few_labels.digit_tables import DIGIT_TABLES
from winnow.papers.few_labels.picture_tables import PICTURE_TABLES
from winnow.papers.paper import Paper

FEW_LABELS = Paper(
    name="few-labels",
    title="Few labels",
    lead=(
        "Clients have data and few labels, or none. Each table stands between what the labels give by themselves and"
        " what FedAvg would make of all labels; the gap closed is how far a method comes on the way. Mean ± standard"
        " deviation over seeds."
    ),
    items=(*DIGIT_TABLES, *PICTURE_TABLES),
)
