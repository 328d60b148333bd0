"""Codes that can be summed under masks: pruning with a shared mask, product quantisation with shared codebooks."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.core import stream
from winnow.privacy.compress.kmeans import kmeans_codebook, nearest_codeword
from winnow.privacy.compress.product_quantisation import ProductQuantisation
from winnow.privacy.compress.random_pruning_under_masks import RandomPruning
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.secure_indexing import assignments, histograms, read_histograms, write_histograms
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters
from winnow.privacy.secagg.update_layout import UpdateLayout, public_update, weighted_update

PARTS = {
    "model": {
        "fc1.weight": torch.randn(40, 30, generator=torch.Generator().manual_seed(0)) / 5,
        "fc1.bias": torch.zeros(40),
        "fc2.weight": torch.randn(3, 4, generator=torch.Generator().manual_seed(1)),
        "batches": torch.tensor(3),
    }
}
LAYOUT = UpdateLayout.of(PARTS)
PUBLIC = public_update(LAYOUT, PARTS)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def updates(clients: int, seed: int = 0, size: float = 0.02) -> list[list[np.ndarray]]:
    """What so many clients have to say: nearly alike, each with its weight."""
    source = torch.Generator().manual_seed(seed)
    common = {
        n: torch.randn(t.shape, generator=source) * size for n, t in PARTS["model"].items() if t.is_floating_point()
    }
    found = []
    for client in range(clients):
        own = {n: PARTS["model"][n] + c + torch.randn(c.shape, generator=source) * size for n, c in common.items()}
        parts = {"model": {**PARTS["model"], **own, "batches": torch.tensor(3 + client)}}
        found.append(weighted_update(parts, PARTS["model"], 1 / (1 + client % 3)))
    return found


def summed(encoding, values, parameters: EncodingParameters):
    """The plain way: words are added up in the group, assignments are counted."""
    members, group, indexed = len(values), encoding.group(LAYOUT, len(values)), encoding.indexed(LAYOUT)
    total, masked, seeds = group.zeros(), {}, {}
    for client, own in enumerate(values):
        vector = encoding.encode(LAYOUT, own, parameters, members, rng(client))
        group.check(vector)
        group.add(total, vector)
        seeds[client] = bytes([client]) * 32
        add_mask(vector, seeds[client], group, sign=1)
        masked[client] = assignments(group.pack(group.reduce(vector)), group, indexed)
    counts = histograms(masked, seeds, group, indexed)
    return encoding.decode(LAYOUT, [*counts, *group.reduce(total)[indexed:]], parameters, members, members)


class TestPruned:
    @given(st.integers(1, 9), st.floats(0.02, 1))
    @settings(max_examples=25, deadline=None)
    def test_what_is_sent_adds_up_and_the_rest_stands_still(self, clients: int, fraction: float) -> None:
        encoding, values = RandomPruning(fraction=fraction), updates(clients)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        sums = summed(encoding, values, parameters).sums
        steps = iter(parameters.arrays["scale"])
        for place, entry in enumerate(LAYOUT.entries):
            exact = sum(each[place] for each in values)
            if len(entry.shape) < 2:
                np.testing.assert_allclose(sums[place], exact, atol=1e-5)
                continue
            sent = sums[place] != 0
            assert sent.sum() <= max(1, round(fraction * entry.count))
            stretch = entry.count / max(1, round(fraction * entry.count))
            tolerance = 1.01 * clients * next(steps) * stretch
            np.testing.assert_allclose(sums[place][sent], exact[sent] * stretch, atol=tolerance)

    def test_the_mask_is_everybodys_and_a_new_one_every_so_often(self) -> None:
        encoding, values = RandomPruning(fraction=0.1, refresh_every=2), updates(3)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        assert parameters.as_arrays().keys() == encoding.first(LAYOUT, PUBLIC, 1).as_arrays().keys()
        masks = []
        for number in range(1, 6):
            decoded = summed(encoding, values, parameters)
            masks.append(tuple(np.flatnonzero(decoded.sums[0]).tolist()))
            parameters = EncodingParameters.of(encoding.refresh(LAYOUT, parameters, decoded, number + 1).as_arrays())
        overlap = [len({*one} & {*other}) / 120 for one, other in pairwise(masks)]
        assert [share > 0.8 for share in overlap] == [True, False, True, False]
        assert parameters.version == 5

    def test_bytes_follow_the_fraction(self) -> None:
        weights, room = 1200 + 12, 4
        tenth, all_of_it = (RandomPruning(fraction=fraction).group(LAYOUT, 16).packed_bytes for fraction in (0.1, 1.0))
        assert all_of_it - tenth == pytest.approx(0.9 * weights * (8 + room) / 8, abs=3)

    def test_every_coordinate_has_its_turn(self) -> None:
        encoding, values = RandomPruning(fraction=0.2), updates(2)
        parameters, seen = encoding.first(LAYOUT, PUBLIC, 1), np.zeros(1200, bool)
        for number in range(1, 41):
            decoded = summed(encoding, values, parameters)
            seen |= decoded.sums[0].reshape(-1) != 0
            parameters = encoding.refresh(LAYOUT, parameters, decoded, number + 1)
        assert seen.mean() > 0.99

    def test_parameters_without_a_seed_are_refused(self) -> None:
        encoding = RandomPruning()
        parameters = encoding.quantisation.first(LAYOUT, PUBLIC, 1)
        with pytest.raises(ProtocolError, match="pruning seed"):
            encoding.encode(LAYOUT, updates(1)[0], parameters, 3, rng())


class TestCodewords:
    def test_nearest_is_nearest(self) -> None:
        blocks, codewords = (
            rng(1).normal(size=(500, 4)).astype(np.float32),
            rng(2).normal(size=(16, 4)).astype(np.float32),
        )
        by_hand = [int(np.square(codewords - block).sum(1).argmin()) for block in blocks]
        assert nearest_codeword(blocks, codewords).tolist() == by_hand

    def test_clouds_are_found(self) -> None:
        centres = rng(3).normal(0, 10, (8, 3)).astype(np.float32)
        blocks = np.repeat(centres, 50, axis=0) + rng(4).normal(0, 0.1, (400, 3)).astype(np.float32)
        found = kmeans_codebook(blocks, 32, rng(5))
        assert np.sqrt(np.square(found[nearest_codeword(blocks, found)] - blocks).mean()) < 0.15

    def test_codewords_reduce_the_error_of_a_random_choice(self) -> None:
        blocks = rng(6).normal(size=(2000, 4)).astype(np.float32)
        drawn, found = blocks[:64], kmeans_codebook(blocks, 64, rng(7))
        errors = [np.square(book[nearest_codeword(blocks, book)] - blocks).mean() for book in (drawn, found)]
        assert errors[1] < 0.75 * errors[0]


class TestProduct:
    def test_histograms_decode_to_the_sum_of_codewords(self) -> None:
        """Against a calculation that looks each client's codewords up by itself."""
        encoding, values = ProductQuantisation(codewords=16, block=4), updates(5)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        decoded = summed(encoding, values, parameters)
        book, order = parameters.arrays["codebook.0"].astype(np.float32), stream(1, "blocks", 0).permutation(1200)
        by_hand, lengths, reaches = np.zeros((300, 4)), 0.0, 0.0
        for own in values:
            blocks = own[0].reshape(-1)[order].reshape(300, 4).astype(np.float32)
            words = book[[int(np.square(book - block).sum(1).argmin()) for block in blocks]]
            by_hand += words
            lengths += float(np.linalg.norm(blocks))
            reaches += float((blocks * words).sum() / np.linalg.norm(blocks))
        stretched = by_hand.reshape(-1) * min(max(lengths / reaches, 1.0), 8.0)
        np.testing.assert_allclose(decoded.sums[0].reshape(-1)[order], stretched, rtol=1e-4)
        for place in (1, 3, 4):  # biases, counters and the weight are summed up as they are
            np.testing.assert_allclose(decoded.sums[place], sum(own[place] for own in values), atol=1e-5)

    @given(st.integers(1, 9), st.sampled_from([2, 16, 256]), st.integers(1, 6))
    @settings(max_examples=20, deadline=None)
    def test_the_word_sizes_are_those_of_the_rules(self, block: int, codewords: int, clients: int) -> None:
        encoding = ProductQuantisation(codewords=codewords, block=block, min_weights=0)
        group, rate = encoding.group(LAYOUT, clients), np.log2(codewords) / block
        for segment, count in zip(group.segments[: encoding.indexed(LAYOUT)], (1200, 12), strict=False):
            assert -(-count // block) <= segment.count <= count
            assert segment.count >= 4 * (1 << segment.bits)  # four blocks a codeword
            assert 1 <= segment.bits <= np.log2(codewords)
            assert segment.count * segment.bits >= count * rate  # as many bits a weight as a large tensor has
        decoded = summed(encoding, updates(clients), encoding.first(LAYOUT, PUBLIC, 1))
        assert [each.shape for each in decoded.sums] == [entry.shape for entry in LAYOUT.entries]

    def test_codebooks_learn_from_the_public_sum(self) -> None:
        """After a few rounds the error is a fraction of the update; the first codebook knows nothing."""
        encoding = ProductQuantisation(codewords=64, block=2)
        parameters, errors = encoding.first(LAYOUT, PUBLIC, 1), []
        for number in range(1, 6):
            values = updates(8, seed=number)
            decoded = summed(encoding, values, parameters)
            exact = sum(own[0] for own in values)
            errors.append(float(np.linalg.norm(decoded.sums[0] - exact) / np.linalg.norm(exact)))
            parameters = EncodingParameters.of(encoding.refresh(LAYOUT, parameters, decoded, number + 1).as_arrays())
        assert errors[0] > 0.4
        assert errors[-1] < 0.2

    @pytest.mark.parametrize("codewords", [4, 16, 256])
    def test_the_sum_of_many_is_as_long_as_it_should_be(self, codewords: int) -> None:
        """Clients agree on little and differ in much; at half a bit a weight a codeword is half as long as a block."""
        encoding, common = ProductQuantisation(codewords=codewords, block=8), rng(9).normal(0, 0.02, (40, 30))
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        for number in range(1, 5):
            values = updates(60, seed=number)
            for own in values:
                own[0] += common
            decoded = summed(encoding, values, parameters)
            parameters = encoding.refresh(LAYOUT, parameters, decoded, number + 1)
        exact = sum(own[0] for own in values)
        assert np.sum(decoded.sums[0] * exact) / np.sum(exact * exact) == pytest.approx(1.0, abs=0.1)

    def test_plain_sums_are_those_of_codewords_and_codebooks_those_of_the_mean_update(self) -> None:
        """Blocks in the tensor's order, no stretching, and k-means over the mean update as it is: against a calculation
        by hand, and in each direction of an update that all clients agree on.
        """
        encoding, values = ProductQuantisation(codewords=16, block=4, plain=True), updates(5)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        decoded = summed(encoding, values, parameters)
        book, by_hand = parameters.arrays["codebook.0"].astype(np.float32), np.zeros((300, 4))
        for own in values:
            blocks = own[0].reshape(300, 4).astype(np.float32)
            by_hand += book[[int(np.square(book - block).sum(1).argmin()) for block in blocks]]
        np.testing.assert_allclose(decoded.sums[0], by_hand.reshape(40, 30), rtol=1e-5)
        for place in (1, 3, 4):
            np.testing.assert_allclose(decoded.sums[place], sum(own[place] for own in values), atol=1e-5)

        mean = np.zeros((40, 30))
        mean.reshape(300, 4)[:] = np.array([[1.0, 2.0, 3.0, 4.0], [5.0, 5.0, 5.0, 5.0]])[np.arange(300) % 2]
        made = encoding.refresh(LAYOUT, parameters, replace(decoded, sums=[5 * mean, *decoded.sums[1:]], statistics={
            **decoded.statistics, "size.0": np.array([np.sqrt(np.square(mean).mean())])}), 2)  # fmt: skip
        found = {tuple(np.round(codeword, 3)) for codeword in made.arrays["codebook.0"]}
        assert found == {(1.0, 2.0, 3.0, 4.0), (5.0, 5.0, 5.0, 5.0)}  # neither zero nor the opposite

    def test_plain_sums_stay_short_where_stretched_ones_do_not(self) -> None:
        """With codebooks from an update like the clients', at half a bit a weight."""
        reached = []
        for plain in (False, True):
            encoding, values = ProductQuantisation(codewords=16, block=8, plain=plain), updates(60, seed=3)
            decoded = summed(encoding, values, encoding.emulated(LAYOUT, updates(1, seed=4)[0], 1))
            exact = sum(own[0] for own in values)
            reached.append(np.sum(decoded.sums[0] * exact) / np.sum(exact * exact))
        assert reached[0] == pytest.approx(1.0, abs=0.1)
        assert reached[1] < 0.7

    def test_what_does_not_change_does_not_seem_to(self) -> None:
        """A block whose weights are zero at all clients is decoded as zero, wherever its weights stand."""
        encoding, values = ProductQuantisation(codewords=16, block=4), updates(5)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        for number in range(1, 4):
            still = stream(parameters.version, "blocks", 0).permutation(1200)[40:80]
            for own in values:
                own[0].reshape(-1)[still] = 0
            decoded = summed(encoding, values, parameters)
            assert not decoded.sums[0].reshape(-1)[still].any()
            parameters = encoding.refresh(LAYOUT, parameters, decoded, number + 1)

    def test_shuffled_weights_come_back_to_their_places(self) -> None:
        """One weight that changes, a different one each time, is the one that is decoded as changed."""
        encoding, (own,) = ProductQuantisation(codewords=16, block=4), updates(1)
        for place in (0, 17, 1199):
            own[0] = np.zeros((40, 30))
            own[0].reshape(-1)[place] = 1.0
            moved = summed(encoding, [own], encoding.first(LAYOUT, PUBLIC, place + 1)).sums[0].reshape(-1)
            assert np.count_nonzero(moved) == 4  # its block
            assert moved[place] != 0

    def test_corrections_have_codewords_as_errors_have(self) -> None:
        """The opposite of an update costs no more error than the update that the codebook was made of."""
        encoding, values = ProductQuantisation(codewords=64, block=2), updates(8)
        parameters = encoding.first(LAYOUT, PUBLIC, 1)
        for number in range(1, 4):
            parameters = encoding.refresh(LAYOUT, parameters, summed(encoding, values, parameters), number + 1)
        exact, errors = sum(own[0] for own in values), []
        for sign in (1, -1):
            told = summed(encoding, [[sign * own[0], *own[1:]] for own in values], parameters).sums[0]
            errors.append(np.linalg.norm(told - sign * exact))
        assert errors[1] == pytest.approx(errors[0], rel=0.2)

    def test_codebooks_stay_as_long_as_they_are_told(self) -> None:
        encoding, values = ProductQuantisation(codewords=16, block=4, refresh_every=3), updates(4)
        parameters, books = encoding.first(LAYOUT, PUBLIC, 1), []
        for number in range(1, 8):
            books.append((parameters.version, parameters.arrays["codebook.0"]))
            parameters = encoding.refresh(LAYOUT, parameters, summed(encoding, values, parameters), number + 1)
        assert [version for version, _ in books] == [1, 1, 1, 4, 4, 4, 7]
        assert books[0][1] is books[2][1]
        assert not np.array_equal(books[2][1], books[3][1])

    def test_one_client_more_moves_each_histogram_by_one(self) -> None:
        encoding = ProductQuantisation(codewords=16, block=4)
        group, indexed = encoding.group(LAYOUT, 5), encoding.indexed(LAYOUT)
        parameters, masked, seeds = encoding.first(LAYOUT, PUBLIC, 1), {}, {}
        for client, own in enumerate(updates(5)):
            seeds[client] = bytes([client + 1]) * 32
            vector = encoding.encode(LAYOUT, own, parameters, 5, rng())
            add_mask(vector, seeds[client], group, sign=1)
            masked[client] = assignments(group.pack(group.reduce(vector)), group, indexed)
        fewer = histograms({k: masked[k] for k in range(4)}, seeds, group, indexed)
        more = histograms(masked, seeds, group, indexed)
        for one, other in zip(fewer, more, strict=True):
            assert (one.sum(1) == 4).all()
            assert ((other - one).sum(1) == 1).all()
        again = read_histograms(write_histograms(more), group, indexed)
        assert all(np.array_equal(one, other) for one, other in zip(again, more, strict=True))

    def test_histograms_that_lose_a_client_are_refused(self) -> None:
        encoding, values = ProductQuantisation(codewords=16, block=4), updates(3)
        parameters, group, indexed = (
            encoding.first(LAYOUT, PUBLIC, 1),
            encoding.group(LAYOUT, 3),
            encoding.indexed(LAYOUT),
        )
        counts = [np.zeros((segment.count, 1 << segment.bits), np.uint32) for segment in group.segments[:indexed]]
        total = encoding.encode(LAYOUT, values[0], parameters, 3, rng())[indexed:]
        with pytest.raises(ProtocolError, match="count every client exactly once"):
            encoding.decode(LAYOUT, [*counts, *total], parameters, 3, 3)

    def test_codebooks_that_do_not_fit_are_refused(self) -> None:
        encoding, parameters = (
            ProductQuantisation(codewords=16, block=4),
            ProductQuantisation(codewords=8, block=4).first(LAYOUT, PUBLIC, 1),
        )
        with pytest.raises(ProtocolError, match="do not match"):
            encoding.encode(LAYOUT, updates(1)[0], parameters, 3, rng())
