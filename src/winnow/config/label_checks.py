"""Which methods can do with the labels that there are, said before a run begins."""

from functools import partial
from typing import TYPE_CHECKING, Any

from winnow.core import ConfigError
from winnow.core.join_names import listed
from winnow.data import Preprocessing
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import PlainUpdate

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.learn.client_round_method import ClientUpdate


def method_name(client: "ClientUpdate") -> str:
    """A method at the client as a configuration names it."""
    return f"client.name = {getattr(client, 'name', '')!r}"


def label_conflict(whole: "Experiment") -> str | None:
    """Why the experiment's method cannot work with its labels, as one line for a user; None if it can."""
    client, labels, method = whole.client, whole.data.labels, method_name(whole.client)
    if labels is not None and whole.reference_clients:
        return "data.labels cannot be used with reference_clients, who need all their labels; remove one of the two"
    if labels is None and "clients" not in client.labels_at:
        return (
            f"{method} needs labels at the server, and here clients have them: set data.labels = "
            '{ at = "server", rows = 100 }, or choose fixmatch or fedmatch, which learn from labels at clients'
        )
    if labels is not None and not labels.holders <= client.labels_at:
        able = [name for name, recipe in Recipe.known.items() if labels.holders <= _labels_at(recipe)]
        instead = f"choose an algorithm that can ({listed(able)}), or other labels" if able else "choose other labels"
        told = f'at = "{labels.at}", share = {labels.share}' if "clients" in labels.holders else f'at = "{labels.at}"'
        return f"data.labels = {{ {told}, … }} cannot be used with {method}; {instead}"
    if not client.uses_unlabelled:
        return None
    if whole.select.needs_labels:
        name = getattr(whole.select, "name", "")
        return f"select.name = {name!r} looks at labels or losses of all samples, and {method} has some without labels"
    if whole.aggregate.needs_start_loss:
        name = getattr(whole.aggregate, "name", "")
        return f"aggregate.name = {name!r} looks at losses of all samples, and {method} has some without labels"
    return None


def check_augmentation(client: "ClientUpdate", preprocessing: Preprocessing) -> None:
    """Whoever learns without labels changes samples, and nobody can say how to change several inputs packed in one."""
    if client.uses_unlabelled and preprocessing.inputs:
        raise ConfigError(
            f"{method_name(client)} augments samples, which cannot be done with several inputs a sample; use one input"
        )


def check_open(client: "ClientUpdate", open_rows: int, classes: int | None) -> None:
    """Whoever sends predictions needs classes, and samples to predict."""
    if not client.sends_predictions:
        return
    if not open_rows:
        raise ConfigError(
            f"{method_name(client)} sends predictions for open samples, and there are none; set data.open, "
            "such as data.open = 1000; between organisations every party needs the same open.npz beside its data"
        )
    if classes is None:
        raise ConfigError(f"{method_name(client)} sends probabilities of classes; it cannot learn a regression")


def _labels_at(recipe: Recipe) -> frozenset[str]:
    given = recipe.client or PlainUpdate
    method: Any = given.func if isinstance(given, partial) else given
    found: frozenset[str] = method.labels_at
    return found
