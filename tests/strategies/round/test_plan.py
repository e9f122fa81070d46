from prunella.strategies.round.plan import LocalPlan


def test_a_plan_changes_nothing_unless_told_and_two_do_not_share_what_they_keep() -> None:
    plan = LocalPlan()
    assert (plan.start, plan.mask, plan.readjust, plan.before, plan.keep) == (None, None, None, 0, {})
    assert plan.keep is not LocalPlan().keep
