"""What an ensemble cannot do, said before a run begins."""

from typing import TYPE_CHECKING

from winnow.learn.ensemble.ensemble_settings import OverArch

if TYPE_CHECKING:
    from winnow.config.schema import Experiment

NUMBERED_COLLECTS = ("secure", "homomorphic")
"""Their messages name clients by their numbers in the whole job, and a leaf has numbers of its own."""


def ensemble_conflict(whole: "Experiment") -> str | None:
    """Why the experiment's ensemble cannot work, as one line for a user; None if it can, or there is none."""
    settings = whole.ensemble
    if settings is None:
        return None
    over = settings.combine if isinstance(settings.combine, OverArch) else None
    collect = getattr(whole.collect, "name", "")
    comparison = getattr(getattr(whole.select, "comparison", None), "name", "")
    refused = {
        "select.profile_comparison = 'encrypted' has one holder of keys for one model": comparison == "encrypted",
        f"collect.name = {collect!r} numbers clients over the whole job": collect in NUMBERED_COLLECTS,
        "reference_clients evaluate one model": bool(whole.reference_clients),
        "data.local_test evaluates a client's own model": bool(whole.data.local_test),
        "evaluation.by must be 'reference'": whole.evaluation.by != "reference",
        "evaluation.probe fits one model's last layer": whole.probes,
        "data.labels and data.open are for one model": whole.data.labels is not None or whole.data.open > 0,
        f"quality.policy = {whole.quality.policy!r} acts on clients of one model": whole.quality.policy != "warn",
        "model.output chooses among several outputs": whole.model.output is not None,
    }
    for what, is_so in refused.items():
        if is_so:
            return f"{what}, which an ensemble does not know; remove it, or [ensemble]"
    if settings.private and over is not None and over.at == "server":
        return "ensemble.private: what the private leaf gives stays with clients; set combine.at = 'clients'"
    return None
