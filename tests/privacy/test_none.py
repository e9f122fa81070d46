"""``none`` changes nothing."""

import torch

from prunella.core.randomness import rehearsal
from prunella.core.trees import full_mask
from prunella.privacy.defense import Outgoing
from prunella.privacy.none import NoDefense, none


def test_everything_inside_the_base_mask_leaves() -> None:
    update = {"w": torch.tensor([1.0, 0.0, -2.0])}
    mask = {"w": torch.tensor([True, False, True])}
    out, state = none(NoDefense()).apply(Outgoing(update, mask, mask, update), {}, rehearsal(0, purpose="test"))
    assert torch.equal(out.update["w"], update["w"]) and torch.equal(out.shared["w"], mask["w"]) and state == {}


def test_training_starts_from_what_came_and_learns_nothing_from_gradients() -> None:
    defense = none(NoDefense())
    received = {"w": torch.randn(4)}
    start, state = defense.compose(received, {}, rehearsal(0, purpose="test"))
    assert torch.equal(start["w"], received["w"])
    after = defense.observe(received, received, full_mask(received), state, rehearsal(0, purpose="test"))
    assert after == {} == defense.init(received)
