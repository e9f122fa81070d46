"""What follows from federations: tiers, dominance, what to try next, and that nothing unsafe is recommended."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prunella.benchmarks.advise.proposals import Proposal, shortlist
from prunella.benchmarks.advise.search import (
    SAFE,
    SEEDS,
    Standing,
    add,
    advise,
    dominates,
    front,
    lost_interval,
    next_trial,
)
from prunella.server.report.state import LARGEST_EPSILON
from tests.benchmarks.advise.test_proposals import question

NONE, DGP, PRIVATE = Proposal("none", 0.3), Proposal("dgp", 0.3), Proposal("dp-sgd", 0.3, 4.0)


def row(accuracy: float = 0.9, level: str = "rebuilt", psnr: float = 40.0, **more: Any) -> dict[str, Any]:
    worst = {"level": level, "psnr": psnr, "floor": 12.0, "explained": True, "attack": "sgi"}
    worst |= more.pop("worst", {})
    told = {"doubt": "", "rounds": "baseline", "members": False, "epsilon": None, "megabytes_up": 1.0, "seconds": 1.0}
    return {"accuracy": accuracy, "worst": worst, **told, **more}


def standing(proposal: Proposal, *rows: dict[str, Any]) -> Standing:
    """Of rows in which every ledger kept to the ε that the noise was made for, unless they say otherwise."""
    kept = [{**each, "epsilon": each.get("epsilon") or proposal.epsilon} if "worst" in each else each for each in rows]
    return Standing(proposal, tuple(kept))


def test_the_worst_federation_decides_the_tier() -> None:
    clear = row(level="baseline", psnr=10.0)
    assert standing(DGP, clear).tier == "clear"
    assert standing(DGP, clear, row()).tier == "rebuilt" == standing(PRIVATE, clear, row()).tier
    assert standing(DGP, clear, row(level="traces")).tier == "traces"
    assert standing(DGP, row(level="baseline", rounds="rebuilt")).tier == "rebuilt"
    assert standing(DGP, row(level="baseline", worst={"explained": False})).tier == "open"
    assert standing(PRIVATE, row(level="baseline", worst={"explained": False})).tier == "promised"


def test_members_that_were_told_apart_are_traces_unless_an_epsilon_bounds_them() -> None:
    """A run's own verdict is then "Members found", whatever its pictures show."""
    assert standing(DGP, row(level="baseline"), row(level="baseline", members=True)).tier == "traces"
    assert standing(PRIVATE, row(level="baseline", members=True)).tier == "promised"


def test_what_was_not_judged_is_not_safe() -> None:
    assert standing(DGP, row(worst={"level": "unknown"})).tier == "unknown"
    assert standing(DGP, row(level="baseline"), row(worst={"level": "unknown"})).tier == "unknown"
    assert "unknown" not in SAFE and standing(PRIVATE, row(worst={"level": "unknown"})).tier == "promised"


def test_what_came_back_in_rounds_counts_where_the_worst_case_was_not_judged() -> None:
    unknown = {"level": "unknown", "psnr": None}
    assert standing(PRIVATE, row(worst=unknown, rounds="rebuilt")).tier == "rebuilt"
    assert standing(DGP, row(worst=unknown, rounds="traces")).tier == "traces"
    assert standing(DGP, row(worst=unknown, rounds="baseline")).tier == "unknown"


def test_an_epsilon_that_a_ledger_passed_is_no_promise_and_one_that_it_kept_may_let_traces_through() -> None:
    assert standing(PRIVATE, row(level="baseline"), row(level="baseline", epsilon=4.1)).epsilon == math.inf
    assert standing(PRIVATE, row(level="baseline", epsilon=4.1)).tier == "clear"
    assert Standing(PRIVATE, (row(level="baseline"),)).epsilon == math.inf  # a site without an ε
    assert standing(PRIVATE, row(level="traces")).tier == "promised"


def test_an_epsilon_that_bounds_nothing_that_matters_is_no_promise() -> None:
    own, judged = Proposal("dp-sgd", 0.3), row(level="baseline", epsilon=3001.0)
    assert standing(own, row(level="baseline", epsilon=LARGEST_EPSILON)).tier == "promised"
    assert standing(own, judged).tier == "clear"
    assert standing(own, row(worst={"level": "unknown"}, epsilon=3001.0)).tier == "unknown"
    assert standing(own, row(level="traces", epsilon=3001.0)).tier == "traces"


def test_a_chain_of_the_users_own_has_an_epsilon_only_where_every_site_has_one() -> None:
    own = Proposal("dp-fed", 0.3)
    assert standing(own, row(level="baseline", epsilon=3.0)).epsilon == 3.0
    assert standing(own, row(level="baseline", epsilon=3.0), row(level="baseline")).epsilon == math.inf


def test_an_epsilon_is_never_dominated_by_what_has_none() -> None:
    clear, private = standing(DGP, row(0.95, "baseline")), standing(PRIVATE, row(0.6, "baseline"))
    assert not dominates(clear, private) and not dominates(private, clear)
    worse = standing(Proposal("dp-sgd", 0.3, 8.0), row(0.5, "baseline"))
    assert dominates(private, worse) and [one.proposal for one in front([clear, private, worse])] == [PRIVATE, DGP]


def test_what_beat_it_falls_and_it_comes_back() -> None:
    better, other = Proposal("priprune", 0.3), standing(DGP, row(0.8, "traces", 20.0))
    safe = standing(better, row(0.9, "baseline"))
    assert [one.proposal for one in front([safe, other])] == [better]
    fallen = standing(better, row(0.9, "baseline"), row(0.9))
    assert DGP in {one.proposal for one in front([fallen, other])}


def test_the_limit_decides_and_nothing_that_leaks_is_called_an_answer() -> None:
    every = [standing(NONE, row(0.95)), standing(DGP, row(0.94)), standing(PRIVATE, row(0.80, "baseline"))]
    tight, wide = advise(every, 2.0), advise(every, 20.0)
    assert tight is not None and tight.chosen.tier == "rebuilt" and tight.safest is not None
    assert tight.safest.proposal == PRIVATE and wide is not None and wide.chosen.proposal == PRIVATE
    assert wide.safest is None


def test_without_a_model_that_learns_there_is_no_advice() -> None:
    assert advise([standing(NONE, row(0.1, doubt="the model did not learn"))], 2.0) is None
    assert advise([standing(NONE, {"failed": "no reply"})], 2.0) is None


def test_of_the_promised_the_smallest_epsilon_that_fits() -> None:
    every = [standing(NONE, row(0.95))] + [
        standing(Proposal("dp-sgd", 0.3, target), row(accuracy, "baseline"))
        for target, accuracy in ((16.0, 0.94), (4.0, 0.935), (1.0, 0.5))
    ]
    found = advise(every, 2.0)
    assert found is not None and found.chosen.proposal.epsilon == 4.0


def test_losses_are_of_the_same_seeds() -> None:
    reference = standing(NONE, row(0.90), row(0.80), row(0.70))
    one = standing(DGP, row(0.89), row(0.79), row(0.69))
    low, high = lost_interval(one, reference) or (0.0, 0.0)
    assert low == pytest.approx(1.0) == high and lost_interval(standing(DGP, row()), reference) is None


def outcomes(proposal: Proposal) -> dict[str, Any]:
    """A made-up world: only noise protects, and costs."""
    if proposal.epsilon is None:
        return row(0.95 - 0.01 * len(proposal.chain) / 10)
    return row(0.7 + 0.01 * proposal.epsilon, "baseline", 9.0, epsilon=proposal.epsilon)


def test_every_chain_is_tried_then_what_decides_and_it_ends() -> None:
    asked, standings, order = question(), dict[Proposal, Standing](), list[tuple[Proposal, int]]()
    while (trial := next_trial(asked, standings, 2.0)) is not None:
        order.append(trial)
        standings = add(standings, trial[0], outcomes(trial[0]))
    assert len(order) == len(set(order)) and set(shortlist(asked, 0.3) + shortlist(asked, 0.7)) <= set(standings)
    assert {one.rate for one, _ in order[:12]} == {0.3} and all(seed == 0 for _, seed in order[:12])
    said = advise(standings.values(), 2.0)
    assert said is not None and said.safest is not None and said.safest.proposal.epsilon == 16.0
    assert len(standings[said.safest.proposal].rows) == SEEDS == len(standings[said.reference.proposal].rows)
    assert any(one.epsilon == 8.0 for one in standings)  # beside the front
    assert len(standings[Proposal("dgp", 0.7)].rows) == 1  # a picture came back: no second one is needed


def test_the_answer_rests_on_three_federations_before_anything_beside_it_is_tried() -> None:
    asked, standings = question(), dict[Proposal, Standing]()
    for _ in range(len(shortlist(asked, 0.3)) + 4):
        trial = next_trial(asked, standings, 2.0)
        assert trial is not None
        standings = add(standings, trial[0], outcomes(trial[0]))
    said = advise(standings.values(), 2.0)
    assert said is not None and {len(each.rows) for each in (said.recommended, said.reference)} == {3}
    assert {one.rate for one in standings} == {0.3} and len(standings) == len(shortlist(asked, 0.3))


@given(st.lists(st.tuples(st.sampled_from(["rebuilt", "traces", "baseline"]), st.floats(0.2, 0.99)), min_size=1))
def test_a_front_holds_one_that_nothing_dominates_for_each_that_is_dropped(drawn: list[tuple[str, float]]) -> None:
    every = [standing(Proposal(f"own:{i}", 0.3), row(a, level)) for i, (level, a) in enumerate(drawn)]
    kept = front(every)
    assert kept and all(one in kept or any(dominates(other, one) for other in kept) for one in every)
