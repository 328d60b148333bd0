"""What `explain` says of secure aggregation: no more than the protocol keeps."""

import pytest

from winnow.explain.privacy_report import PrivacyReport, make_privacy_report
from winnow.privacy.secagg.masking_graph import safe_degree
from winnow.privacy.secagg.scalar_quantisation import MAX_CLIENTS
from world import experiment

SECURE = ("collect.name=secure", "select.count=5")
PRODUCT = (*SECURE, "collect.keeper=true", "collect.encoding.name=product-quantisation")


def explained(*sets: str) -> PrivacyReport:
    return make_privacy_report(experiment(*sets, algorithm="fedavg-rp"))


def learnt(explanation: PrivacyReport, party: str) -> str:
    return "; ".join(each for one in explanation.parties if party in one.name for each in one.learns)


def test_codewords_are_told_where_the_server_gets_their_histograms() -> None:
    told = explained(*PRODUCT)
    assert "the codewords that clients chose, without names" in learnt(told, "the server")
    assert "which codewords each client chose" in learnt(told, "mask keeper")
    assert any("product-quantisation: the server learns more than sums" in part for part in told.parts)
    assert any("reveals more than sums to the server" in warning for warning in told.warnings)
    sums = explained(*SECURE, "collect.keeper=true")
    assert "codeword" not in learnt(sums, "") + " ".join((*sums.parts, *sums.warnings))


def test_the_keeper_learns_weights() -> None:
    assert "their weights" in learnt(explained(*SECURE, "collect.keeper=true"), "mask keeper")


def test_a_ring_promises_less_than_the_complete_graph() -> None:
    complete, ring = (" ".join(explained(*SECURE, f"collect.graph={graph}").parts) for graph in ("complete", "ring"))
    assert "if the server also lies, fewer than 33 % of them" in complete
    assert "the server must do as it should" not in complete
    assert "if the server also lies" not in ring
    assert "the server must do as it should" in ring


@pytest.mark.parametrize(("neighbours", "warned"), [(4, True), (safe_degree(MAX_CLIENTS), False), (None, False)])
def test_few_neighbours_are_warned_of(neighbours: int | None, warned: bool) -> None:
    sets = () if neighbours is None else (f"collect.neighbours={neighbours}",)
    warnings = explained(*SECURE, "collect.graph=ring", *sets).warnings
    assert any(f"collect.neighbours = {neighbours} may be too few" in each for each in warnings) is warned
