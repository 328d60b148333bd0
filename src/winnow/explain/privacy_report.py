"""Who learns what in a run, under which assumptions and at what cost: told from its settings alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from winnow.config.schema import Experiment
from winnow.core import ConfigError
from winnow.core.join_names import listed
from winnow.explain.privacy_lint import (
    adds_local_noise,
    asks_for_units,
    privacy_warnings,
    profiles_by_class,
    reports_model_losses,
    reports_training_losses,
    sends_profiles,
)
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, AlgorithmPart, EvidenceKind
from winnow.learn.client_round_method import ClientUpdate
from winnow.learn.collect import PlainCollect
from winnow.learn.ensemble.ensemble_settings import OverArch
from winnow.privacy.dp import CentralDp, DpSgd, NoisyProfiles, PoissonSampling, forecast
from winnow.privacy.dp.run_accounting import promises_privacy
from winnow.privacy.encrypted_profile_server import EncryptedComparison
from winnow.privacy.homomorphic.homomorphic_collect import HomomorphicAggregation
from winnow.privacy.peers.peers_collect import PeersCollect
from winnow.privacy.secagg.secure_collect import SecureAggregation


@dataclass(frozen=True, kw_only=True)
class PartyKnowledge:
    """Somebody, and what comes to its knowledge beyond its own."""

    name: str
    learns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class PrivacyReport:
    """What a configuration means for those whose data it uses."""

    name: str
    algorithm: str
    parties: tuple[PartyKnowledge, ...]
    parts: tuple[str, ...]
    """What each part says of itself: who learns what, under which assumptions, and what it costs."""
    warnings: tuple[str, ...]
    """Combinations that undo one another."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """The privacy that a run has cost so far, by guarantee."""
    forecast: tuple[str, ...] = ()
    """How long budgets last, before a run has spent anything, and the noise with which they last to the end."""


UNITS = (
    "the units of the table: mean, standard deviation and missing values of each column, and how many rows have which "
    "value, over all owners together and under their rules"
)

STANDARDISED = " Every client standardises features by means and deviations of its own, which stay there, too."


def make_privacy_report(experiment: Experiment, spent: Mapping[str, float] | None = None) -> PrivacyReport:
    return PrivacyReport(
        name=experiment.name,
        algorithm=experiment.algorithm,
        parties=tuple(_parties(experiment)),
        parts=tuple(_part_descriptions(experiment)),
        warnings=tuple(privacy_warnings(experiment)),
        spent=spent or {},
        forecast=() if spent else tuple(_forecast(experiment)),
    )


def _forecast(experiment: Experiment) -> Iterator[str]:
    clients = experiment.data.clients
    if not clients:  # the data say how many there are
        return
    if experiment.ensemble is not None:
        if promises_privacy(experiment.composed(), experiment.filters):
            yield "how long a budget lasts depends on how many clients each leaf has; a run tells it by round"
        return
    try:
        yield from forecast(experiment.composed(), experiment.filters, clients, experiment.rounds)
    except ConfigError as error:
        yield f"cannot be computed: {error}"


def _part_descriptions(experiment: Experiment) -> Iterator[str]:
    matching = experiment.select.comparison
    parts = experiment.composed().parts
    said = (
        [_ensemble_text(experiment), _encoder_text(experiment)]
        + [_part_description(part, experiment) for part in parts]
        + [matching.privacy_text() if sends_profiles(experiment) else ""]
    )
    said += [each.privacy_text() for each in experiment.filters]
    on_evidence = experiment.quality.privacy_text(_evidence(experiment), experiment.rounds)
    return filter(None, [*said, _filters_inside(experiment), *on_evidence])


def _ensemble_text(experiment: Experiment) -> str:
    """Who trains which leaf, and what that and their combination tell."""
    settings = experiment.ensemble
    if settings is None:
        return ""
    over = settings.combine if isinstance(settings.combine, OverArch) else None
    if settings.clusters.disjoint:
        told = f"ensemble: clients are clustered by {settings.clusters.text}, and each cluster trains a leaf alone. "
    else:
        told = "ensemble: every leaf is trained by all clients. "
    if settings.clusters.from_labels:
        told += "Which leaf a client joins tells of its labels. "
    if over is None:
        told += "Combining leaves looks at nobody's data, and costs no privacy. "
    elif over.at == "server":
        told += "The over-arch is trained at the server, which has the samples of clients who opted in, labels too. "
    else:
        told += "The over-arch is trained by clients on leaf outputs that stay with them. "
    if settings.private:
        told += f"The columns {', '.join(settings.private)} are in one leaf alone, whose outputs stay with clients. "
    if promises_privacy(experiment.composed(), experiment.filters):
        told += "What each client releases, in all its trainings, is composed; the worst client's ε is told."
    return told.rstrip()


def _encoder_text(experiment: Experiment) -> str:
    if experiment.encode is None:
        return ""
    own = ", the job's own code," if experiment.encode.own else ""
    return (
        f"encode: {experiment.encode.name}{own} turns samples into features once, where the samples are; it is neither "
        "trained nor sent, and features stay there: whoever has them can tell much of the samples."
        + (STANDARDISED if experiment.encode.scale == "standard" else "")
    )


def _evidence(experiment: Experiment) -> Sequence[EvidenceKind]:
    """The evidence on clients' data that the run gathers; an ensemble does not compare its clients."""
    if experiment.ensemble is not None:
        return ()
    return experiment.quality.kinds(experiment.composed(), experiment.filters)


def _part_description(part: AlgorithmPart, experiment: Experiment) -> str:
    """A part's own words, and what they come to beside the others."""
    if isinstance(part, PlainCollect) and adds_local_noise(experiment):
        return "plain: the server sees every client's update, including the noise that the client added."
    if not isinstance(part, PoissonSampling):
        return part.privacy_text()
    if isinstance(experiment.collect, CentralDp):
        return f"{part.privacy_text()} Sampling amplifies privacy, unless the selected clients are published."
    return f"{part.privacy_text()} Sampling does not amplify privacy here: the server knows who took part."


def _filters_inside(experiment: Experiment) -> str:
    """Filters speak of single updates, which is not what the server sees if it only gets sums."""
    if not experiment.filters or not experiment.collect.sums_only:
        return ""
    return "What the filters state about an update that the server sees applies here to the sum of the updates."


def _parties(experiment: Experiment) -> Iterator[PartyKnowledge]:
    yield _party("the server", _to_server(experiment))
    collect = experiment.collect
    if isinstance(collect, HomomorphicAggregation):
        yield _party(f"client {collect.key_holder}, who holds the key", ["the sum of the updates of each round"])
    if isinstance(collect, SecureAggregation) and collect.keeper:
        named = isinstance(collect.keeper, str)
        where = f", which is site {collect.keeper} in a deployed job (a simulation runs its own)" if named else ""
        yield _party(f"the mask keeper{where}", _to_keeper(collect))
    if sends_profiles(experiment) and isinstance(experiment.select.comparison, EncryptedComparison):
        holder = ", ".join(map(str, experiment.reference_clients))
        yield _party(
            f"client {holder}, who holds the reference set",
            ["each divergence, multiplied by a factor that it does not know"],
        )
    yield _party("a client's own site", ["everything of its own: its data, its updates and its state between rounds"])
    yield _party("the other sites", _to_sites(experiment))
    yield _party("whoever gets the result", _in_result(experiment))


def _party(name: str, learns: Iterable[str]) -> PartyKnowledge:
    return PartyKnowledge(name=name, learns=tuple(learns))


def _to_server(experiment: Experiment) -> Iterator[str]:
    yield _updates(experiment)
    if reports_training_losses(experiment):
        yield "every client's training loss and number of steps, in each round in which it participates"
        yield from _told_of_labels(experiment.client)
    else:
        yield "how many steps every client took"
    if reports_model_losses(experiment):
        yield "the loss of each model it sends out, on each client's samples"
    if sends_profiles(experiment):
        yield _profiles(experiment)
    if told := [kind for kind in _evidence(experiment) if kind in TOLD_BY_CLIENTS]:
        yield (
            "how many samples every client has of each class, and what they are like on average "
            f"(means and variances: evidence on {listed(told)})"
        )
    if experiment.reference_clients:
        yield "the score of every model on the reference clients' samples"
    if experiment.data.local_test:
        yield (
            "the score of each model on every client's local test samples; after the last round also how many of "
            "which class are taken for which, where a site's policy allows it"
        )
    yield "how many samples each client has, which clients were selected, and when each replied"
    if asks_for_units(experiment):
        yield UNITS


def _told_of_labels(client: ClientUpdate) -> Iterator[str]:
    if client.label_threshold is not None:
        yield "of which share of its unlabelled samples the model was sure, client by client"
    if client.tells_labelled_share:
        yield "which share of its samples has labels, client by client"


def _updates(experiment: Experiment) -> str:
    if isinstance(experiment.collect, PeersCollect):
        told = "the average of each round" if experiment.collect.server_has_model else "no average"
        return f"no update, and {told}: in a deployed job clients' models pass it encrypted for each other"
    if experiment.collect.sums_only:
        noise = ", with noise," if _noisy_sums(experiment) else ","
        return f"the sum of the updates of each round{noise} and no single client's update{_beside_sums(experiment)}"
    filtered = ", after the filters" if experiment.filters else ""
    early = ", before noise is added" if isinstance(experiment.collect, CentralDp) else ""
    hidden = ", with noise that hides each sample" if isinstance(experiment.client, DpSgd) else ""
    return f"every client's update{filtered}{hidden}{early}"


def _beside_sums(experiment: Experiment) -> str:
    collect = experiment.collect
    if not isinstance(collect, SecureAggregation) or not collect.encoding.needs_keeper:
        return ""
    return (
        "; and for every block of weights the codewords that clients chose, without names: if one client has much "
        "more data than the others, this reveals its approximate update"
    )


def _profiles(experiment: Experiment) -> str:
    matching, by_class = experiment.select.comparison, profiles_by_class(experiment)
    if isinstance(matching, EncryptedComparison):
        classes = "how many samples of each class every client has, " if by_class else ""
        return f"{classes}the variances of every profile and its divergence from the reference profile, but no means"
    noisy = ", with noise" if isinstance(matching, NoisyProfiles) else ""
    if by_class:
        return (
            "how many samples of each class every client has, and for each class the mean and variance of a layer's "
            f"elements over them{noisy and ', all with noise'}"
        )
    return f"every client's profile, the mean and variance of a layer's elements over its samples{noisy}"


def _to_keeper(collect: SecureAggregation) -> Iterator[str]:
    yield "who takes part in each round, their weights and their mask seeds; it never receives a masked sum"
    if collect.encoding.needs_keeper:
        yield "which codewords each client chose; with the codebook this reveals the approximate update"


def _to_sites(experiment: Experiment) -> Iterator[str]:
    if isinstance(experiment.collect, PeersCollect):
        hidden = ", with noise that hides each sample" if isinstance(experiment.client, DpSgd) else ""
        yield f"every other client's model after local training{hidden}, and how many samples it has"
    yield "every model they receive; the difference of two consecutive models reveals the aggregate update of a round"
    if isinstance(experiment.collect, SecureAggregation | HomomorphicAggregation):
        yield "who else takes part in the same round, and how much data each has relative to the largest"
    if asks_for_units(experiment):
        yield UNITS


def _in_result(experiment: Experiment) -> Iterator[str]:
    if experiment.collect.server_has_model:
        yield f"the best and the last model{_hidden_in_models(experiment)}"
    means = "mean losses, " if reports_training_losses(experiment) else ""
    yield f"the run's log: scores, {means}and which clients were selected, aggregated or rejected in each round"
    yield "how many samples each client has, and what it is called (in a deployed job, if its site tells)"
    if whose := _whose_scaling(experiment):
        yield f"means and deviations of the {whose} set's features, by which the model standardises rows"
    if _evidence(experiment):
        yield "a verdict on every client's data, and the evidence for it in words"


def _whose_scaling(experiment: Experiment) -> str | None:
    """Which of the server's sets the saved model standardises features by; None: none."""
    if experiment.encode is None or experiment.encode.scale == "none":
        return None
    return "reference" if not experiment.reference_clients else "test" if experiment.data.test else None


def _hidden_in_models(experiment: Experiment) -> str:
    if isinstance(experiment.collect, CentralDp):
        return ", which hide whether a client took part"
    return ", which hide what a client contributed" if _noisy_sums(experiment) else ""


def _noisy_sums(experiment: Experiment) -> bool:
    return isinstance(experiment.collect, SecureAggregation) and experiment.collect.encoding.private
