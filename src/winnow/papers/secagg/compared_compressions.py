"""The codes that are compared: what an update becomes before it is masked."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class CompressionCode:
    """A point of a curve; `sets` are settings of an experiment."""

    curve: str
    name: str
    title: str
    sets: tuple[str, ...] = ()


NONE, SCALAR, PRUNED = "None", "Scalar quantisation", "Random pruning"
PRODUCT, PLAIN_PRODUCT = "Product quantisation, Winnow's", "Product quantisation, as published"
CURVES = (NONE, SCALAR, PRUNED, PRODUCT, PLAIN_PRODUCT)
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


def plain_product_code(codewords: int, block: int, source: str) -> CompressionCode:
    """As in the paper: codebooks from the last sum, or from an update that the server makes on samples of its own."""
    improved = product_code(codewords, block)
    return CompressionCode(
        curve=PLAIN_PRODUCT,
        name=f"plain-{improved.name}-{source}",
        title=f"{improved.title}, codebooks from {'the last sum' if source == 'sum' else 'public samples'}",
        sets=(*improved.sets, "collect.encoding.plain=true", f"collect.parameter_source={source}"),
    )


def _every(rounds: int) -> str:
    return "" if rounds == 1 else f"-every-{rounds}"


UNCOMPRESSED = CompressionCode(curve=NONE, name="none", title="no masking, no compression")
