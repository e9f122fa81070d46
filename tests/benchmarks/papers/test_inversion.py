"""A cell of the leakage claims: a real federation, then both attacks, whose control succeeds on undefended images."""

from pathlib import Path
from typing import Any

from prunella.benchmarks.papers import inversion

TINY: dict[str, Any] = {
    "dataset": "digits",
    "model": "cnn",
    "clients": 2,
    "rounds": 1,
    "local_steps": 1,
    "batch_size": 8,
}
TINY |= {"learning_rate": 0.1, "images": 1, "iterations": 100, "scheme": "random", "rate": 0.5}


def test_a_cell_scores_both_attacks_inside_the_schemes_mask_and_its_control_succeeds() -> None:
    found = inversion.leakage(TINY, 0, None)
    assert set(found) == {"gi", "sgi"} and 0.45 < found["sgi"]["kept"] < 0.6
    dense = inversion.leakage(inversion.control(TINY), 0, None)
    assert inversion.works(dense) and dense["sgi"]["kept"] == 1.0
    dense["gi"]["psnr"] = 19.9
    assert not inversion.works(dense)


def test_a_local_copy_is_used_where_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    assert inversion.place("mnist", tmp_path) == f"mnist:{tmp_path / 'mnist'}"
    assert inversion.place("femnist", tmp_path) == "femnist" and inversion.place("mnist", None) == "mnist"


def test_zhus_network_is_attacked_with_its_own_settings() -> None:
    strong, usual = (inversion.attack_settings("gi", model, 7) for model in ("lenet-zhu", "conv-2"))
    assert (strong.optimizer, strong.objective, usual.iterations, usual.mask_aware) == ("lbfgs", "euclidean", 7, False)
