"""FedCLIP (Lu et al., 2023) with encoders that can be had: EfficientNet-Lite0, trained on ImageNet and aligned with
MiniLM's sentence embeddings. It is much weaker than CLIP, so the paper's claims are tested here, not its figures.
"""

from winnow.papers.fedclip.adapter_methods import FROZEN, TRAINED
from winnow.papers.fedclip.domain_table import DomainTable
from winnow.papers.fedclip.spoiled_table import SPOILED_METHODS, SpoiledTable
from winnow.papers.paper import Paper

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
"""Adam's, from which every row over frozen features chooses its own."""
UNSEEN = DomainTable(
    name="unseen",
    title="PACS, one style left out, frozen encoder",
    methods=FROZEN,
    rates=RATES,
    about=(
        "All rows but the first train something small over the same frozen features, by Adam, an epoch in each of 30"
        " rounds. The attention adapter has 295,680 parameters; a client sends 1.18 MB a round, where the whole encoder"
        " with a last layer for seven classes has 13.7 MB."
    ),
)

FEDCLIP = Paper(
    name="fedclip",
    title="FedCLIP over a frozen ImageNet encoder",
    lead=(
        "PACS has pictures of seven classes in four styles. Three styles are clients; the fourth is left out of"
        " training, and is the test: what a model can do where nobody trained it. The frozen encoder is"
        " EfficientNet-Lite0, trained on ImageNet, whose features are aligned with MiniLM's sentence embeddings by"
        " ridge regression from classifier weights to class names; it is no CLIP, which was trained on pictures with"
        " captions. The paper has no zero-shot row and no linear probe; both are here. Accuracy in %, mean ± standard"
        " deviation over seeds, of the model that was best on the reference set: a fifth of the three styles' pictures,"
        " which nobody trains on."
    ),
    items=(
        UNSEEN,
        DomainTable(
            name="trained",
            title="PACS, one style left out, networks trained on pixels",
            methods=TRAINED,
            about=(
                "The small network has two convolutions and 0.5 million parameters. The whole encoder starts from its"
                " ImageNet weights with a new last layer, sees pictures enlarged to 128 pixels, and is trained and sent"
                " as a whole; its rows have two seeds."
            ),
            heavy=True,
            fedclip=UNSEEN,
        ),
        SpoiledTable(
            name="spoiled",
            title="PACS, 40 % of the clients spoiled, photographs left out",
            methods=SPOILED_METHODS,
        ),
    ),
)
