import json
import math

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from torch.nn.functional import avg_pool2d, interpolate, pad

from prunella.attacks.score.gallery import Gallery
from prunella.attacks.score.leakage import (
    AS_PRINTED_LEVELS,
    Leakage,
    discretise,
    label_accuracy,
    label_leakage,
    ncc,
    rdlv,
    score,
    ssim,
)
from prunella.attacks.score.level import level
from prunella.core.errors import AttackError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.tasks.examples import Examples


def images(count: int, side: int = 8, channels: int = 1, seed: int = 0) -> torch.Tensor:
    return torch.rand((count, channels, side, side), generator=torch.Generator().manual_seed(seed))


def scored(guess: torch.Tensor, truth: torch.Tensor, levels: int = 16) -> Leakage:
    labels = torch.arange(len(truth))
    return score(Reconstruction(guess, labels[: len(guess)], 0.0, 1), PrivateBatch(truth, labels), levels)


@pytest.mark.parametrize("levels", [16, AS_PRINTED_LEVELS])
def test_nmi_and_ami_are_scikit_learn_s(levels: int) -> None:
    truth = images(1)
    guess = (truth + 0.1 * images(1, seed=1)).clamp(0, 1)
    bytes_ = [np.round(image.numpy().ravel() * 255).astype(int) // (256 // levels) for image in (truth, guess)]
    result = scored(guess, truth, levels)
    assert result.nmi.mean == pytest.approx(normalized_mutual_info_score(*bytes_, average_method="arithmetic"))
    assert result.ami.mean == pytest.approx(adjusted_mutual_info_score(*bytes_, average_method="arithmetic"))


def test_psnr_and_mse_are_their_formulas_and_a_copy_is_perfect() -> None:
    truth = images(2)
    guess = truth.clone()
    guess[0] += 0.1
    result = scored(guess, truth)
    assert result.mse.mean == pytest.approx(0.005, rel=1e-4) and result.mse.worst == 0
    assert result.psnr.mean == pytest.approx((20 + 100) / 2, rel=1e-4) and result.psnr.worst == 100
    copy = scored(truth, truth)
    assert copy.nmi.mean == pytest.approx(1) and copy.ssim.mean == pytest.approx(1) and copy.iip == 1


@pytest.mark.parametrize("side, channels", [(3, 1), (8, 1), (15, 3), (16, 3), (32, 3)])
def test_ssim_fits_every_size(side: int, channels: int) -> None:
    truth = images(2, side, channels)
    noisy = (truth + 0.2 * images(2, side, channels, seed=1)).clamp(0, 1)
    result = scored(noisy, truth)
    assert 0.3 < result.ssim.mean < 1 and result.ssim.mean > result.ssim.random


def test_a_permuted_batch_is_put_in_order() -> None:
    truth = images(5)
    order = torch.tensor([3, 0, 4, 1, 2])
    result = scored(truth[order], truth)
    assert result.mse.mean == 0 and result.iip == 1
    assert [order[g].item() for _, g in result.assignment] == [t for t, _ in result.assignment] == list(range(5))


def test_fewer_or_more_reconstructions_than_images() -> None:
    truth = images(5)
    fewer, more = (
        scored(truth[[4, 1]], truth),
        score(Reconstruction(truth, None, 0.0, 1), PrivateBatch(truth[:2], torch.arange(2))),
    )
    assert fewer.assignment == ((1, 1), (4, 0)) and fewer.images == 2 and fewer.mse.mean == 0
    assert more.assignment == ((0, 0), (1, 1)) and more.images == 2 and more.label_accuracy is None


def test_worst_is_the_most_leaking_and_baselines_leak_less() -> None:
    truth = images(3, 16)
    guess = images(3, 16, seed=1)
    guess[1] = truth[1]
    result = scored(guess, truth)
    assert (
        result.psnr.worst > result.psnr.mean
        and result.mse.worst < result.mse.mean
        and result.nmi.worst > result.nmi.mean
    )
    copy = scored(truth, truth)
    for stat in (copy.psnr, copy.nmi, copy.ami, copy.ssim):
        assert max(stat.random, stat.other) < stat.mean
    assert min(copy.mse.random, copy.mse.other) > copy.mse.mean


def test_iip_of_a_single_image_is_against_a_flat_one() -> None:
    truth = images(1)
    assert scored(truth, truth).iip == 1
    assert scored(truth.mean().expand_as(truth), truth).iip == 0


def test_labels_count_with_multiplicity() -> None:
    truth = PrivateBatch(images(4), torch.tensor([1, 1, 2, 3]))
    assert score(Reconstruction(truth.x, torch.tensor([1, 2, 2, 0]), 0.0, 1), truth).label_accuracy == 0.5


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_is_a_failed_evaluation(bad: float) -> None:
    guess = images(2)
    guess[1, 0, 0, 0] = bad
    with pytest.raises(AttackError, match="not finite"):
        scored(guess, images(2))


def test_shapes_that_do_not_fit_are_named() -> None:
    with pytest.raises(AttackError, match=r"\(2, 1, 8, 8\).*\(2, 3, 8, 8\)"):
        scored(images(2), images(2, channels=3))
    with pytest.raises(AttackError, match="levels"):
        scored(images(1), images(1), levels=1)


def test_flat_images_score_without_nan_and_inputs_are_left_alone() -> None:
    truth, guess = torch.zeros(2, 1, 8, 8), torch.full((2, 1, 8, 8), 0.5)
    result = scored(guess, truth)
    assert float(guess.mean()) == 0.5 and float(truth.abs().max()) == 0
    assert result.mse.mean == 0.25 and math.isfinite(result.ssim.mean)


def test_to_dict_is_plain_json_without_the_assignment() -> None:
    plain = json.loads(json.dumps(scored(images(2), images(2)).to_dict()))
    scores, rest = {"psnr", "nmi", "ami", "ssim", "mse", "ncc"}, {"label_accuracy", "label_chance", "images"}
    assert set(plain) == scores | rest | {"recognition", "iip", "iip_random", "iip_other"}
    assert set(plain["psnr"]) == {"mean", "worst", "random", "other", "blind"}
    assert plain["recognition"] is plain["label_chance"] is plain["psnr"]["blind"] is None


def test_bins_are_equal_and_cover_eight_bits() -> None:
    every = torch.arange(256).float() / 255
    every = every.reshape(1, 1, 16, 16)
    assert np.bincount(discretise(every, 16)[0]).tolist() == [16] * 16
    assert discretise(every, 256)[0].tolist() == list(range(256))


def test_a_prior_image_is_a_blind_guess_and_rdlv_is_measured_against_it() -> None:
    truth = images(3)
    prior, labels = truth.mean(dim=0), torch.zeros(3).long()
    found = score(Reconstruction(truth * 0.9, None, 0.0, 1), PrivateBatch(truth, labels), prior=prior)
    plain = scored(truth * 0.9, truth)
    assert found.mse.blind == pytest.approx(float((truth - prior).square().flatten(1).mean(1).min()))
    assert found.mse.other == plain.mse.other and found.ssim.random == plain.ssim.random and plain.mse.blind is None
    own = rdlv(found.ssim)
    assert found.ssim.blind is not None
    assert own == pytest.approx(found.ssim.worst / found.ssim.blind - 1) and own > 0
    nothing = score(Reconstruction(prior.expand_as(truth), None, 0.0, 1), PrivateBatch(truth, labels), prior=prior)
    assert rdlv(nothing.ssim) == pytest.approx(0)


@pytest.mark.parametrize("side, channels", [(3, 1), (8, 1), (15, 3), (16, 3), (28, 1), (32, 3)])
def test_ssim_is_torchmetrics_s(side: int, channels: int) -> None:
    from torchmetrics.functional.image import structural_similarity_index_measure

    truth = torch.rand(4, channels, side, side + 2, generator=torch.Generator().manual_seed(0))
    guess = (truth * 0.8 + 0.2 * truth.flip(0)).clamp(0, 1)
    small = {"gaussian_kernel": False, "kernel_size": min(7, side - 1 + side % 2)} if side < 16 else {}
    theirs = structural_similarity_index_measure(guess, truth, data_range=1.0, reduction="none", **small)
    torch.testing.assert_close(torch.tensor(ssim(truth, guess)), theirs, atol=1e-5, rtol=0)


def test_ncc_is_numpy_s_correlation_and_knows_a_pale_copy_and_a_negative() -> None:
    truth, guess = images(3, channels=2), images(3, channels=2, seed=1)
    theirs = [np.corrcoef(t.numpy().ravel(), g.numpy().ravel())[0, 1] for t, g in zip(truth, guess, strict=True)]
    assert ncc(truth, guess) == pytest.approx(theirs, abs=1e-6)
    assert ncc(truth, torch.full_like(truth, 0.5)) == [0, 0, 0]
    for copy in (0.05 * truth + 0.5, 1 - truth, 0.6 - 0.1 * truth):
        found = scored(copy.roll(1, 0), truth)
        assert found.ncc.mean == pytest.approx(1, abs=1e-4) and found.psnr.mean < 20
    assert scored(guess, truth).ncc.mean < 0.5


def digit_set(first: int, count: int) -> PrivateBatch:
    data = load_digits()
    x, y = data.images[first : first + count], data.target[first : first + count]
    return PrivateBatch(torch.tensor(x, dtype=torch.float32)[:, None] / 16, torch.tensor(y))


OTHERS = digit_set(600, 1197)
GALLERY = Examples(OTHERS.x, OTHERS.y)


@pytest.mark.parametrize("count", [16, 128])
def test_the_null_of_other_people_s_digits_is_about_what_they_score(count: int) -> None:
    """128 digits of others score 22 dB and SSIM 0.97 against 128 digits; so do they against any other 128."""
    truth, foreign = digit_set(0, count), digit_set(300, count)
    found = score(Reconstruction(foreign.x, foreign.y, 0.0, 1), truth, gallery=GALLERY)
    assert found.psnr.other - 4 < found.psnr.worst <= found.psnr.other + 1
    assert abs(found.ssim.worst - found.ssim.other) < 0.08 and abs(found.ncc.worst - found.ncc.other) < 0.08
    assert count == 16 or (found.psnr.worst > 19 and found.ssim.worst > 0.93)
    neighbours = score(Reconstruction(foreign.x, foreign.y, 0.0, 1), truth)
    assert found.psnr.other > neighbours.psnr.other + 4
    copy = score(Reconstruction(truth.x, truth.y, 0.0, 1), truth, gallery=GALLERY)
    assert copy.psnr.worst == 100 and copy.psnr.other < 25 and copy.recognition is not None
    assert copy.recognition.hits == count


def test_the_null_is_the_loop_over_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """All pairs of all draws at once give the best of the draws one by one."""
    truth, foreign = digit_set(0, 4), digit_set(300, 4)
    drawn: list[torch.Tensor] = []
    draw = Gallery._draw

    def noted(self: Gallery, generator: torch.Generator) -> torch.Tensor:
        chosen = draw(self, generator)
        drawn.append(self.x[chosen])
        assert self.y[chosen].sort().values.equal(truth.y.sort().values) and len(chosen.unique()) == 4
        return chosen

    monkeypatch.setattr(Gallery, "_draw", noted)
    found = score(Reconstruction(foreign.x, foreign.y, 0.0, 1), truth, gallery=GALLERY)
    single = [score(Reconstruction(foreign.x, None, 0.0, 1), PrivateBatch(x, truth.y)) for x in drawn[:32]]
    assert len(drawn) == 64, "then those of IIP"
    for metric in ("psnr", "ssim", "nmi", "ncc"):
        best = max(getattr(each, metric).worst for each in single)
        assert getattr(found, metric).other == pytest.approx(best, abs=1e-6), metric
    assert found.mse.other == pytest.approx(min(each.mse.worst for each in single), abs=1e-8)


def test_blind_is_the_mean_of_the_class() -> None:
    truth = digit_set(0, 1)
    found = score(Reconstruction(truth.x * 0, None, 0.0, 1), truth, gallery=GALLERY)
    mean = score(Reconstruction(OTHERS.x[OTHERS.y == truth.y].mean(0)[None], None, 0.0, 1), truth)
    assert found.psnr.blind == pytest.approx(mean.psnr.worst, abs=1e-4)
    assert found.ncc.blind == pytest.approx(mean.ncc.worst, abs=1e-6)


def test_label_chance_is_that_of_guessing_as_the_gallery_is_labelled() -> None:
    truth = digit_set(0, 1)
    found = score(Reconstruction(truth.x, truth.y, 0.0, 1), truth, gallery=GALLERY)
    assert found.label_accuracy == 1 and found.label_chance == pytest.approx(0.1, abs=0.06)
    one = Examples(OTHERS.x, torch.full_like(OTHERS.y, int(truth.y)))
    assert score(Reconstruction(truth.x, truth.y, 0.0, 1), truth, gallery=one).label_chance == 1
    assert score(Reconstruction(truth.x, None, 0.0, 1), truth, gallery=GALLERY).label_chance is None


def test_labels_beside_a_guess() -> None:
    """A batch of one class: a guess of 8 labels of 10 classes names 0.8 of them on average; a class more is a tell."""
    truth = torch.full((8,), 3)
    right, wrong = label_leakage(truth, truth, 10), label_leakage(torch.zeros(8).long(), truth, 10)
    assert right.accuracy == 1 and right.chance == pytest.approx(0.1, abs=0.01) and right.as_good == 0 and right.told
    assert wrong.accuracy == 0 and wrong.as_good == 1 and not wrong.told
    one = label_leakage(torch.tensor([1]), torch.tensor([1]), 10)
    assert one.as_good == pytest.approx(0.1, abs=0.03) and not one.told


def test_a_label_costs_no_memory_by_its_size() -> None:
    """4e8 took 7 GB, and this one more than there is."""
    assert label_accuracy(torch.tensor([1, 1, 2]), torch.tensor([1, 2**62, -5])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(5))
def test_label_accuracy_is_the_naive_count(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    truth, guess = (torch.randint(6, (n,), generator=draw) for n in (7, 9))
    left = truth.tolist()
    for label in guess.tolist():
        if label in left:
            left.remove(label)
    assert label_accuracy(truth, guess) == (len(truth) - len(left)) / len(guess)


def large(rows: list[int]) -> torch.Tensor:
    """Digits at 24 pixels a side with a black margin of 4."""
    x = torch.tensor(load_digits().images[rows], dtype=torch.float32)[:, None] / 16
    return pad(interpolate(x, scale_factor=2, mode="bilinear"), (4, 4, 4, 4))


def test_another_crop_of_the_same_picture_is_no_other_image() -> None:
    picture, foreign = large([3]), large([5])
    crops = torch.cat([picture.roll((1, -1), (2, 3)), picture.roll((-1, 1), (2, 3))])
    noise = 0.11 * torch.randn(crops.shape, generator=torch.Generator().manual_seed(0))
    blurred = avg_pool2d(crops, 3, 1, 1)
    for guess in ((crops + noise).clamp(0, 1), blurred):
        found = scored(guess, crops).to_dict()
        assert found["psnr"]["worst"] > 18 and found["psnr"]["other"] is None and level({"scores": found}) == "rebuilt"
    assert level({"scores": scored(foreign.expand_as(crops), crops).to_dict()}) != "rebuilt"
    side, discs = torch.arange(32.0), list[torch.Tensor]()
    for y, x in ((15, 15), (17, 17), (15, 17), (17, 15), (16, 16)):
        away = ((side[:, None] - y) ** 2 + (side - x) ** 2).sqrt()
        discs.append(0.8 * torch.sigmoid(8 - away)[None])
    shared = scored(discs[4].expand(4, 1, 32, 32), torch.stack(discs[:4])).to_dict()
    assert level({"scores": shared}) == "baseline", "what all of them share needs no update"
    two = torch.cat([picture, foreign])
    beside = scored((two + noise).clamp(0, 1), two).to_dict()
    assert beside["psnr"]["other"] is not None and beside["psnr"]["worst"] > beside["psnr"]["other"]
