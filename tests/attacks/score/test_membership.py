import pytest
import torch
from scipy import stats

from prunella.attacks.score.membership import LEAST, STEP, auc_limits, compare, found, limits, resolves, told
from prunella.core.errors import AttackError


def normal(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed)) + shift


def test_members_that_all_score_higher_are_found_with_every_figure() -> None:
    apart = compare(normal(150, 0, 20.0), normal(1000, 1))
    assert (apart.strict, apart.loose, apart.auc) == (150, 150, 1.0) and max(apart.p) < 1e-9 and found([apart])
    assert told(apart) == {"members": 150, "outsiders": 1000, "auc": 1.0, "strict": 150, "loose": 150}


@pytest.mark.parametrize(("members", "outsiders"), [(150, 250), (40, 1200), (400, 30)])
def test_without_membership_a_finding_is_rarer_than_one_in_twenty(members: int, outsiders: int) -> None:
    """Three scores of examples that are all alike: members and outsiders are drawn from one distribution, two of the
    scores ranking alike and one with many ties. 200 trials with a chance of 0.05 are wrong 20 times once in 500."""
    wrong = 0
    for seed in range(200):
        one = normal(members + outsiders, seed)
        tied = normal(members + outsiders, seed + 10**6).round()
        wrong += found([compare(scores[:members], scores[members:]) for scores in (one, one.exp(), tied)])
    assert wrong < 20


def test_the_chances_of_ranks_are_exact() -> None:
    """Of every share of trials without membership, no more have so small a chance; and nearly as many have."""
    chances = torch.tensor([compare(normal(60, s), normal(300, s + 10**5)).p for s in range(500)], dtype=torch.float64)
    for level in (0.05, 0.2, 0.5):
        share = (chances <= level).double().mean(dim=0)
        assert bool((share <= level + 3 * (level * (1 - level) / 500) ** 0.5).all()), share
    assert float((chances[:, 2] <= 0.5).double().mean()) > 0.45
    by_hand = stats.hypergeom.pmf(range(2, 6), 360, 60, 5).sum()  # two members or more among the five highest of all
    assert stats.hypergeom.sf(1, 360, 60, 5) == pytest.approx(by_hand)


def test_the_figures_are_those_of_a_roc_curve() -> None:
    from sklearn.metrics import roc_auc_score, roc_curve

    members, outsiders = normal(300, 3, 0.8), normal(1500, 4)
    apart = compare(members, outsiders)
    truth, scores = [1] * 300 + [0] * 1500, torch.cat([members, outsiders]).numpy()
    false, true, _ = roc_curve(truth, scores, drop_intermediate=False)
    assert apart.auc == pytest.approx(roc_auc_score(truth, scores))
    assert apart.strict / 300 == pytest.approx(true[false <= 0.001].max())
    assert apart.loose / 300 == pytest.approx(true[false <= 0.01].max())


def test_few_outsiders_resolve_no_rate_and_say_so_instead_of_zero() -> None:
    assert [resolves(count) for count in (99, 100, 999, 1000)] == [
        (False, False),
        (False, True),
        (False, True),
        (True, True),
    ]
    assert set(told(compare(normal(50, 0), normal(99, 1)))) == {"members", "outsiders", "auc"}
    few = compare(normal(50, 0, 20.0), normal(30, 1))
    assert found([few]), "members who score above every outsider are found all the same"


def test_one_candidate_more_or_less_changes_nothing_that_is_told() -> None:
    """A server whose weights give every example one score and a single example another."""
    outsiders, without = torch.zeros(300), torch.zeros(200)
    marked = without.clone()
    marked[17] = 1.0
    answers = [compare(side, outsiders) for side in (without, marked)]
    assert answers[0].loose == 0 and answers[1].loose == 1, "the figures themselves would tell"
    assert told(answers[0]) == told(answers[1]) and [found([each]) for each in answers] == [False, False]


def test_too_few_examples_are_not_judged() -> None:
    for members, outsiders in ((LEAST - 1, 500), (500, LEAST - 1)):
        with pytest.raises(AttackError, match="too few"):
            compare(normal(members, 0), normal(outsiders, 1))
    with pytest.raises(AttackError, match="not finite"):
        compare(torch.full((50,), float("nan")), normal(50, 0))


def test_questions_of_a_run_share_one_chance_of_a_false_finding() -> None:
    apart = next(a for a in (compare(normal(100, s, 0.42), normal(300, s + 99)) for s in range(200)) if found([a]))
    assert 0.05 / 3 / 1000 < min(apart.p) and not found([apart], 1000)


def test_intervals_hold_for_what_was_rounded() -> None:
    for hits in range(101):
        low, high = limits(hits - hits % STEP, 100, 1)
        exact = stats.binomtest(hits, 100).proportion_ci(method="exact")
        assert low <= exact.low + 1e-12 and high >= exact.high - 1e-12
    assert limits(10, 100, 4)[0] < limits(10, 100, 1)[0]


def test_the_interval_of_an_auc_holds_the_truth_as_often_as_it_says() -> None:
    truth = float(stats.norm.cdf(0.5 / 2**0.5))
    held = 0
    for seed in range(300):
        auc = told(compare(normal(100, seed, 0.5), normal(150, seed + 10**6)))["auc"]
        low, high = auc_limits(auc, 100, 150, 1)
        held += low <= truth <= high
    assert 0.93 <= held / 300 <= 0.995
