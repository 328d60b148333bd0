"""Transfer through phones (Wu et al., 2023, "Enhance Mono-modal Sentiment Classification With Federated Cross-modal
Transfer"): a party with speech and one with text, bridged by phones, with a stand-in for their data.
"""

from winnow.papers.paper import Paper
from winnow.papers.phones.prepare_sizes import LARGE, SMALL
from winnow.papers.phones.transfer_table import TransferTable

STAND_IN = (
    "Speech is a stand-in: sentences of SST-2 spoken by espeak-ng, heard by pocketsphinx with its errors. Synthetic"
    " speech has no sentiment in its voice, so only what text teaches about phones can help. The other party has other"
    " sentences of SST-2 as text, with phones by cmudict; both are tested on GLUE's development sentences."
)

PHONES = Paper(
    name="phones",
    title="Transfer through phones",
    lead=(
        "Every row may choose between two learning rates by validation sentences that are not tested. The paper's own"
        " scheme does not keep its ε (see the page of transfer through phones), and its data, MOSI and MOSEI, cannot be"
        " had here, so its table is not repeated."
    ),
    items=(
        TransferTable(
            name="small-speech",
            title="A small party with speech, a large one with text",
            speech=SMALL,
            text=LARGE,
            about=f"1,283 spoken and 16,331 written sentences (MOSI's and MOSEI's sizes). {STAND_IN}",
        ),
        TransferTable(
            name="large-speech",
            title="A large party with speech, a small one with text",
            speech=LARGE,
            text=SMALL,
            about="16,331 spoken sentences, or as many as were prepared, and 1,283 written ones.",
        ),
    ),
)
