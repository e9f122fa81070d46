"""The guard's noise: its size by level, nothing outside what is shared, the strongest unless somebody looked."""

import pytest
import torch

from prunella.core.errors import ConfigError, DefenseError
from prunella.core.randomness import rehearsal
from prunella.core.trees import full_mask
from prunella.privacy.chain import build_chain, release, start
from prunella.privacy.defense import Outgoing
from prunella.privacy.leakage_guard import NAME, LeakageGuard, deviation, strengthen, unguarded

LIKE = {"w": torch.randn(200, 300, generator=torch.Generator().manual_seed(0)), "b": torch.tensor(2.0)}
FULL = full_mask(LIKE)
HALF = {"w": torch.rand(200, 300, generator=torch.Generator().manual_seed(1)) > 0.5, "b": torch.tensor(False)}
SENT = Outgoing({n: t * HALF[n] for n, t in LIKE.items()}, HALF, FULL, LIKE)


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_the_noise_has_the_size_of_its_level_and_stays_inside_what_is_shared(level: int) -> None:
    settings = LeakageGuard(noise=0.3)
    out = strengthen(SENT, level, settings, rehearsal(0, purpose="x"))
    noise = (out.update["w"] - SENT.update["w"])[HALF["w"]].double()
    rms = float(SENT.update["w"][HALF["w"]].double().square().mean().sqrt())
    wanted = 0.3 * 4 ** (level - 1) * rms
    assert float(noise.std()) == pytest.approx(wanted, rel=0.02) and abs(float(noise.mean())) < 0.03 * wanted
    assert not bool(out.update["w"][~HALF["w"]].any()) and not bool(out.update["b"].any())


def test_level_zero_is_the_update_and_beyond_the_last_there_is_none() -> None:
    out = strengthen(SENT, 0, LeakageGuard(), rehearsal(0, purpose="test"))
    assert all(torch.equal(out.update[n], SENT.update[n]) for n in LIKE)
    assert deviation(torch.zeros(0), 3, LeakageGuard()) == 0
    for level in (-1, 5):
        with pytest.raises(DefenseError, match="level"):
            strengthen(SENT, level, LeakageGuard(), rehearsal(0, purpose="test"))


def test_a_chain_that_nobody_guards_adds_the_most_and_one_that_is_guarded_adds_it_once() -> None:
    chain = build_chain(["dgp", NAME], {})
    state = start(chain, torch.zeros(1, 1, 2, 2), LIKE, {}, rehearsal(0, purpose="fit"))
    whole = Outgoing(LIKE, FULL, FULL, LIKE)
    blind, _, _ = release(chain, whole, state, rehearsal(0, purpose="x"))
    looked, after, _ = release(chain, whole, {**state, NAME: unguarded(state[NAME])}, rehearsal(0, purpose="x"))
    plain, _, _ = release(build_chain(["dgp"], {}), whole, {"dgp": state["dgp"]}, rehearsal(0, purpose="x"))
    assert torch.equal(looked.update["w"], plain.update["w"])
    wanted = strengthen(plain, 4, LeakageGuard(), rehearsal(0, purpose="x"))
    assert torch.equal(blind.update["w"], wanted.update["w"])
    assert int(after[NAME]["level"]["level"]) == 4


@pytest.mark.parametrize(
    ("names", "words"),
    [([NAME, "dgp"], "last"), (["mask-hiding", "dgp"], "last"), (["dp-sgd", NAME], "does not cover")],
)
def test_its_place_in_a_chain(names: list[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_chain(names, {})
    assert build_chain(["dgp", "mask-hiding", NAME], {}).guard.levels == LeakageGuard().levels


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ({"psnr": 0.0}, {"ssim": 1.5}, {"noise": float("inf")}):
        with pytest.raises(ConfigError, match=NAME):
            LeakageGuard(**wrong)
