"""Augmentation: what it does to images, rows and words, and that only a sample's own stream and place decide."""

import numpy as np
import pytest
import torch

from support.needs import GPU
from winnow.learn import augment
from winnow.learn.augment_images import cropped, distorted, shifted
from winnow.learn.sample_draws import SampleDraws, client_keys

IMAGES = torch.randn(6, 3, 12, 10, generator=torch.Generator().manual_seed(1))
ROWS = torch.randn(6, 7, generator=torch.Generator().manual_seed(2))
WORDS = torch.randint(1, 50, (6, 40), generator=torch.Generator().manual_seed(3))
KINDS = {"images": IMAGES, "rows": ROWS, "words": WORDS}
CHANGES = (augment.weak, augment.strong, augment.view)


def draws(samples, *clients):
    return SampleDraws.of_clients(client_keys(0, clients or (4,), "augment"), samples, range(1))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_changed_alike_whoever_else_is_in_the_batch(kind, change):
    x = KINDS[kind]
    alone = torch.cat([change(x[[0, 1]], draws(2, 4)), change(x[[2, 3]], draws(2, 9))])
    together = change(x[:4], draws(2, 4, 9))
    padded = change(x[[0, 1, 0, 2, 3, 2]], draws(3, 4, 9))
    torch.testing.assert_close(together, alone)
    torch.testing.assert_close(padded[[0, 1, 3, 4]], alone)
    assert together.dtype == x.dtype
    assert together.shape == x[:4].shape
    assert not torch.equal(together, x[:4])


def test_a_weak_image_is_the_image_moved_by_whole_pixels_and_reflected():
    found = augment.weak(IMAGES, draws(6))
    drawn = draws(6).uniform(3).numpy()
    for image, changed, (down, across, mirror) in zip(IMAGES.numpy(), found.numpy(), drawn, strict=True):
        reach = round(12 / 8), round(10 / 8)
        by = [int(np.floor(draw * (2 * most + 1))) - most for draw, most in zip((down, across), reach, strict=True)]
        wide = np.pad(image, ((0, 0), (2, 2), (1, 1)), mode="reflect")
        expected = wide[:, 2 + by[0] : 14 + by[0], 1 + by[1] : 11 + by[1]]
        np.testing.assert_array_equal(changed, expected[..., ::-1] if mirror < 0.5 else expected)
    grey = IMAGES[:, :1]
    assert torch.equal(shifted(grey, torch.full((6, 3), 0.5)), grey), "a digit is not mirrored"


def test_distortions_at_known_draws():
    """Of nine, the two with the largest draws are applied; a strength of 0.5 is none for those that go both ways."""
    x = IMAGES[:1, :1]

    def given(*chosen: int, strength: float) -> torch.Tensor:
        which = torch.zeros(9)
        which[list(chosen)] = 1
        nowhere = torch.full((3,), 0.5)
        return torch.cat([nowhere, which, torch.full((9,), strength), torch.tensor([0.0, 0.5, 0.5])])[None]

    torch.testing.assert_close(distorted(x, given(0, 3, strength=0.5)), x)
    quarter = distorted(x, given(5, 6, strength=0.5))  # half the contrast, then half the brightness
    soft = x.mean() + 0.5 * (x - x.mean())
    torch.testing.assert_close(quarter, soft.min() + 0.5 * (soft - soft.min()))
    many = x.repeat(1, 1, 8, 8) + torch.rand(96, 80, generator=torch.Generator().manual_seed(0))
    assert len(distorted(many, given(1, 7, strength=0.5)).mul(1e3).round().unique()) <= 2**6 < len(many.unique())
    cut = given(0, 3, strength=0.5)
    cut[0, -3] = 1.0
    changed = (distorted(x, cut) - x).abs() > 1e-4
    assert changed[0, 0, 3:9, 3:7].any()
    assert not changed[0, 0, :3].any()
    assert not changed[0, 0, :, :2].any()


def test_a_crop_of_everything_is_the_image_and_grey_has_no_colour():
    whole = torch.tensor([[1.0, 0.5, 0.5, 0.5, 0.9, 0.9, 0.5, 0.5, 0.5, 0.9]]).expand(6, -1)
    torch.testing.assert_close(cropped(IMAGES, whole), IMAGES)
    grey = whole.clone()
    grey[:, -1] = 0.0
    found = cropped(IMAGES, grey)
    torch.testing.assert_close(found, IMAGES.mean(1, keepdim=True).expand_as(found))


def test_noise_masks_and_dropped_words_come_as_often_as_they_should():
    rows = torch.ones(4000, 5)
    weak = augment.weak(rows, draws(4000)) - rows
    assert float(weak.std()) == pytest.approx(augment.WEAK_NOISE, rel=0.03)
    assert float((augment.strong(rows, draws(4000)) == 0).float().mean()) == pytest.approx(0.2, abs=0.015)
    words = torch.arange(1, 21).expand(2000, 20)
    assert float((augment.weak(words, draws(2000)) == 0).float().mean()) == pytest.approx(0.05, abs=0.005)
    strong = augment.strong(words, draws(2000))
    kept = strong != 0
    moved = kept & (strong != words)
    assert float(kept.float().mean()) == pytest.approx(0.85, abs=0.01)
    assert float(moved.sum() / kept.sum()) == pytest.approx(0.1, abs=0.01)
    assert (strong.sort().values[:, 0] >= 0).all()


def test_two_views_differ():
    for x in KINDS.values():
        same = draws(len(x))
        assert not torch.equal(augment.view(x, same), augment.view(x, same))


@GPU.unless(torch.cuda.is_available())
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", CHANGES)
def test_devices_agree(kind, change):
    keys, x = client_keys(0, (4,), "augment"), KINDS[kind]
    here, there = (
        change(x.to(device), SampleDraws.of_clients(keys.to(device), len(x), range(1))).cpu()
        for device in ("cpu", "cuda")
    )
    torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-4)
