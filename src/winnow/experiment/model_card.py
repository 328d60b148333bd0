"""A model's card: what it is, what it was trained on, how well it does, and what it is not for."""

from collections.abc import Sequence
from functools import partial

from winnow.core.join_names import listed
from winnow.core.untrusted_text import one_line
from winnow.data import Preprocessing
from winnow.experiment.model_card_data import ModelInfo

_listed = partial(listed, at_most=50)
"""A card lists so many columns or classes; model.json has them all."""


def card_text(info: ModelInfo, preprocessing: Preprocessing) -> str:
    """The card in Markdown. Names are a user's or a stranger's, so each is kept to one line."""
    sizes = info.sizes
    about = {
        "model": f"{info.model}, {info.parameters:,} parameters",
        "task": "regression" if preprocessing.targets else "classification",
        "algorithm": f"{info.algorithm}, {info.rounds} rounds, seed {info.seed}",
        "privacy": "; ".join(info.privacy) or "no differential privacy",
        "trained": info.date,
        "machine": info.machine,
        "commit": info.commit or "none",
        "software": f"Winnow {info.winnow}",
    }
    data = {
        "name": info.data,
        "clients": f"{sizes.clients:,}, with {sizes.samples:,} samples",
        "reference set": f"{sizes.reference:,} samples",
        "test set": f"{sizes.test:,} samples",
        **_inputs(preprocessing),
        **_outputs(preprocessing),
    }
    scores = [(f"{score.metric} {score.measured}", f"{score.value:.4f} (round {score.round})") for score in info.scores]
    parts = [
        f"# {_cell(info.name)}",
        "Trained by federated learning with Winnow. The parameters and `model.json` lie beside this card.",
        _table([*about.items()]),
        "## Data",
        _table([*data.items()]),
        "## Scores",
        _table(scores) if scores else "None were measured.",
        "## Limits of use",
        "\n".join(f"- {limit}" for limit in _limits(info)),
    ]
    return "\n\n".join(parts) + "\n"


def _inputs(preprocessing: Preprocessing) -> dict[str, str]:
    numbers = [column.name for column in preprocessing.columns if column.kind == "number"]
    categories = [f"{column.name} ({len(column.categories)})" for column in preprocessing.columns if column.categories]
    described = {"numbers": _listed(numbers), "categories": _listed(categories)}
    arrays = [spec for spec in (preprocessing.array, *preprocessing.inputs) if spec is not None]
    if arrays:
        described["inputs"] = _listed([f"{spec.name or spec.kind} {list(spec.shape)}" for spec in arrays])
    return {name: text for name, text in described.items() if text}


def _outputs(preprocessing: Preprocessing) -> dict[str, str]:
    if preprocessing.targets:
        return {"targets": _listed([target.name or "value" for target in preprocessing.targets])}
    return (
        {} if preprocessing.classes is None else {"classes": _listed([str(label) for label in preprocessing.classes])}
    )


def _limits(info: ModelInfo) -> list[str]:
    limits = [
        "The scores hold for rows drawn like those of the sets that they were measured on, and for no others.",
        "The best round was chosen by the first score, so it is a little too good; the test set did not choose.",
        "Nobody checked how it does for groups of people, places or times that the data do not tell apart.",
    ]
    if info.privacy:
        limits.append(
            "The privacy above bounds what the parameters tell about the training data, whatever is done with them."
        )
    else:
        limits.append("The parameters may reveal training data: give them to nobody who must not see those.")
    if info.private:
        limits.append(f"Each client has its own {_listed(info.private)}; without these it cannot predict.")
    return limits


def _table(rows: Sequence[tuple[str, str]]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {_cell(name)} | {_cell(value)} |" for name, value in rows)])


def _cell(text: str) -> str:
    return one_line(text).replace("|", "\\|").replace("<", "&lt;")
