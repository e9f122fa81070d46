"""The measured lower bound on ε: against its formula, its limits and a mechanism whose ε is known."""

import math

import pytest
import torch
from scipy import stats

from prunella.attacks.score.membership import compare, told
from prunella.server.attest.bound import lower, measured_epsilon, upper


@pytest.mark.parametrize(("hits", "many"), [(0, 20), (1, 50), (37, 100), (100, 100)])
def test_the_ends_are_clopper_and_pearson_s(hits: int, many: int) -> None:
    found = stats.binomtest(hits, many).proportion_ci(0.9, method="exact")
    assert (lower(hits, many, 0.05), upper(hits, many, 0.05)) == pytest.approx((found.low, found.high))


def test_nobody_told_apart_is_nothing_and_nothing_resolved_is_unknown() -> None:
    chance = {"members": 500, "outsiders": 1000, "auc": 0.5, "strict": 0, "loose": 5}
    assert measured_epsilon([chance], 1e-5) == 0.0
    assert measured_epsilon([{**chance, "strict": None, "loose": None}], 1e-5) is None
    assert measured_epsilon([], 1e-5) is None


def test_more_scores_make_the_bound_of_one_of_them_no_larger() -> None:
    told_apart = {"members": 500, "outsiders": 1000, "auc": 0.9, "strict": 100, "loose": 300}
    chance = {**told_apart, "strict": 0, "loose": 5}
    alone, beside = measured_epsilon([told_apart], 1e-5), measured_epsilon([told_apart, chance], 1e-5)
    assert alone is not None and beside is not None and 0 < beside < alone


def test_a_mechanism_of_known_epsilon_is_never_said_to_be_worse_and_not_much_better() -> None:
    """Randomised response tells a member with e^ε times an outsider's chance: nothing tells more."""
    epsilon, over = 3.0, 0
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for seed in range(40):
        draw = torch.Generator().manual_seed(seed)
        members = (torch.rand(2000, generator=draw) < p).double() + 1e-3 * torch.rand(2000, generator=draw)
        outsiders = (torch.rand(2000, generator=draw) < 1 - p).double() + 1e-3 * torch.rand(2000, generator=draw)
        found = measured_epsilon([told(compare(members, outsiders))], 0.0)
        assert found is not None
        over += found > epsilon
    assert over <= 4  # 5 % of 40, and two more
