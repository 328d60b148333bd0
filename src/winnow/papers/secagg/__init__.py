"""Compression under secure aggregation (Prasad et al., 2022): figures 2 and 3."""

from winnow.papers.paper import Paper
from winnow.papers.secagg.compared_compressions import (
    UNCOMPRESSED,
    plain_product_code,
    product_code,
    pruned_code,
    scalar_code,
)
from winnow.papers.secagg.refresh_interval_figure import RefreshFigure
from winnow.papers.secagg.tradeoff_figure import TradeOffFigure

PERIODS = (1, 5, 20)

MNIST = TradeOffFigure(
    name="fig2-mnist",
    title="Figure 2: secagg-mnist",
    preset="secagg-mnist",
    about="MNIST with its 539 writers as clients for FEMNIST, 50 of them a round; LeNet-5, 61,706 parameters.",
    codes=(
        UNCOMPRESSED,
        *(
            scalar_code(26, 6),
            scalar_code(8, 6),
            scalar_code(4, 6),
            scalar_code(4, 2),
            scalar_code(2, 2),
            scalar_code(2, 1),
        ),
        *(pruned_code(30), pruned_code(10), pruned_code(5), pruned_code(2)),
        *(product_code(256, 4), product_code(256, 8), product_code(64, 8), product_code(16, 8), product_code(4, 8)),
        *(plain_product_code(codewords, 8, source) for source in ("sum", "public") for codewords in (64, 16, 4)),
    ),
)
CIFAR10 = TradeOffFigure(
    name="fig2-cifar10",
    title="Figure 2: secagg-cifar10",
    preset="secagg-cifar10",
    about=(
        "CIFAR-10 on 400 clients for CelebA, 20 of them a round; two convolutions with group normalisation and a dense"
        " layer, 133,930 parameters."
    ),
    codes=(
        UNCOMPRESSED,
        *(scalar_code(8, 5), scalar_code(2, 2)),
        *(pruned_code(10), pruned_code(2)),
        *(product_code(64, 8), product_code(16, 8), product_code(4, 8)),
        *(plain_product_code(codewords, 8, source) for source in ("sum", "public") for codewords in (64, 16, 4)),
    ),
)
SENT140 = TradeOffFigure(
    name="fig2-sent140",
    title="Figure 2: secagg-sent140",
    preset="secagg-sent140",
    about=(
        "Sent140 as far as it is at hand: the test part that LEAF makes of users with at least 30 tweets, 2,875 users"
        " with five tweets each on average, 20 of them a round; an LSTM over 5,000 hashed words, 353,410 parameters,"
        " local Adam. The learning rate was chosen on a seed of its own. One class has 60.6, 59.6 and"
        " 59.1 % of the held-out tweets of seeds 0, 1 and 2: a network that scores no more has learnt nothing."
    ),
    codes=(
        UNCOMPRESSED,
        *(scalar_code(8, 5), scalar_code(2, 2)),
        *(pruned_code(10), pruned_code(2)),
        *(product_code(64, 8), product_code(16, 8), product_code(4, 8)),
        *(plain_product_code(codewords, 8, "public") for codewords in (64, 16, 4)),
    ),
)

SECAGG = Paper(
    name="secagg",
    title="Compression under secure aggregation, reproduced",
    lead=(
        "Figures 2 and 3 of Prasad et al., Reconciling Security and Communication Efficiency in Federated Learning"
        " (2022). Its data sets are not available, so others are used; it prints curves, and reports that product"
        " quantisation sends 30 to 40 times fewer bytes without loss of accuracy. Winnow's product quantisation is not"
        " the published one: it shuffles weights into blocks, has zero and every block's opposite in its codebooks, and"
        " stretches sums to the length of the clients' updates. The published one is beside it, with codebooks from the"
        " last sum or from an update on the server's own samples, as the paper allows. Accuracies are means ±"
        " standard deviations over seeds."
    ),
    items=(
        MNIST,
        CIFAR10,
        SENT140,
        RefreshFigure(
            name="fig3",
            title="Figure 3: refreshing the quantisation parameters",
            tradeoff=MNIST,
            about="The federation of secagg-mnist, with ranges and codebooks refreshed at different intervals.",
            periods=PERIODS,
            panels=(
                tuple(tuple(scalar_code(8, margin, every) for every in PERIODS) for margin in (2, 6)),
                tuple(tuple(product_code(codewords, 8, every) for every in PERIODS) for codewords in (64, 16, 4)),
            ),
        ),
    ),
)
