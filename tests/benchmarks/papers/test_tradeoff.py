"""A cell that weighs accuracy against leakage: its attacks meet the client's own state, and its control succeeds."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from prunella.benchmarks.papers import tradeoff
from prunella.core.trees import full_mask
from prunella.tasks.data import make_task

TINY: dict[str, Any] = {"dataset": "digits", "model": "cnn", "clients": 2, "rounds": 2, "local_steps": 2}
TINY |= {"batch_size": 8, "learning_rate": 0.1, "images": 1, "iterations": 120, "scheme": "snip", "rate": 0.3}
TINY |= {"defenses": "largest", "options": {"largest.rate": 0.4}, "arm": "largest 40 %"}


@pytest.fixture(scope="module")
def defended() -> tradeoff.AfterTraining:
    return tradeoff.federation(TINY, 0, None)


def test_the_state_is_what_the_client_kept_and_the_mask_the_schemes(defended: tradeoff.AfterTraining) -> None:
    share = tradeoff.withheld(defended.state, defended.saved.mask)["withheld"]
    assert 0.39 < share < 0.41 and defended.mib_up > 0 and 0 <= defended.accuracy <= 1
    task = make_task("cnn", "digits", None)
    own = tradeoff.examples_of(TINY, 0, 0, None)
    one = tradeoff.next_sender(TINY, task, defended, own)
    held = defended.state["largest"]["held"]
    assert all(torch.equal(one.state["largest"]["held"][name], held[name]) for name in held)
    assert one.received.mask.keys() == defended.saved.mask.keys()


def test_a_control_is_dense_undefended_and_rebuilt() -> None:
    settings = tradeoff.TRADEOFF.control_of({**TINY, "kappa": 50})
    assert (settings["scheme"], settings["defenses"], settings["options"]) == ("fedavg", "none", {})
    found = tradeoff.tradeoff(settings, 0, None)
    assert tradeoff.TRADEOFF.works(found) and "withheld" not in found["control"] and "kappa" not in settings


def test_nothing_is_withheld_without_a_defense_that_keeps_it() -> None:
    assert tradeoff.withheld({}, full_mask({"w": torch.zeros(3)})) == {}
    assert tradeoff.withheld({"x": {"held": {"w": torch.tensor([True, False])}}}, {"w": torch.ones(2).bool()}) == {
        "withheld": 0.5
    }


def row(nmi: float, psnr: float) -> Any:
    return SimpleNamespace(nmi=SimpleNamespace(mean=nmi, random=0.1), psnr=SimpleNamespace(mean=psnr))


def test_the_better_attack_is_the_higher_score_image_by_image_and_every_image_is_kept() -> None:
    found = tradeoff.kept({"sgi": [row(0.5, 20.0), row(0.2, 9.0)], "gi": [row(0.4, 21.0), row(0.6, 8.0)]})
    assert (found["nmi_better.0"], found["nmi_better.1"], found["nmi_better"]) == (0.5, 0.6, 0.55)
    assert (found["nmi"], found["psnr_better"], found["psnr_better.1"]) == (0.35, 15.0, 9.0)


def test_the_scores_of_every_image_are_kept_under_their_attack() -> None:
    def scored(nmi: float, psnr: float) -> Any:
        return SimpleNamespace(**vars(row(nmi, psnr)), mse=SimpleNamespace(mean=0.1))

    found = tradeoff.means({"sgi": [scored(0.5, 20.0), scored(0.2, 9.0)], "gi": [scored(0.4, 21.0), scored(0.6, 8.0)]})
    assert (found["nmi_gi.0"], found["nmi_gi.1"], found["nmi_gi"]) == (0.4, 0.6, 0.5)
    assert (found["psnr.1"], found["psnr_strongest.0"], found["psnr_strongest.1"]) == (9.0, 21.0, 9.0)


def test_a_long_federation_is_attacked_in_its_own_step_and_names_its_lambda_sha() -> None:
    options = {"priprune.lambda-pri": 15, "priprune.lambda-sha": 2e-6, "priprune.lambda-acc": 5}
    settings = {**TINY, "defenses": "priprune", "options": options, "arm": "here", "images": 2, "evaluate_every": 1}
    found = tradeoff.longer({**settings, "iterations": 2}, 0, None)["here"]
    parameters = 21_882  # of `cnn` on the digits
    assert found["sharing"] == pytest.approx(2e-6 * 6_603_710 / parameters) and 0 <= found["withheld"] <= 1
    assert found["nmi_better"] == pytest.approx((found["nmi_better.0"] + found["nmi_better.1"]) / 2)
    assert 0 <= found["accuracy_early"] <= 1 and found["nmi_better"] >= found["nmi"]


def test_the_attacked_step_is_the_cells_own(defended: tradeoff.AfterTraining) -> None:
    task, own = make_task("cnn", "digits", None), tradeoff.examples_of(TINY, 0, 0, None)
    rates = [tradeoff.next_sender({**TINY, **more}, task, defended, own).procedure.sgd for more in ({}, {"step": 0.05})]
    assert [one.learning_rate for one in rates] == [tradeoff.RATE, 0.05]
    assert tradeoff.sharing(TINY, defended) == {}
