"""A cell of C3: noise of a channel keeps the image from the attack, which rebuilds it without one."""

from typing import Any

from benchmarks.claims import channel_inversion

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 10, "images": 1, "iterations": 120}


def test_a_narrow_channel_hides_what_the_control_rebuilds() -> None:
    clear = channel_inversion.rebuilt(channel_inversion.control({**TINY, "channel": "natural", "kappa": 5}), 0, None)
    assert channel_inversion.works(clear) and clear["ig"]["noise"] == 0
    noisy = channel_inversion.rebuilt({**TINY, "channel": "natural", "kappa": 5}, 0, None)
    assert noisy["ig"]["mse"] > 10 * clear["ig"]["mse"] and noisy["ig"]["noise"] > 0
    assert not channel_inversion.works(noisy)
