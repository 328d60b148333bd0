"""`winnow explain`: what it says of a configuration is so, every protection speaks, and what undoes itself is told."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from command_line import call, write_tiny
from winnow.core import Choice, Population
from winnow.explain.privacy_report import PrivacyReport, make_privacy_report
from winnow.learn.client_round_method import ClientUpdate
from winnow.learn.collect import Collect
from winnow.learn.profile_comparison import ProfileComparison
from winnow.learn.update_filters import TwoSidedFilter
from winnow.privacy.dp import accountant_for
from world import experiment, prepared

SECURE = ("collect.name=secure", "select.count=5")
HOMOMORPHIC = ("collect={name='homomorphic', key_holder=1}", "select.count=5")
CENTRAL = ("collect={name='central-dp', noise_multiplier=1.0}", "select.name=poisson")
LOCAL = "{name='local-dp', noise_multiplier=1.0, clip=1.0}"
CLIP = "{name='clip', norm=1.0}"
TOP_K = "{name='compress', sparsify={name='top-k', fraction=0.1}}"
RANDOM_K = "{name='compress', sparsify={name='random-k', fraction=0.1}}"
DP_SGD = "client={name='dp-sgd', noise_multiplier=1.0}"
NOISY_SUMS = "collect.encoding={name='discrete-gaussian', noise_multiplier=1.0, clip=1.0}"


def explained(*sets: str, algorithm: str = "fedavg-rp") -> PrivacyReport:
    return make_privacy_report(experiment(*sets, algorithm=algorithm))


def learnt(explanation: PrivacyReport, party: str) -> str:
    """All that the parties so called learn, as one text."""
    return "; ".join(each for one in explanation.parties if party in one.name for each in one.learns)


# Who learns what ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        ((), "every client's update;"),
        (SECURE, "the sum of the updates of each round, and no single client's update;"),
        (HOMOMORPHIC, "the sum of the updates of each round, and no single client's update;"),
        (CENTRAL, "every client's update, before noise is added;"),
        ((f"filters=[{LOCAL}]",), "every client's update, after the filters;"),
        ((DP_SGD,), "every client's update, with noise that hides each sample;"),
    ],
)
def test_what_the_server_sees_of_updates_depends_on_how_they_are_collected(sets: tuple[str, ...], said: str) -> None:
    assert learnt(explained(*sets), "server").startswith(said)


@pytest.mark.parametrize(
    ("sets", "leave"),
    [
        ((), True),
        (SECURE, True),
        ((f"filters=[{CLIP}]",), True),
        ((DP_SGD,), False),
        ((f"filters=[{LOCAL}]",), False),
        (("filters=[{name='sparse-vector', epsilon=1.0}]",), False),
        (CENTRAL, False),
        ((*SECURE, NOISY_SUMS), False),
    ],
)
def test_losses_leave_unless_noise_hides_clients_or_samples(sets: tuple[str, ...], leave: bool) -> None:
    """And what is said is so: the very replies of a run have a loss, or none."""
    told = explained(*sets)
    assert ("training loss" in learnt(told, "server")) == leave
    assert ("mean losses" in learnt(told, "result")) == leave
    assert any("training loss" in each for each in told.warnings) == (sets == SECURE)
    with prepared(*sets, algorithm="fedavg-rp", rounds=1) as ready:
        tasks = ready.training.tasks([0, 1], ready.federation.population.sizes, round=1)
        with ready.federation.dispatch(tasks) as exchange:
            losses = [reply.metrics.get("loss", math.nan) for reply in exchange]
    assert [math.isfinite(loss) for loss in losses] == [leave, leave]


@pytest.mark.parametrize(
    ("matching", "said"),
    [
        (
            "select.profile_comparison=plain",
            "mean and variance of a layer's elements over its samples;",
        ),
        ("select.profile_comparison=encrypted", "the variances of every profile and its divergence"),
        ("select.profile_comparison={name='noisy', noise_multiplier=1.0, clip=1.0}", "over its samples, with noise;"),
    ],
)
def test_profiles_are_told_as_they_leave(matching: str, said: str) -> None:
    assert said in learnt(explained(matching, algorithm="fedprof"), "server")
    assert "how many samples of each class" not in learnt(explained(matching, algorithm="fedprof"), "server")
    assert "profile" not in learnt(explained(algorithm="fedavg-rp"), "server")


@pytest.mark.parametrize(
    ("matching", "said"),
    [
        ("plain", "over them;"),
        ("encrypted", "but no means"),
        ("{name='noisy', noise_multiplier=1.0, clip=1.0}", "over them, all with noise;"),
    ],
)
def test_profiles_by_class_tell_how_many_samples_there_are_of_each(matching: str, said: str) -> None:
    told = learnt(explained(f"select.profile_comparison={matching}", algorithm="fedprof-by-class"), "server")
    assert "how many samples of each class every client has" in told
    assert said in told
    parts = explained("select.count_step=10", algorithm="fedprof-by-class").parts
    assert any("rounded down to multiples of 10" in part and "fewer than 5 samples" in part for part in parts)


@pytest.mark.parametrize("algorithm", ["afl", "oort", "power-of-choice", "qfedavg", "tifl"])
def test_losses_of_models_are_told_where_clients_are_asked_for_them(algorithm: str) -> None:
    assert "the loss of each model it sends out" in learnt(explained(algorithm=algorithm), "server")
    assert "the loss of each model it sends out" not in learnt(explained(), "server")


@pytest.mark.parametrize(
    ("algorithm", "sure", "share"),
    [
        ("fixmatch", True, False),
        ("semifl", True, False),
        ("fedmatch", True, False),
        ("rscfed", False, True),
        ("fade", False, True),
        ("fedavg-rp", False, False),
    ],
)
def test_what_clients_tell_of_their_labels_is_told_and_stays_home_under_noise(
    algorithm: str, sure: bool, share: bool
) -> None:
    to_server = learnt(explained(algorithm=algorithm), "server")
    assert ("the model was sure" in to_server, "has labels, client by client" in to_server) == (sure, share)
    if algorithm == "fixmatch":
        assert "sure" not in learnt(explained(*CENTRAL, algorithm=algorithm), "server")


def test_holders_of_keys_and_masks_are_parties_of_their_own() -> None:
    assert learnt(explained(*HOMOMORPHIC), "client 1, who holds the key") == "the sum of the updates of each round"
    assert "their mask seeds" in learnt(explained(*SECURE, "collect.keeper=true"), "mask keeper")
    holder = explained("select.profile_comparison=encrypted", "reference_clients=[3]", algorithm="fedprof")
    assert "divergence" in learnt(holder, "client 3, who holds the reference set")
    assert not learnt(explained(), "keeper")


def test_other_sites_learn_who_else_takes_part_only_where_they_are_told() -> None:
    assert "how much data" in learnt(explained(*SECURE), "other sites")
    assert "how much data" not in learnt(explained(), "other sites")


def test_every_way_of_collecting_matching_and_filtering_speaks_for_itself() -> None:
    """A new member must say who learns what; the families' own word is an empty one."""
    for family in (Collect, ProfileComparison, TwoSidedFilter):
        for name, member in family.members.items():
            assert "privacy_text" in {
                key for kind in member.__mro__[: member.__mro__.index(family)] for key in vars(kind)
            }, name
    dp_sgd: type[Choice] = ClientUpdate.members["dp-sgd"]
    assert "privacy_text" in vars(dp_sgd)


@pytest.mark.parametrize(
    ("sets", "begins"),
    [
        ((), "plain: "),
        (SECURE, "secure: "),
        (HOMOMORPHIC, "homomorphic: "),
        (CENTRAL, "central-dp: "),
        ((DP_SGD,), "dp-sgd: "),
        ((f"filters=[{CLIP}]",), "clip: "),
    ],
)
def test_the_parts_say_it_in_their_own_words(sets: tuple[str, ...], begins: str) -> None:
    assert any(each.startswith(begins) for each in explained(*sets).parts)


def test_noise_inside_a_sum_is_told_by_its_encoding() -> None:
    encoding = NOISY_SUMS
    (said,) = explained(*SECURE, encoding).parts
    assert "discrete-gaussian: each client adds its share of noise" in said
    assert "which hide what a client contributed" in learnt(explained(*SECURE, encoding), "result")
    assert "which hide whether a client took part" in learnt(explained(*CENTRAL), "result")
    assert "hide" not in learnt(explained(*SECURE), "result")


def test_sampling_counts_only_where_it_is_counted() -> None:
    def said(*sets: str) -> str:
        (words,) = (part for part in explained(*sets, "select.name=poisson").parts if part.startswith("poisson: "))
        return words

    assert "Sampling amplifies privacy" in said(*CENTRAL)
    for sets in ((), (*SECURE, NOISY_SUMS), (f"filters=[{LOCAL}]",), (DP_SGD,)):
        assert "Sampling does not amplify privacy here: the server knows who took part." in said(*sets)


@pytest.mark.parametrize("sets", [f"filters=[{LOCAL}]", "filters=[{name='sparse-vector', epsilon=1.0}]", DP_SGD])
def test_nobody_must_be_trusted_where_nobody_need_be(sets: str) -> None:
    words = " ".join(explained(sets).parts)
    assert "must be trusted" not in words
    assert "plain: the server sees every client's update, including the noise" in words
    assert "must be trusted" in " ".join(explained().parts)


def test_noisy_sums_are_told_as_noisy_and_both_limits_on_colluders_count() -> None:
    told = explained(*SECURE, NOISY_SUMS)
    assert learnt(told, "server").startswith(
        "the sum of the updates of each round, with noise, and no single client's update;"
    )
    assert "learns the noisy sum" in told.parts[0]
    assert "fewer than 67 %" in told.parts[0]
    assert (
        "if 50 % of the members add theirs. For ε this limit counts beside the one that holds for masks"
        in told.parts[0]
    )
    assert "the clients of one site are one party" in told.parts[0]


def test_a_keepers_name_counts_in_deployed_jobs_only() -> None:
    named = explained(*SECURE, "collect.keeper='site-1'")
    assert learnt(named, "the mask keeper, which is site site-1 in a deployed job (a simulation runs its own)")


@pytest.mark.parametrize(
    ("sets", "hidden"),
    [
        (DP_SGD, 'client.name = "dp-sgd" hides samples in updates, but clients send FedProf'),
        (f"filters=[{LOCAL}]", 'filters.name = "local-dp" hides updates in noise, but clients send FedProf'),
        ("collect.name=secure", 'collect.name = "secure" keeps updates from the server, but clients send FedProf'),
    ],
)
def test_warnings_say_what_a_protection_does(sets: str, hidden: str) -> None:
    """And what they advise works as it is written."""
    warnings = explained(sets, "select.count=5", algorithm="fedprof").warnings
    (warning,) = (each for each in warnings if each.startswith(hidden))
    noisy = re.search(r"select.profile_comparison = ({.*?})", warning)
    assert noisy is not None
    assert 'select.profile_comparison = "encrypted" with reference_clients = [0]' in warning
    for advice in (
        (f"select.profile_comparison={noisy[1]}",),
        ('select.profile_comparison="encrypted"', "reference_clients=[0]"),
    ):
        followed = explained(sets, "select.count=5", *advice, algorithm="fedprof").warnings
        assert not any("clients send FedProf profiles" in each for each in followed)


# Budgets --------------------------------------------------------------------------------------------------------------

WAYS = {
    "central, Poisson": ("collect={name='central-dp', PRIVACY}", "select.name=poisson"),
    "central": ("collect={name='central-dp', PRIVACY}",),
    "in sums": ("collect={name='secure', encoding={name='discrete-gaussian', clip=1.0, PRIVACY}}",),
    "local": ("filters=[{name='local-dp', clip=1.0, PRIVACY}]",),
    "Laplace": ("filters=[{name='local-dp', clip=1.0, noise='laplace', PRIVACY}]",),
}
BUDGETS = {"central, Poisson": 6.0, "Laplace": 8.0}


def rounds_within_budget(*sets: str) -> float:
    """For how many rounds the book of a run lasts, in the median over many draws of 3 out of 8 clients."""
    whole, clients, lasted = experiment(*sets, algorithm="fedavg-rp"), Population(sizes=np.full(8, 10)), []
    for seed in range(101):
        book, rng, rounds = accountant_for(whole.composed(), whole.filters)(clients), np.random.default_rng(seed), 0
        assert book is not None
        while book.exhausted_reason() is None:
            book.record_round(rng.choice(8, 3, replace=False))
            rounds += 1
        lasted.append(rounds)
    return float(np.median(lasted))


@pytest.mark.parametrize("way", WAYS)
def test_a_budget_lasts_about_as_long_as_was_forecast(way: str) -> None:
    def sets(noise: float) -> list[str]:
        privacy = f"delta=0.01, epsilon={BUDGETS.get(way, 20.0)}, noise_multiplier={noise}"
        return [each.replace("PRIVACY", privacy) for each in WAYS[way]]

    (line,) = explained(*sets(0.7), "rounds=30").forecast
    found = re.search(r"lasts for about (\d+) of 30 rounds; for all 30 it takes noise_multiplier = (.*) or more", line)
    assert found is not None, line
    assert abs(rounds_within_budget(*sets(0.7)) - int(found[1])) <= (0 if "Poisson" in way else 1)
    enough = float(found[2])
    assert "lasts for all 30 rounds" in explained(*sets(enough), "rounds=30").forecast[0]
    assert "lasts for all 30 rounds" not in explained(*sets(0.97 * enough), "rounds=30").forecast[0]


def test_budgets_without_a_forecast_say_so() -> None:
    assert explained(*CENTRAL).forecast == ()
    (samples,) = explained("client={name='dp-sgd', noise_multiplier=1.0, epsilon=3.0}").forecast
    assert samples.startswith("client.epsilon: how long it lasts depends on how many samples")
    noisy = "select.profile_comparison={name='noisy', clip=1.0, noise_multiplier=0.1}"
    budget = "filters=[{name='local-dp', clip=1.0, noise_multiplier=1.0, epsilon=1.0}]"
    (hopeless,) = explained(noisy, budget, algorithm="fedprof").forecast
    assert hopeless.endswith(
        "does not last for one round; no noise_multiplier makes it last for all: profiles alone spend more"
    )
    (refused,) = explained(
        "collect={name='secure', encoding={name='discrete-gaussian', noise_multiplier=1.0, clip=1.0, epsilon=9.0}}",
        algorithm="fedprof",
    ).forecast
    assert refused.startswith("cannot be computed: ")


def test_the_units_of_a_table_are_told_and_no_noise_hides_them() -> None:
    table = ("data.table=stays", "data.name=stays", "data.targets=['y']", "data.path=federation.toml")
    assert "the units of the table" in learnt(explained(*table), "the server")
    assert "the units of the table" in learnt(explained(*table), "other sites")
    assert "the units of the table" not in learnt(explained(), "the server")
    assert any("count in no ε" in each for each in explained(*table, DP_SGD).warnings)
    assert not any("count in no ε" in each for each in explained(*table).warnings)


# What undoes itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "sets", "warning"),
    [
        ("fedavg-rp", SECURE, "sends its training loss in the clear"),
        ("fedavg-rp", HOMOMORPHIC, "sends its training loss in the clear"),
        ("fedprof", SECURE, "clients send FedProf profiles"),
        ("fedprof", (*SECURE, "select.profile_comparison=encrypted"), "variances of encrypted profiles"),
        ("fedprof", ("select.profile_comparison=encrypted",), "every update is sent in the clear"),
        ("fedavg-rp", CENTRAL, "not against the server"),
        ("fedavg-rp", CENTRAL, "publish only the models"),
        ("fedprof", (DP_SGD,), "clients send plain profiles without noise"),
        ("fedprof", (f"filters=[{LOCAL}]",), "clients send plain profiles without noise"),
        ("power-of-choice", (f"filters=[{LOCAL}]",), "clients send losses of the models that they are sent"),
        ("qfedavg", (DP_SGD,), "clients send losses of the models that they are sent"),
        ("fedavg-rp", (*CENTRAL, "reference_clients=[1]"), "clients send scores of each model without noise"),
        ("fedavg-rp", (f"filters=[{LOCAL}, {CLIP}]",), '"clip" comes after "local-dp"'),
        ("fedavg-rp", (f"filters=[{LOCAL}, {TOP_K}]",), "keeps the values that noise made large"),
        ("fedavg-rp", (*SECURE, f"filters=[{LOCAL}]"), "adds the full noise at each client"),
        ("fedavg-rp", (*SECURE, "collect.min_clients=2"), "collect.min_clients = 2"),
        ("fedavg-rp", (*HOMOMORPHIC, "collect.max_weight_share=1.0"), "collect.max_weight_share = 1 lets"),
    ],
)
def test_what_undoes_itself_is_told(algorithm: str, sets: tuple[str, ...], warning: str) -> None:
    assert any(warning in each for each in explained(*sets, algorithm=algorithm).warnings)


@pytest.mark.parametrize(
    "sets", [(), (f"filters=[{CLIP}]",), (DP_SGD,), ("filters=[{name='compress', entropy_coding='zstd'}]",)]
)
def test_nothing_is_said_where_nothing_is_undone(sets: tuple[str, ...]) -> None:
    assert explained(*sets).warnings == ()


@pytest.mark.parametrize("order", [f"[{CLIP}, {LOCAL}]", f"[{LOCAL}, {RANDOM_K}]"])
def test_filters_in_a_good_order_add_no_warning(order: str) -> None:
    alone = explained(f"filters=[{LOCAL}]").warnings
    assert explained(f"filters={order}").warnings == alone


# The command ----------------------------------------------------------------------------------------------------------


def test_a_file_and_a_preset_are_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = call(capsys, "explain", write_tiny(tmp_path), "--algorithm", "fedavg", "--set", "collect.name=secure")
    assert told.code == 0
    assert told.out.startswith("tiny · fedavg\n\nWho learns what\n")
    assert "What each part does" in told.out
    assert "Warnings" in told.out
    record = json.loads(call(capsys, "explain", "demo", "--json").out)
    assert record.keys() == {"name", "algorithm", "parties", "parts", "warnings", "spent", "forecast"}
    assert record["parties"][0]["name"] == "the server"


def test_a_run_is_explained_with_what_it_has_spent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    private = ("--set", f"filters=[{LOCAL}]", "--algorithm", "fedavg-rp", "--quiet")
    assert call(capsys, "run", write_tiny(tmp_path), *private, "--out", out).code == 0
    record = json.loads(call(capsys, "explain", out, "--json").out)
    assert record["spent"]["local_epsilon"] > 0
    assert "Spent so far\n   · local ε " in call(capsys, "explain", out).out
    assert call(capsys, "explain", out, "--set", "rounds=3").code == 2


@pytest.mark.parametrize("source", ["nothing", "nothing.toml", "."])
def test_what_cannot_be_explained_is_refused_in_one_line(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    told = call(capsys, "explain", source)
    assert told.code == 2
    assert told.err.startswith("winnow: error: ")
    assert told.err.count("\n") == 1
