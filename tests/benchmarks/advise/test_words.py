"""An advice in words: never a comfort that the numbers do not give, and a command that runs what was tried."""

import shlex

from prunella.benchmarks.advise.proposals import Proposal, shortlist
from prunella.benchmarks.advise.search import advise
from prunella.benchmarks.advise.words import command, headline, leaked, limits, reasons, unanswered, untried
from prunella.benchmarks.engine.inprocess import settings
from prunella.core.config import parse_run
from prunella.deploy.runtime.settings import parse
from tests.benchmarks.advise.test_proposals import question
from tests.benchmarks.advise.test_search import DGP, NONE, PRIVATE, row, standing


def test_a_leak_within_the_limit_is_no_answer() -> None:
    said = advise([standing(NONE, row(0.95)), standing(DGP, row(0.94))], 2.0)
    assert said is not None
    assert headline(said, 2.0).startswith("Nothing that was tried protects") and "costs more" in headline(said, 2.0)
    assert not said.answered and said.safest is None
    assert not any("prunella run" in text or "It costs" in text for text in reasons(said, question()))
    traces = advise([standing(NONE, row(0.95)), standing(DGP, row(0.5, "traces"))], 2.0)
    assert traces is not None and not traces.answered and "costs more" in headline(traces, 2.0)
    dearer = advise([standing(NONE, row(0.95)), standing(PRIVATE, row(0.80, "baseline"))], 2.0)
    assert dearer is not None and dearer.recommended.proposal == PRIVATE
    assert "dp-sgd at ε 4" in headline(dearer, 2.0) and "15.0 points" in headline(dearer, 2.0)


def test_where_the_budget_tried_no_defense_none_is_said_to_fail() -> None:
    for level in ("rebuilt", "traces"):
        said = advise([standing(NONE, row(0.95, level))], 2.0)
        assert said is not None and not said.answered
        told = " ".join([headline(said, 2.0), *reasons(said, question())])
        assert "No defense was tried" in told and "goes on" in told
        assert "protects" not in told and "costs more" not in told and "behind" not in told


def test_what_has_no_epsilon_is_no_promise() -> None:
    clear = advise([standing(NONE, row(0.95)), standing(DGP, row(0.94, "baseline"))], 2.0)
    assert clear is not None and "no promise" in headline(clear, 2.0)
    open_ = advise([standing(NONE, row(0.95)), standing(DGP, row(0.94, "baseline", worst={"explained": False}))], 2.0)
    assert open_ is not None and "does not explain" in headline(open_, 2.0)
    assert any("stronger attack" in text for text in limits(clear.chosen, question()))
    private = standing(PRIVATE, row(0.94, "baseline", worst={"explained": False}))
    for each in (open_.chosen, private):
        assert any("does not explain its updates" in text for text in limits(each, question()))
    assert not any("does not explain" in text for text in limits(clear.chosen, question()))


def test_what_it_rests_on_is_said() -> None:
    said = advise([standing(NONE, row(0.95)), standing(PRIVATE, row(0.94, "baseline", members=True))], 2.0)
    assert said is not None
    assert any("rests on 1 federation;" in text for text in reasons(said, question()))
    assert any("better than by chance" in text for text in limits(said.chosen, question()))
    settled = advise([standing(NONE, *[row(0.95)] * 3), standing(PRIVATE, *[row(0.94, "baseline")] * 3)], 2.0)
    assert settled is not None and not any("rests on" in text for text in reasons(settled, question()))
    channel = standing(Proposal("channel-natural", 0.3), row(0.94, "baseline"))
    assert any("2 images" in text for text in limits(channel, question(examples=2)))
    assert not any("images, the smallest" in text for text in limits(channel, question(examples=300)))
    assert any("Only sgi attacked" in text for text in limits(channel, question(attack="sgi")))
    assert any("later rounds" in text for text in limits(said.chosen, question(rounds=100)))


def test_an_epsilon_of_the_users_own_chain_is_of_the_rounds_that_were_tried() -> None:
    own = standing(Proposal("dp-fed", 0.3), row(0.94, "baseline", epsilon=3.0))
    said = advise([standing(NONE, row(0.95)), own], 2.0)
    assert said is not None and any("what 10 rounds spent" in text for text in reasons(said, question(rounds=100)))


def test_an_epsilon_that_bounds_nothing_is_said_to_count_as_none() -> None:
    own = standing(Proposal("dp-sgd", 0.3), row(level="baseline", epsilon=3001.0))
    said = " ".join(limits(own, question()))
    assert "It spent ε 3e+03, and only one of at most 16 counts" in said and "Nothing bounds" in said
    assert "counts as one here" not in " ".join(limits(standing(PRIVATE, row(level="baseline")), question()))


def test_chains_that_the_budget_left_out_are_named() -> None:
    listed = shortlist(question(), question().rates[0])
    (said,) = untried([standing(NONE, row(0.95)), standing(DGP, row(0.94))], question())
    assert f"2 of {len(listed)} chains" in said and "no comparison yet" in said
    assert "dp-sgd at ε 1, " in said and " none" not in said
    assert not untried([standing(each, row(0.9)) for each in listed], question())


def test_a_failed_control_is_not_called_harmless() -> None:
    assert "nothing is known" in leaked(standing(DGP, row(worst={"level": "unknown"})), question())


def test_members_that_were_told_apart_stand_beside_pictures_that_show_nothing() -> None:
    one = standing(DGP, row(level="baseline", members=True))
    assert "nothing was rebuilt" in (said := leaked(one, question())) and said.endswith("were told from others")
    assert "told from others" not in leaked(standing(DGP, row(level="baseline")), question())


def test_a_mean_of_worst_cases_is_called_one() -> None:
    several = standing(DGP, row(psnr=36.0), row(level="baseline", psnr=10.0))
    assert "in 1 of 2 federations (worst case, one public image in one step: 23 dB on average)" in leaked(
        several, question()
    )
    assert "one step: 36 dB)" in leaked(standing(DGP, row(psnr=36.0)), question())


def test_of_masked_sums_the_worst_case_is_an_image_of_each_site_and_who_was_not_played_is_said() -> None:
    one, alone, sums = standing(DGP, row(psnr=36.0)), question(), question(aggregation="secure-sum")
    assert "one public image in one step: 36 dB" in leaked(one, alone) and "sums of all" not in str(limits(one, alone))
    assert "one public image of each site in one step: 36 dB" in leaked(one, sums)
    assert "sums of all sites, as a server that follows the protocol sees them" in str(limits(one, sums))


def test_the_command_runs_what_was_tried() -> None:
    own = question(model="hospital.net:build", dataset="imagefolder:/data/my photos", rounds=20, strategy="fedavg")
    words = shlex.split(command(standing(Proposal("dp-sgd,dgp", 0.7, 4.0), row()), own))
    assert words[:4] == ["prunella", "run", "--supernodes", "4"]
    typed = parse(words[5::2], settings())
    run = parse_run(
        {**{k: v for k, v in settings().items() if "." not in k}, **{k: v for k, v in typed.items() if "." not in k}}
    )
    assert run.defenses == "dp-sgd,dgp" and run.rate == 0.7 and run.rounds == 20 and run.learning_rate == 0.1
    assert run.dataset == "imagefolder:/data/my photos" and typed["dp-sgd.noise-multiplier"] > 0.1


def test_why_there_is_no_advice() -> None:
    assert "did not learn" in unanswered([standing(NONE, row(doubt="the model did not learn"))])
