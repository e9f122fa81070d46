"""Cells behind a chain: the control succeeds, a missing answer is a grey image, names of points are no cells."""

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.papers import defended
from prunella.benchmarks.papers.defended import DEFENDED
from prunella.core.errors import AttackError
from prunella.core.types import PrivateBatch, Reconstruction

IG = defended.inverting("cnn", "ig", 1, 1, 100)
TRUTH = PrivateBatch(torch.rand(3, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2]))


def test_the_control_rebuilds_and_a_defense_lowers_it() -> None:
    plain = defended.make(defended.behind(IG, "digits", "none"), 0, None)
    assert DEFENDED.works(plain) and plain["ig"]["rebuilt"] == plain["ig"]["answered"] == 1.0
    hidden = defended.make(defended.behind(IG, "digits", "dgp", {"dgp.bottom": 0.9}), 0, None)
    assert hidden["ig"]["psnr"] < plain["ig"]["psnr"]


def test_rob_rebuilds_a_batch_and_what_it_misses_is_scored_as_grey(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = defended.inverting("prunella.attacks.rob:cnn", "rob", 4, 4)
    plain = defended.make({**defended.behind(cell, "digits", "none"), "named": "planted"}, 0, None)["planted"]
    assert plain["psnr"] > PSNR_FLOOR and "psnr.3" in plain and "psnr.4" not in plain

    def silent(*arguments: object) -> Reconstruction:
        raise AttackError("nothing arrived")

    monkeypatch.setitem(ATTACKS, "rob", ATTACKS["rob"]._replace(reconstruct=silent))
    found = defended.make(defended.behind(cell, "digits", "dgp"), 0, None)["rob"]
    assert found["answered"] == found["rebuilt"] == 0.0 and 3 < found["psnr"] < 15
    with pytest.raises(AttackError):  # an attack that cannot look at the undefended update is no score
        defended.make(defended.behind(cell, "digits", "none"), 0, None)


def test_a_short_answer_is_filled_and_every_image_is_scored_against_its_own() -> None:
    answer, given = defended.completed(Reconstruction(TRUTH.x[[2, 0]], None, 0.0, 1), TRUTH)
    assert given == 2 and answer.x.shape == TRUTH.x.shape and bool((answer.x[2] == defended.GREY).all())
    psnr = [defended.scores(answer, TRUTH, TRUTH, number)["psnr"] for number in range(3)]
    assert psnr[0] > 90 and psnr[2] > 90 and psnr[1] < 15


def test_names_of_points_are_not_in_the_control() -> None:
    cell = {**defended.behind(IG, "digits", "dgp", {"dgp.top": 0.1}), "swept": "p", "value": 0.1}
    assert DEFENDED.control_of(cell) == defended.behind(IG, "digits", "none")


def test_a_federation_has_an_accuracy_and_its_settings_reach_the_defense() -> None:
    cell = defended.training("cnn", clients=2, rounds=2, local_steps=2)
    found = defended.make(defended.behind(cell, "digits", "dgp", {"dgp.feedback": False}), 0, None)
    assert 0 <= found["training"]["accuracy"] <= 1 and not DEFENDED.attacks(found)
    with pytest.raises(Exception, match="feedbak"):
        defended.make(defended.behind(cell, "digits", "dgp", {"dgp.feedbak": False}), 0, None)
