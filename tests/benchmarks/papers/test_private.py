"""A private federation has an epsilon that more noise lowers, and Fed-LTP sends fewer bytes than DP-Fed."""

from typing import Any

from prunella.benchmarks.papers.private import METHODS, private_training, run_settings

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "partition": "iid", "fraction": 1.0}
TINY |= {"rounds": 1, "local_steps": 1, "batch_size": 8, "learning_rate": 0.1, "momentum": 0.5}
TINY |= {"clip": 1.0, "noise": 1.4, "delta": 1e-3}


def test_less_is_sent_under_a_ticket_and_epsilon_is_that_of_the_noise() -> None:
    dense = private_training({**TINY, "method": "dp-fed"}, 0, None)["iid"]
    ticket = private_training({**TINY, "method": "fed-ltp, one-shot"}, 0, None)["iid"]
    louder = private_training({**TINY, "method": "dp-fed", "noise": 2.8}, 0, None)["iid"]
    assert ticket["mib"] < 0.8 * dense["mib"] and ticket["epsilon"] == dense["epsilon"] > louder["epsilon"] > 0
    assert dense["zcdp"] > dense["epsilon"] and 0 <= dense["last"] <= dense["best"] <= 1


def test_clip_and_noise_go_to_the_methods_own_section() -> None:
    for method, chosen in METHODS.items():
        section = str(chosen["defenses"]).replace("-", "_")
        found = run_settings({**TINY, "method": method}, 0, None)
        assert found[f"{section}__noise_multiplier"] == 1.4 and found[f"{section}__clip"] == 1.0
