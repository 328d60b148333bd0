"""winnow reproduce fedclip: runs that differ in what rows say, and cells that are means over targets and clients."""

from statistics import fmean

from winnow.papers import PAPERS, ReproductionOptions, RunResultLine
from winnow.papers.fedclip.adapter_methods import FEDCLIP_ROW, FROZEN, TRAINED
from winnow.papers.fedclip.domain_table import TUNING_SEEDS, DomainTable, run_name
from winnow.papers.page_blocks import TableBlock
from winnow.papers.result_json_lines import lines_by_key

PAPER = PAPERS["fedclip"]
UNSEEN, NETWORKS, SPOILED = PAPER.items
DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
assert isinstance(UNSEEN, DomainTable)
CASES = [f"{method.name}-{domain}" for method in FROZEN[2:] for domain in DOMAINS]
ALONE = [f"alone-{client}-{target}" for target in DOMAINS for client in DOMAINS if client != target]


def tuned(best: float) -> list[RunResultLine]:
    """Tuning runs of all rows, of which this rate's are best by the reference set and worst by the test."""
    return [
        RunResultLine(
            item="unseen",
            algorithm=run_name(case, rate),
            seed=TUNING_SEEDS[0],
            rounds=30,
            best=0.5 + 0.1 * (rate == best),
            test_best=0.5 - 0.1 * (rate == best),
        )
        for case in (*CASES, *ALONE)
        for rate in UNSEEN.rates
    ]


def test_every_row_has_its_runs() -> None:
    wanted = ReproductionOptions(seeds=2, known=lines_by_key(tuned(0.01)))
    tried = [run for run in UNSEEN.runs(wanted) if run.experiment.seed in TUNING_SEEDS]
    assert len({run.key for run in tried}) == len(tried) == len(UNSEEN.rates) * len((*CASES, *ALONE))
    runs = [run for run in UNSEEN.runs(wanted) if run.experiment.seed not in TUNING_SEEDS]
    assert len({run.key for run in runs}) == len(runs) == 2 * (4 * (len(FROZEN) - 1) + 4 * 3)
    heavy = NETWORKS.runs(ReproductionOptions(seeds=5))
    assert len(heavy) == 4 * (2 * 5 + 2 * 2)
    assert NETWORKS.needs_gpu
    assert all(run.experiment.encode is None for run in heavy)
    assert all(run.experiment.encode is not None for run in runs)


def test_a_client_alone_is_the_only_one_that_is_ever_selected() -> None:
    [run] = [run for run in UNSEEN.runs(ReproductionOptions(seeds=1)) if run.algorithm == "alone-photo-sketch@0.01"]
    assert run.experiment.data.left_out == ("sketch",)
    assert run.experiment.select.trust == {"art_painting": 0.0, "cartoon": 0.0, "photo": 1.0}
    assert run.experiment.select.count == 1


def test_only_clients_of_the_third_table_are_spoiled() -> None:
    once = ReproductionOptions(seeds=1)
    clean = (*UNSEEN.runs(once), *NETWORKS.runs(once))
    assert not any(run.experiment.data.corruptions for run in clean)
    names = [run.experiment.select.name for run in SPOILED.runs(once)]
    assert names == ["uniform", "uniform", "profile"]
    assert all(run.experiment.data.corruptions for run in SPOILED.runs(once))


def test_rates_are_chosen_on_a_seed_of_their_own_by_the_reference_set() -> None:
    waiting = UNSEEN.runs(ReproductionOptions(seeds=1))
    assert {run.algorithm.partition("-")[0] for run in waiting if run.experiment.seed == 0} == {"zero"}
    lines = lines_by_key(tuned(0.01))
    assert UNSEEN.chosen(FEDCLIP_ROW, lines) == 0.01
    reported = [run for run in UNSEEN.runs(ReproductionOptions(seeds=1, known=lines)) if run.experiment.seed == 0]
    assert {run.experiment.local.learning_rate for run in reported if run.algorithm.endswith("@0.01")} == {0.01}
    assert all(run.algorithm.endswith("@0.01") for run in reported if "zero-shot" not in run.algorithm)
    scored = [line(f"fedclip-{target}@{rate:g}", 0, rate) for target in DOMAINS for rate in UNSEEN.rates]
    assert UNSEEN.scores(FEDCLIP_ROW, lines | lines_by_key(scored), "test_best") == {
        target: {0: 1.0} for target in DOMAINS
    }
    shown = UNSEEN.blocks(lines | lines_by_key(scored))[-1]
    assert isinstance(shown, TableBlock)
    assert [FEDCLIP_ROW.title, "50.00", "50.00", "50.00", "60.00 *"] in shown.rows


def line(algorithm: str, seed: int, test: float, item: str = "unseen") -> RunResultLine:
    return RunResultLine(
        item=item, algorithm=algorithm, seed=seed, rounds=30, test_best=test, local_test_best=test + 0.1
    )


def test_cells_are_means_and_differences_are_paired() -> None:
    lines = [
        line(f"fedclip-{target}@0.001", seed, 0.5 + 0.1 * place + 0.01 * seed)
        for place, target in enumerate(DOMAINS)
        for seed in (0, 1)
    ]
    lines += [line(f"zero-shot-{target}", seed, 0.4) for target in DOMAINS for seed in (0, 1)]
    lines += [
        line(f"alone-{client}-photo@0.001", 0, 0.2 + 0.1 * place)
        for place, client in enumerate(("art_painting", "cartoon", "sketch"))
    ]
    tables = [block for block in UNSEEN.blocks(lines_by_key(lines)) if isinstance(block, TableBlock)]
    rows = {row[0]: row[1:] for row in tables[0].rows}
    assert rows["FedCLIP (attention adapter) (2)"][3].startswith("80.5")
    assert rows["FedCLIP (attention adapter) (2)"][4].startswith("65.5")
    assert rows["Zero-shot (2)"][0].startswith("40.0")
    assert rows["FedCLIP's adapter, each client alone (1)"][2].startswith(f"{100 * fmean((0.2, 0.3, 0.4)):.1f}")
    assert rows["FedCLIP's adapter, each client alone (1)"][0] == "–"
    [pair] = tables[3].rows
    assert pair[0] == "Zero-shot"
    assert pair[1].startswith("25.5")
    assert pair[2] == "2 of 2"
    networks = [line(f"whole-fedavg-{target}", 0, 0.9, "trained") for target in DOMAINS]
    compared = NETWORKS.blocks(lines_by_key([*lines, *networks]))[-1]
    assert isinstance(compared, TableBlock)
    assert compared.rows[0][1].replace("−", "-").startswith("-25.0")


def test_nothing_is_claimed_without_runs() -> None:
    for item in PAPER.items:
        assert not item.has_results({})
        assert "Not run" in item.blocks({})[-1].text
    assert {method.seeds for method in TRAINED if method.name.startswith("whole")} == {2}
