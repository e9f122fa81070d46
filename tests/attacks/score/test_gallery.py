"""Other people's images: which are left out, and that recognition without a leak is chance."""

import pytest
import torch
from torch import Tensor

from prunella.attacks.score.gallery import LEAST, LOOKALIKES, Gallery
from prunella.attacks.score.leakage import score
from prunella.attacks.score.level import level, recognised
from prunella.core.errors import AttackError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.examples import Examples


def images(count: int, seed: int = 0, side: int = 6) -> Tensor:
    return torch.rand(count, 1, side, side, generator=torch.Generator().manual_seed(seed))


def labelled(x: Tensor, classes: int = 2) -> Examples:
    return Examples(x, torch.arange(len(x)) % classes)


OTHERS = labelled(images(40, seed=2))


def batch(x: Tensor, classes: int = 2) -> PrivateBatch:
    return PrivateBatch(x, torch.arange(len(x)) % classes)


def test_a_twin_of_the_truth_does_not_hide_the_attacker_s_success() -> None:
    truth, others = images(1), images(200, seed=1)
    twins = torch.cat([truth, truth + 0.02, 0.5 * truth, (truth + 0.01 * images(1, seed=2)).clamp(0, 1)])
    gallery = Examples(torch.cat([others, twins]), torch.zeros(204, dtype=torch.int64))
    near = (0.8 * truth + 0.2 * images(1, seed=3)).clamp(0, 1)  # 19 dB: itself no twin of the twins
    found = score(Reconstruction(near, None, 0.0, 1), batch(truth), gallery=gallery)
    assert found.psnr.other < found.psnr.worst - 6 and found.recognition is not None and found.recognition.hits == 1
    assert level({"scores": found.to_dict()}) == "rebuilt"


def test_a_rebuilt_image_of_the_gallery_is_no_chance_likeness() -> None:
    """Else a batch of which one image is rebuilt beside another client's would read as chance."""
    truth, others = images(2), images(100, seed=1)
    found = score(
        Reconstruction(torch.stack([truth[0], others[0]]), None, 0.0, 1), batch(truth), gallery=labelled(others)
    )
    assert found.psnr.worst == 100 and found.psnr.other < 15 and level({"scores": found.to_dict()}) == "rebuilt"


@pytest.mark.parametrize("left", [0, LEAST - 1, LEAST])
def test_a_gallery_of_twins_or_of_few_is_none(left: int) -> None:
    truth = images(1)
    gallery = labelled(torch.cat([truth, images(left, seed=1)]))
    found = score(Reconstruction(images(1, seed=5), None, 0.0, 1), batch(truth), gallery=gallery)
    assert (found.recognition is None) == (found.psnr.other is None) == (left < LEAST)
    assert level({"scores": found.to_dict()}) == ("unknown" if left < LEAST else "baseline")


def test_who_knows_a_class_that_the_gallery_lacks_is_not_compared_with_the_others() -> None:
    labels = torch.tensor([7])
    alone = score(Reconstruction(images(1, seed=1), None, 0.0, 1), PrivateBatch(images(1), labels), gallery=OTHERS)
    assert alone.recognition is None and alone.psnr.other is None and alone.psnr.blind is None
    most = PrivateBatch(images(3), torch.tensor([7, 0, 0]))
    found = score(Reconstruction(images(3, seed=1), None, 0.0, 1), most, gallery=OTHERS)
    assert found.recognition is not None and found.recognition.images == 2, "of two classes there are some"


def test_a_large_gallery_is_used_in_part_and_keeps_the_classes_of_the_truth() -> None:
    labels = torch.arange(3000) % 30
    truth = PrivateBatch(images(2), torch.tensor([4, 5]))
    used = Gallery(Examples(images(3000, seed=1), labels), truth, images(2, seed=2))
    assert len(used) == 1024 and int(torch.isin(used.y, truth.y).sum()) == 200
    assert len(used.y.unique()) == 30


def test_the_inputs_must_fit() -> None:
    with pytest.raises(AttackError, match="gallery"):
        score(Reconstruction(images(1), None, 0.0, 1), batch(images(1)), gallery=labelled(images(3, side=5)))
    bad = images(3)
    bad[1, 0, 0, 0] = float("nan")
    with pytest.raises(AttackError, match="not finite"):
        score(Reconstruction(images(1), None, 0.0, 1), batch(images(1)), gallery=labelled(bad))


@pytest.mark.parametrize(("count", "shown", "trials"), [(1, 1, 300), (4, 4, 300), (4, 32, 100)])
def test_without_a_leak_an_original_is_recognised_as_often_as_chance_has_it(
    count: int, shown: int, trials: int
) -> None:
    """However many images the attacker shows: each original and each look-alike is held against all of them."""
    hits, told, chance = 0, 0, 1 / 31
    for seed in range(trials):
        pool = images(count + shown + 60, seed)
        truth, guess, others = pool[:count], pool[count : count + shown], pool[count + shown :]
        found = Gallery(labelled(others), batch(truth), guess).recognition()
        assert found.chance == pytest.approx(chance) or found.low > found.chance == pytest.approx(2 * chance)
        hits += found.hits
        told += recognised({"scores": {"recognition": vars(found)}})
    expected = trials * count * chance
    assert abs(hits - expected) < 4 * expected**0.5
    assert told <= trials * 0.05 + 4 * (trials * 0.05) ** 0.5


def test_recognition_is_the_share_of_originals_nearest_to_what_was_rebuilt() -> None:
    truth, others = images(8), labelled(images(400, seed=1))
    noisy = (truth + 0.3 * images(8, seed=2)).clamp(0, 1)
    found = Gallery(others, batch(truth), 1 - noisy).recognition()
    assert (found.hits, found.images, found.gallery) == (8, 8, LOOKALIKES)
    assert found.chance == pytest.approx(0.01) and found.low == pytest.approx(0.05 ** (1 / 8))  # all of 8: alpha^(1/n)
    flat = Gallery(others, batch(truth), torch.full_like(truth, 0.5)).recognition()
    assert flat.hits == 0 and flat.low == 0


def test_an_image_used_in_several_steps_is_one_trial_and_one_of_the_truth() -> None:
    x, others, guess = images(4), labelled(images(60, seed=1)), images(32, seed=2)
    once, often = (Gallery(others, batch(truth), guess) for truth in (x, x.repeat(8, 1, 1, 1)))
    assert often.recognition() == once.recognition() and once.recognition().images == 4
    assert len(often._draw(often.generator)) == len(once._draw(once.generator)) == 4


def test_a_picture_that_is_moved_is_told_from_its_look_alikes_at_twice_the_chance() -> None:
    truth, others = images(4, side=12), labelled(images(400, seed=1, side=12))
    moved = truth.roll((4, -3), dims=(2, 3)).flip(3)
    plain, found = (Gallery(others, batch(truth), guess).recognition() for guess in (truth, moved))
    assert plain.hits == found.hits == 4 and plain.chance == pytest.approx(0.01)
    assert found.chance == pytest.approx(0.02) and found.low > found.chance
