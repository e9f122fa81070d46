from dataclasses import replace

import pytest
import torch

from prunella.attacks import ATTACKS
from prunella.attacks.score.control import rebuilt_control
from prunella.attacks.score.leakage import Leakage, score
from prunella.attacks.sgi import Sgi
from prunella.core.config import parse_run
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import density, keep_by_score
from prunella.server.audit.canary import DEFENDED, UNDEFENDED, canary_count, load_pool, play_canary
from prunella.server.audit.shadow import RunShadow, Sent, SentRound, template_of
from prunella.server.audit.view import expected_view
from prunella.strategies.round.replies import Expected
from prunella.tasks.data import load_test
from prunella.tasks.task import Task, initial, prunable

TASK = Task("cnn", (1, 8, 8), 10)
CANARIES, PUBLIC = load_pool(TASK, load_test("digits", None), 0)


def sent(kind: str, round: int = 1, sites: int = 1, num_examples: int = 0, **raw: str | int) -> Sent:
    raw = {"strategy": "fedavg", "local-steps": 1, "batch-size": 1, **raw}
    run = parse_run(raw)
    params, buffers = initial(TASK, 0)
    mask = keep_by_score(magnitude(params), prunable(TASK.build()), 0.3)
    expected = Expected(round, apply_mask(params, mask), mask, buffers)
    defenses = run.defense_names if kind in DEFENDED else ("none",)
    view = expected_view(run, expected, frozenset())
    together = {
        "num_examples": num_examples or sites * (view.num_examples or 1),
        "batch_size": sites * (view.batch_size or 1),
    }
    pattern = template_of(replace(view, **together), defenses)
    sent_round = SentRound(round, whose="canary", sites=sites)
    return play_canary(RunShadow(raw, TASK, pattern, sent_round, PUBLIC), CANARIES, kind)


def attacked(canary: Sent, **settings: int) -> Leakage:
    found = ATTACKS["sgi"].reconstruct(canary.view, TASK, Sgi(**settings), stream(0, purpose="attack"))
    return score(found, canary.truth)


def test_one_image_in_one_step_is_rebuilt_and_less_well_when_defended() -> None:
    plain, defended = (attacked(sent(kind, 6, defenses="largest")) for kind in ("control", "control-defended"))
    assert rebuilt_control(plain.to_dict()) and plain.label_accuracy == 1.0
    assert defended.psnr.mean < plain.psnr.mean - 3


@pytest.mark.parametrize("defenses", ["priprune", "largest", "dgp"])
def test_the_worst_case_is_a_first_round_whatever_the_round(defenses: str) -> None:
    """Behind PriPrune one image in one step was attacked after five rounds only: a run could read that nothing was
    rebuilt, where the first round, which a server may ask for, gives the image away."""
    late, first = (sent("single-defended", round, defenses=defenses) for round in (9, 1))
    for canary in (late, first):
        found = attacked(canary, iterations=300)
        assert found.psnr.mean > 30 or defenses == "largest"
    matched = [sent("control-defended", round, defenses=defenses).view for round in (9, 1)]
    same = all(torch.equal(one, matched[1].shared[name]) for name, one in matched[0].shared.items())
    assert not same, "the client has a past in round 9"


def test_a_control_of_many_images_in_many_steps_fails_where_one_image_does_not() -> None:
    """The control used to be one image in one step, whatever the clients did, and vouched for an attack that fails."""
    many = {"local-steps": 8, "batch-size": 16}
    control, single = (attacked(sent(kind, **many), iterations=60) for kind in ("control", "single"))
    assert control.images == 16 and not rebuilt_control(control.to_dict())
    assert single.images == 1 and rebuilt_control(single.to_dict())


@pytest.mark.parametrize("kind", [*UNDEFENDED, *DEFENDED])
def test_a_canary_has_the_size_and_the_defenses_of_its_kind(kind: str) -> None:
    canary = sent(kind, defenses="dgp", **{"local-steps": 2, "batch-size": 3})
    view, single = canary.view, kind.startswith("single")
    assert (view.steps, view.batch_size, view.num_examples) == ((1, 1, 1) if single else (2, 3, 6))
    assert len(canary.truth.y) == view.num_examples and view.labels is None
    assert view.defenses == (("dgp",) if kind in DEFENDED else ("none",))
    whole = density(view.mask, frozenset(view.mask))
    assert (density(view.shared, frozenset(view.shared)) < whole) == (kind in DEFENDED)


@pytest.mark.parametrize("kind", [*UNDEFENDED, *DEFENDED])
def test_a_canary_of_a_sum_is_of_all_its_clients_and_its_worst_case_of_an_image_of_each(kind: str) -> None:
    canary = sent(kind, sites=3, defenses="dgp", **{"local-steps": 2, "batch-size": 3})
    view, single = canary.view, kind.startswith("single")
    assert (view.steps, view.batch_size, view.num_examples) == ((1, 3, 3) if single else (2, 9, 18))
    assert len(canary.truth.y) == view.num_examples
    with pytest.raises(AttackError, match="too few for a control of this sum's 240"):
        sent("control", sites=3, **{"local-steps": 10, "batch-size": 8})


def test_a_round_s_canaries_show_the_same_images_and_the_next_round_s_others() -> None:
    control, defended = (sent(kind, defenses="dgp", **{"batch-size": 4}) for kind in ("control", "control-defended"))
    following = sent("control", round=2, **{"batch-size": 4})

    def images(canary: Sent) -> list[bytes]:
        return sorted(x.numpy().tobytes() for x in canary.truth.x)

    assert images(control) == images(defended) != images(following)


def test_a_control_has_the_images_of_the_steps_and_not_all_that_a_client_holds() -> None:
    made = sent("control", num_examples=5000, **{"local-steps": 2, "batch-size": 3})
    assert len(made.truth.x) == 6


def test_where_clients_hold_more_images_than_there_are_canaries_no_control_is_made() -> None:
    """A smaller one would be easier, and vouch for an attack that fails."""
    words = "179 public images are too few for a control of this client's 240: have twice as many test images"
    with pytest.raises(AttackError, match=words):
        sent("control", **{"local-steps": 30, "batch-size": 8})
    assert len(sent("single", **{"local-steps": 30, "batch-size": 8}).truth.y) == 1


def test_canaries_are_no_images_that_an_attack_learns_from() -> None:
    assert len(CANARIES) == canary_count(359) and len(CANARIES) + len(PUBLIC) == 359
    test = load_test("digits", None)
    every = torch.cat([CANARIES.x, PUBLIC.x]).flatten(1).sort(0).values
    assert torch.equal(every, test.x.flatten(1).sort(0).values)


def test_a_task_without_public_images_borrows_digits_in_its_own_shape() -> None:
    for pool in load_pool(Task("resnet18", (3, 32, 32), 5), None, 0):
        assert tuple(pool.x.shape[1:]) == (3, 32, 32) and int(pool.y.max()) < 5
        assert 0 <= float(pool.x.min()) and float(pool.x.max()) <= 1


def test_the_worst_image_decides_whether_a_control_was_rebuilt() -> None:
    one = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(0))
    noise = torch.rand(3, 1, 16, 16, generator=torch.Generator().manual_seed(1))
    truth = PrivateBatch(one, torch.zeros(3, dtype=torch.int64))
    found = Reconstruction(torch.cat([one[:1], noise[1:]]), None, 0.5, 1)
    leakage = score(found, truth)
    assert leakage.psnr.worst == 100 and rebuilt_control(leakage.to_dict())
    assert not rebuilt_control(score(replace(found, x=noise), truth).to_dict())
