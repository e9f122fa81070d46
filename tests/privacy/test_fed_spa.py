"""Fed-SPA: one random mask a round, clipping inside it, and nothing outside."""

import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import density, l2
from prunella.privacy.dp_sgd import DpSgd, dp_sgd
from prunella.privacy.fed_spa import FedSpa, draw_mask, fed_spa
from tests.privacy.steps import make, step_of


def test_one_mask_a_round_and_another_in_the_next() -> None:
    net, params, x, y = make()
    defense, g = fed_spa(FedSpa(keep=0.3)), rehearsal(0, purpose="test")
    state, masks = defense.init(params), []
    for number in (0, 1, 2, 0):
        made, state = defense.apply(params, step_of(net, params, x, y, None, number), state, g)
        masks.append(state["drawn"])
        assert all(bool(made[k][state["drawn"][k]].all()) and not bool(made[k][~state["drawn"][k]].any()) for k in made)
    same = [all(torch.equal(masks[0][k], m[k]) for k in params) for m in masks]
    assert same == [True, True, True, False]


def test_the_mask_has_its_share_and_is_uniform() -> None:
    like = {"w": torch.zeros(100)}
    g = rehearsal(0, purpose="test")
    hits = sum(draw_mask(like, 0.25, g)["w"].double() for _ in range(800))
    assert density(draw_mask(like, 0.25, g)) == 0.25
    assert float((hits - 200).abs().max()) < 5 * (800 * 0.25 * 0.75) ** 0.5


def test_clipping_is_inside_the_mask_and_a_full_share_is_dp_sgd() -> None:
    net, params, x, y = make(batch=1)
    quiet = fed_spa(FedSpa(1e-3, 1e-9, keep=0.2))
    made, _ = quiet.apply(params, step_of(net, params, x, y), quiet.init(params), rehearsal(0, purpose="test"))
    assert float(l2(made)) == pytest.approx(1e-3, rel=1e-3)
    every, g = fed_spa(FedSpa(0.5, 1e-9, keep=1.0)), rehearsal(0, purpose="test")
    ours, _ = every.apply(params, step_of(net, params, x, y), every.init(params), g)
    theirs, _ = dp_sgd(DpSgd(0.5, 1e-9)).apply(params, step_of(net, params, x, y), {}, rehearsal(0, purpose="test"))
    assert all(torch.allclose(ours[k], theirs[k], atol=1e-7) for k in params)


@pytest.mark.parametrize("keep", [0.0, 1.5])
def test_a_wrong_share_is_refused(keep: float) -> None:
    with pytest.raises(ConfigError):
        FedSpa(keep=keep)
