"""What the benchmark measures is an attack that works; no timing is asserted."""

from prunella.attacks.score.leakage import psnr
from prunella.benchmarks.speed.attack import case, ours


def test_the_measured_attack_gets_nearer_with_every_iteration() -> None:
    given = case("cnn", (1, 8, 8), 2)
    few, many = (ours(given, 1, 2, iterations) for iterations in (1, 60))
    assert many[0] > 0 and many[1].shape == given.truth[1:].shape
    assert sum(psnr(given.truth[1:], many[1])) > sum(psnr(given.truth[1:], few[1])) + 3
