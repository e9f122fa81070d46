"""A cell of C6: one image comes back from its own gradient, and noise of the same size takes it away."""

from typing import Any

from prunella.benchmarks.papers import channel_batch

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 10, "images": 1, "iterations": 120}


def cell(defense: str, batch: int, **options: float) -> dict[str, float]:
    asked = {**TINY, "defense": defense, "batch": batch, "options": {f"{defense}.{k}": v for k, v in options.items()}}
    return channel_batch.rebuilt_mean(asked, 0, None)["ig"]


def test_the_control_is_one_undefended_image_and_it_is_rebuilt() -> None:
    asked = {**TINY, "defense": "gaussian", "batch": 8, "options": {"gaussian.deviation": 0.1}}
    control = channel_batch.BATCHED.control_of(asked)
    assert (control["defense"], control["options"], control["batch"]) == ("none", {}, 1)
    found = channel_batch.rebuilt_mean(control, 0, None)
    assert channel_batch.BATCHED.works(found)
    noisy = cell("gaussian", 1, deviation=0.1)
    assert noisy["mse"] > 10 * found["ig"]["mse"] and noisy["mse_flat"] == found["ig"]["mse_flat"]


def test_the_mean_of_many_images_is_flatter() -> None:
    assert cell("none", 32)["mse_flat"] != cell("none", 1)["mse_flat"]
