"""What the benchmark measures is an attack that works; no timing is asserted."""

import torch

from prunella.benchmarks.speed.attack import case, ours, psnr


def test_the_measured_attack_gets_nearer_with_every_iteration() -> None:
    given = case("cnn", (1, 8, 8), 2)
    few, many = (ours(given, 2, iterations) for iterations in (1, 60))
    assert many[0] > 0 and many[1].shape == given.truth.shape
    assert psnr(many[1], given.truth) > psnr(few[1], given.truth) + 3


def test_psnr_is_the_mean_over_images() -> None:
    truth = torch.zeros(2, 1, 2, 2)
    found = psnr(torch.stack([truth[0] + 0.1, truth[1] + 0.01]), truth)
    assert abs(found - 30) < 1e-4
