"""Compression under secure aggregation (Prasad et al., 2022): figures 2 and 3."""

from winnow.reproduce.paper import Paper
from winnow.reproduce.secagg.codes import NO_CODE, product, pruned, scalar
from winnow.reproduce.secagg.refresh import Refresh
from winnow.reproduce.secagg.tradeoff import TradeOff

PERIODS = (1, 5, 20)

MNIST = TradeOff(
    name="fig2-mnist",
    title="Figure 2: secagg-mnist",
    preset="secagg-mnist",
    about="MNIST with its 539 writers as clients for FEMNIST, 50 of them a round; LeNet-5, 61,706 parameters.",
    codes=(
        NO_CODE,
        *(scalar(26, 6), scalar(8, 6), scalar(4, 6), scalar(4, 2), scalar(2, 2), scalar(2, 1)),
        *(pruned(30), pruned(10), pruned(5), pruned(2)),
        *(product(256, 4), product(256, 8), product(64, 8), product(16, 8), product(4, 8)),
    ),
)
CIFAR10 = TradeOff(
    name="fig2-cifar10",
    title="Figure 2: secagg-cifar10",
    preset="secagg-cifar10",
    about=(
        "CIFAR-10 on 400 clients for CelebA, 20 of them a round; two convolutions with group normalisation and a dense"
        " layer, 133,930 parameters."
    ),
    codes=(
        NO_CODE,
        *(scalar(8, 5), scalar(2, 2)),
        *(pruned(10), pruned(2)),
        *(product(64, 8), product(16, 8), product(4, 8)),
    ),
)

SECAGG = Paper(
    name="secagg",
    title="Compression under secure aggregation, reproduced",
    lead=(
        "Figures 2 and 3 of Prasad et al., Reconciling Security and Communication Efficiency in Federated Learning"
        " (2022). Its data are not to be had, so others stand in; it prints curves, and says of product quantisation"
        " that it sends 30 to 40 times less at no loss. Mean ± standard deviation over seeds."
    ),
    pieces=(
        MNIST,
        CIFAR10,
        Refresh(
            name="fig3",
            title="Figure 3: renewal of the parameters",
            tradeoff=MNIST,
            about="The federation of secagg-mnist, with ranges and codebooks that are renewed every so many rounds.",
            periods=PERIODS,
            panels=(
                tuple(tuple(scalar(8, margin, every) for every in PERIODS) for margin in (2, 6)),
                tuple(tuple(product(codewords, 8, every) for every in PERIODS) for codewords in (64, 16, 4)),
            ),
        ),
    ),
)
