"""The known sets: what they are, where their files come from, and how they are read and scaled."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from winnow.core import DataError, suggest
from winnow.data import cifar, known_set_readers, pacs, tabular_sets, text_sets
from winnow.data.download import Download, RemoteFile
from winnow.data.scaling import FixedScaling, Scaling, minmax, standard, unscaled
from winnow.data.types import RawDataSet

UCI = "https://archive.ics.uci.edu"
MNIST_MIRRORS = ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist")
QMNIST = "https://raw.githubusercontent.com/facebookresearch/qmnist/master"
MEGABYTE = 1_000_000


@dataclass(frozen=True, kw_only=True)
class KnownSet:
    """A set that Winnow can find, fetch and read.

    Its files lie in a data directory or one of the `folders` in it; any of the `layouts` will do, each file plain or
    gzipped. Downloads go to the first folder. A set without layouts comes with a package.
    """

    name: str
    description: str
    home: str
    read: Callable[[Path], RawDataSet]
    scaling: Scaling
    folders: tuple[str, ...] = ()
    layouts: tuple[tuple[str, ...], ...] = ()
    downloads: tuple[Download, ...] = ()
    download_bytes: int = 0


def known_set(name: str) -> KnownSet:
    """The set of that name."""
    if name in KNOWN_SETS:
        return KNOWN_SETS[name]
    raise DataError(f"unknown data set '{name}'; {suggest(name, KNOWN_SETS)} (or set data.path)")


def _mnist_file(name: str, md5: str) -> Download:
    return Download(
        file=RemoteFile(name=f"{name}.gz", checksum=f"md5:{md5}"),
        urls=tuple(f"{mirror}/{name}.gz" for mirror in MNIST_MIRRORS),
    )


DIGITS = KnownSet(
    name="digits",
    description="1,797 handwritten digits of 8 × 8 pixels; comes with scikit-learn",
    home="https://scikit-learn.org/stable/datasets/toy_dataset.html",
    read=known_set_readers.read_digits,
    scaling=FixedScaling(width=16.0),
)

GAS_TURBINE = KnownSet(
    name="gas-turbine",
    description="36,733 hours of a gas turbine: predict CO and NOx emissions from 9 sensors",
    home=f"{UCI}/dataset/551/gas+turbine+co+and+nox+emission+data+set",
    read=known_set_readers.read_gas_turbine,
    scaling=minmax,
    folders=("gas_turbine", "gas-turbine"),
    layouts=(known_set_readers.GAS_TURBINE_FILES,),
    downloads=(
        Download(
            file=RemoteFile(name="gas-turbine.zip"),
            urls=(f"{UCI}/static/public/551/gas+turbine+co+and+nox+emission+data+set.zip",),
            members=tuple(
                RemoteFile(name=name, checksum=f"sha256:{digest}")
                for name, digest in zip(
                    known_set_readers.GAS_TURBINE_FILES,
                    (
                        "d87ceef9aa59533cc7d924d10de241b1b06ecd11f9b26bab59191ea0f8a76b9a",
                        "be54b9d0e1a7de40c55d32fa489e75de892b000c066b5a09f09a19124ee29100",
                        "13c437bb440ec2045bd12057e6654c41dd4107a661eac16ba2e878e897a08f9e",
                        "c2a03c92c9c3207aad0c6be7de8d9b5b4bfa4720ad0efb2c1f21b6cec4d3f3fa",
                        "9b08f35fde0d4b138232a605db4093c2b8bf9d6757e6f1fbd9534ad616c13591",
                    ),
                    strict=True,
                )
            ),
        ),
    ),
    download_bytes=1 * MEGABYTE,
)

MNIST = KnownSet(
    name="mnist",
    description="70,000 handwritten digits of 28 × 28 pixels, by 539 writers (natural clients) in the training split",
    home="https://yann.lecun.com/exdb/mnist",
    read=known_set_readers.read_mnist,
    scaling=FixedScaling(shift=0.1307 * 255, width=0.3081 * 255),
    folders=("mnist", "MNIST/raw"),
    layouts=(known_set_readers.MNIST_FILES,),
    downloads=(
        _mnist_file("train-images-idx3-ubyte", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        _mnist_file("train-labels-idx1-ubyte", "d53e105ee54ea40749a09fcbcd1e9432"),
        _mnist_file("t10k-images-idx3-ubyte", "9fb629c4189551a2d022fa330f9573f3"),
        _mnist_file("t10k-labels-idx1-ubyte", "ec29112dd5afa0611ce80d1b7f02629c"),
        Download(
            file=RemoteFile(
                name=f"{known_set_readers.QMNIST_LABELS}.gz",
                checksum="sha256:2c05dc77f6b916b38e455e97ab129a42a444f3dbef09b278a366f82904e0dd9f",
            ),
            urls=(f"{QMNIST}/{known_set_readers.QMNIST_LABELS}.gz",),
        ),
    ),
    download_bytes=12 * MEGABYTE,
)

EMNIST_DIGITS = KnownSet(
    name="emnist-digits",
    description="280,000 handwritten digits of 28 × 28 pixels",
    home="https://www.nist.gov/itl/products-and-services/emnist-dataset",
    read=known_set_readers.read_emnist_digits,
    scaling=FixedScaling(shift=0.1736 * 255, width=0.3317 * 255),
    folders=("emnist", "EMNIST/raw", "gzip"),
    layouts=(known_set_readers.EMNIST_FILES,),
    downloads=(
        Download(
            file=RemoteFile(name="gzip.zip", checksum="md5:58c8d27c78d21e728a6bc7b3cc06412e"),
            urls=("https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",),
            members=tuple(RemoteFile(name=f"{name}.gz") for name in known_set_readers.EMNIST_FILES),
        ),
    ),
    download_bytes=562 * MEGABYTE,
)

CIFAR10 = KnownSet(
    name="cifar10",
    description="60,000 colour photographs of 32 × 32 pixels in 10 classes",
    home="https://www.cs.toronto.edu/~kriz/cifar.html",
    read=known_set_readers.read_cifar10,
    scaling=FixedScaling(
        shift=(0.4914 * 255, 0.4822 * 255, 0.4465 * 255),
        width=(0.2470 * 255, 0.2435 * 255, 0.2616 * 255),
    ),
    folders=("cifar-10-batches-bin", "cifar-10-batches-py"),
    layouts=(cifar.BINARY, cifar.PICKLED),
    downloads=(
        Download(
            file=RemoteFile(name="cifar-10-binary.tar.gz", checksum="md5:c32a1d4ab5d03f1284b67883e8d87530"),
            urls=("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            members=tuple(RemoteFile(name=name) for name in cifar.BINARY),
        ),
    ),
    download_bytes=170 * MEGABYTE,
)

BOSTON = KnownSet(
    name="boston",
    description="506 districts of Boston: predict house prices from 13 figures",
    home="https://lib.stat.cmu.edu/datasets/boston",
    read=known_set_readers.read_boston,
    scaling=minmax,
    folders=("boston",),
    layouts=known_set_readers.BOSTON_LAYOUTS,
    downloads=(
        Download(
            file=RemoteFile(
                name="boston.txt",
                checksum="numbers:832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7",
            ),
            urls=("https://lib.stat.cmu.edu/datasets/boston", "http://lib.stat.cmu.edu/datasets/boston"),
        ),
    ),
    download_bytes=50_000,
)

SST2 = KnownSet(
    name="sst2",
    description="68,221 phrases of film reviews, good or bad, as GLUE has them",
    home="https://gluebenchmark.com/tasks",
    read=text_sets.read_sst2,
    scaling=unscaled,
    folders=("SST-2", "sst2", "sentiment"),
    layouts=text_sets.SST2_LAYOUTS,
)

IMDB = KnownSet(
    name="imdb",
    description="film reviews, good or bad, a text file each",
    home="https://ai.stanford.edu/~amaas/data/sentiment",
    read=text_sets.read_imdb,
    scaling=unscaled,
    folders=("aclImdb", "imdb", "sentiment"),
    layouts=text_sets.IMDB_LAYOUTS,
)

SENT140 = KnownSet(
    name="sent140",
    description="tweets, happy or sad, by user (natural clients), in LEAF's format",
    home="https://leaf.cmu.edu",
    read=text_sets.read_sent140,
    scaling=unscaled,
    folders=("sent140", "sentiment"),
    layouts=text_sets.SENT140_LAYOUTS,
)

PACS = KnownSet(
    name="pacs",
    description="9,991 pictures of 7 classes in 4 styles (natural clients), resized to 64 × 64",
    home="https://sketchx.eecs.qmul.ac.uk",
    read=pacs.read_pacs,
    scaling=FixedScaling(shift=0.5 * 255, width=0.25 * 255),
    folders=("pacs", "PACS"),
    layouts=pacs.LAYOUTS,
)

MOVIELENS = KnownSet(
    name="movielens",
    description="100,000 ratings of films by 943 users (natural clients): four stars or more, or fewer",
    home="https://grouplens.org/datasets/movielens/100k",
    read=tabular_sets.read_movielens,
    scaling=standard,
    folders=("ml-100k", "movielens"),
    layouts=tabular_sets.MOVIELENS_LAYOUTS,
)

ADULT = KnownSet(
    name="adult",
    description="48,842 people (natural clients of one row each): an income above 50,000 dollars, or not",
    home=f"{UCI}/dataset/2/adult",
    read=tabular_sets.read_adult,
    scaling=standard,
    folders=("adult", "tabular"),
    layouts=tabular_sets.ADULT_LAYOUTS,
    downloads=(
        Download(
            file=RemoteFile(name="adult.zip"),
            urls=(f"{UCI}/static/public/2/adult.zip",),
            members=(
                RemoteFile(
                    name="adult.data",
                    checksum="sha256:5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                ),
                RemoteFile(
                    name="adult.test",
                    checksum="sha256:a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                ),
            ),
        ),
    ),
    download_bytes=620_000,
)

CREDIT = KnownSet(
    name="credit",
    description="30,000 people (natural clients of one row each): a default on next month's payment, or none",
    home=f"{UCI}/dataset/350/default+of+credit+card+clients",
    read=tabular_sets.read_credit,
    scaling=standard,
    folders=("credit", "tabular"),
    layouts=tabular_sets.CREDIT_LAYOUTS,
)

KNOWN_SETS = {
    each.name: each
    for each in (
        *(DIGITS, GAS_TURBINE, MNIST, EMNIST_DIGITS, CIFAR10, BOSTON, SST2, IMDB, SENT140, PACS),
        *(MOVIELENS, ADULT, CREDIT),
    )
}
