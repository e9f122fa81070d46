"""Mask hiding: no zero tells, nor do magnitudes; nothing that is sent changes, nothing outside the base is filled."""

import pytest
import torch

from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree
from prunella.privacy.chain import build_chain, release, start
from prunella.privacy.defense import Outgoing
from prunella.privacy.mask_hiding import MaskHiding, filled

LIKE = {"w": torch.randn(40, 50, generator=torch.Generator().manual_seed(0)), "b": torch.tensor(1.0)}
BASE = {"w": torch.rand(40, 50, generator=torch.Generator().manual_seed(1)) > 0.3, "b": torch.tensor(True)}


def sent(names: list[str]) -> tuple[Outgoing, dict[str, dict[str, Tree]]]:
    chain = build_chain(names, {})
    update = {name: torch.where(BASE[name], t, torch.zeros(())) for name, t in LIKE.items()}
    state = start(chain, torch.rand(3, 1, 2, 2), LIKE, {}, rehearsal(0, purpose="fit"))
    out, after, _ = release(chain, Outgoing(update, BASE, BASE, update), state, rehearsal(0, purpose="x"))
    return out, after


def support(update: Tree) -> Mask:
    return {name: t != 0 for name, t in update.items()}


@pytest.mark.parametrize("inner", ["dgp", "top-k", "largest", "priprune", "random"])
def test_the_support_is_the_base_mask_and_what_was_sent_is_still_sent(inner: str) -> None:
    plain, state = sent([inner])
    hidden, after = sent([inner, "mask-hiding"])
    if inner != "priprune":  # its first round withholds everything there is at alpha = 1/2
        assert torch.equal(support(hidden.update)["w"], BASE["w"])
        assert not torch.equal(support(plain.update)["w"], BASE["w"])  # the control: without it, the support tells
    kept = plain.shared["w"]
    assert torch.equal(hidden.update["w"][kept], plain.update["w"][kept])
    for tree in state[inner]:
        assert all(torch.equal(state[inner][tree][k], after[inner][tree][k]) for k in LIKE)


def test_magnitudes_of_the_filling_come_from_what_is_sent_and_signs_are_even() -> None:
    plain, _ = sent(["dgp"])
    hidden, _ = sent(["dgp", "mask-hiding"])
    fill = hidden.update["w"][BASE["w"] & ~plain.shared["w"]]
    assert set(fill.abs().tolist()) <= set(plain.update["w"][plain.shared["w"]].abs().tolist())
    n = fill.numel()
    assert n > 900 and abs(int((fill > 0).sum()) - n / 2) < 5 * (n / 4) ** 0.5


def test_alone_it_changes_nothing_and_an_empty_layer_stays_empty() -> None:
    out, _ = sent(["mask-hiding"])
    assert all(torch.equal(out.update[k], torch.where(BASE[k], LIKE[k], torch.zeros(()))) for k in LIKE)
    dgp, _ = sent(["dgp", "mask-hiding"])
    assert float(dgp.update["b"]) == 0.0 and not bool(dgp.shared["b"])  # its own top: nothing of it is sent
    nothing = torch.zeros(3, dtype=torch.bool)
    assert torch.equal(filled(torch.zeros(3), nothing, ~nothing, 1.0, rehearsal(0, purpose="test")), torch.zeros(3))


def test_it_stands_last_and_its_scale_is_checked() -> None:
    with pytest.raises(ConfigError, match="last"):
        build_chain(["mask-hiding", "dgp"], {})
    for scale in (0.0, float("inf")):
        with pytest.raises(ConfigError):
            MaskHiding(scale)
