"""The codes that are compared: what an update becomes before it is masked."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CompressionCode:
    """A point of a curve; `sets` are settings of an experiment."""

    curve: str
    name: str
    title: str
    sets: tuple[str, ...] = ()


PLAIN, SCALAR, PRUNED, PRODUCT = "None", "Scalar quantisation", "Random pruning", "Product quantisation"
CURVES = (PLAIN, SCALAR, PRUNED, PRODUCT)
SECURE_SETTINGS = ("collect.name=secure", "collect.keeper=true")
"""As in the paper all encodings use a mask keeper: pairwise masks would add messages between clients to each."""


def scalar_code(bits: int, margin: int, every: int = 1) -> CompressionCode:
    """The group has `bits` + `margin` bits. Sums that overflow are taken as they are, to see what they do."""
    return CompressionCode(
        curve=SCALAR,
        name=f"scalar-{bits}-{margin}{_every(every)}",
        title=f"b = {bits}, p = {bits + margin}",
        sets=(
            *(*SECURE_SETTINGS, "collect.encoding.name=scalar", "collect.max_overflow_share=1.0"),
            f"collect.encoding.bits={bits}",
            f"collect.encoding.margin={margin}",
            f"collect.encoding.refresh_every={every}",
        ),
    )


def pruned_code(percent: int) -> CompressionCode:
    return CompressionCode(
        curve=PRUNED,
        name=f"pruned-{percent}",
        title=f"{percent} % of the weights, 8 bits",
        sets=(*SECURE_SETTINGS, "collect.encoding.name=random-pruning", f"collect.encoding.fraction={percent / 100}"),
    )


def product_code(codewords: int, block: int, every: int = 1) -> CompressionCode:
    return CompressionCode(
        curve=PRODUCT,
        name=f"product-{codewords}-{block}{_every(every)}",
        title=f"k = {codewords}, d = {block}",
        sets=(
            *(*SECURE_SETTINGS, "collect.encoding.name=product-quantisation"),
            f"collect.encoding.codewords={codewords}",
            f"collect.encoding.block={block}",
            f"collect.encoding.refresh_every={every}",
        ),
    )


def _every(rounds: int) -> str:
    return "" if rounds == 1 else f"-every-{rounds}"


UNCOMPRESSED = CompressionCode(curve=PLAIN, name="none", title="no masking, no compression")
