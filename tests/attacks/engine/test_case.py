import dataclasses

import torch
from torch import nn

from prunella.attacks.engine.case import Candidate, Case, ViewSetting, held_out, matchable
from prunella.attacks.engine.choice import settled
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.others import missed
from prunella.attacks.engine.parts import with_parts
from prunella.attacks.portfolio import PLAIN, Portfolio
from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.normalisation import USUAL, WIDE
from prunella.tasks.public import digits
from prunella.tasks.task import ModuleTask, Task, initial


def setting(view: ServerView, task: Task) -> ViewSetting:
    return ViewSetting(view, target_of(view, task.build(), True, 16))


def test_a_tenth_of_what_arrived_is_kept_from_descents_where_enough_arrived(task, view) -> None:
    target = target_of(view, task.build(), True, 16)
    fitted, judged = held_out(target, task, stream(0, purpose="held"))
    assert torch.equal(fitted.flat + judged.flat, target.flat) and not bool((fitted.flat * judged.flat).any())
    assert 0.08 < float(judged.support.mean()) < 0.12
    first = (torch.arange(len(target.flat)) < 200).float()
    few = dataclasses.replace(target, flat=target.flat * first, support=first)
    assert all(each is few for each in held_out(few, task, stream(0, purpose="held")))


def test_predicates_read_the_view_and_the_model(task, fresh, batch) -> None:
    one = undefended_view(task, *fresh, batch(0, 1))
    many = undefended_view(task, *fresh, batch(0, 20))
    assert setting(one, task).single and not setting(many, task).single
    assert setting(many, task).merged and not setting(one, task).merged
    assert not setting(dataclasses.replace(many, num_examples=16), task).merged
    assert setting(many, task).open_labels and not setting(one, task).open_labels
    assert not setting(dataclasses.replace(many, labels=batch(0, 20).y), task).open_labels
    assert not setting(one, task).disturbed and setting(dataclasses.replace(one, defenses=("dgp",)), task).disturbed
    assert not setting(dataclasses.replace(one, defenses=("none",)), task).disturbed
    assert matchable(setting(one, task))
    assert not matchable(setting(dataclasses.replace(one, defenses=("dgp", "mask-hiding")), task))
    coded = Task("precode-cnn", task.shape, task.classes)
    hidden = undefended_view(coded, *initial(coded, 0), PrivateBatch(torch.rand(1, *task.shape), torch.tensor([1])))
    assert not matchable(setting(hidden, coded))


def test_descents_spend_the_budget_and_the_truth_misses_nothing(task, view, batch) -> None:
    case = Case(view, task, Portfolio(passes=500), stream(0, purpose="attack"), float("inf"))
    before = case.budget.left()
    found = case.scout(PLAIN, 10)
    assert before == 500 and case.budget.left() == before - 10 * len(found) and len(found) == 2
    truth = dataclasses.replace(found[0].answer, x=batch(0, 1).x, y=batch(0, 1).y)
    other = dataclasses.replace(found[0].answer, x=batch(1, 1).x, y=batch(0, 1).y)
    nothing = dataclasses.replace(truth, x=torch.full_like(truth.x, torch.nan))
    assert case.missed(truth) < 1e-6 < 0.01 < case.missed(other) < case.missed(nothing)
    assert Case(view, task, Portfolio(), stream(0, purpose="attack"), 0.0).budget.left() == 0  # the deadline is over
    solved = Candidate("representation", matchable)
    (whole,) = Case(view, task, Portfolio(), stream(0, purpose="attack"), float("inf")).solve(solved)
    before = case.budget.left()
    (part,) = case.solve(solved, share=0.05)  # an attack in full is paid for as well
    assert case.budget.left() == before - 2 * part.answer.iterations >= 0.95 * before  # of its two starts
    assert whole.answer.iterations > part.answer.iterations
    assert Candidate("sgi", matchable, {"tv": 0.1, "patience": 3}).name == "sgi tv=0.1"


def test_where_any_image_misses_next_to_nothing_only_the_client_s_own_explains_the_update(task, view, batch) -> None:
    """Behind sigmoids another digit of the class misses 1e-6, which ended the search. Elsewhere nothing changes."""
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [each for inputs, stride in sizes for each in (nn.Conv2d(inputs, 12, 5, stride, 2), nn.Sigmoid())]
    flat = ModuleTask("net", (1, 8, 8), 10, nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 10)))
    truth, noise = batch(0, 1), torch.rand(1, 1, 8, 8, generator=stream(0, purpose="noise"))
    for each, seen in ((flat, undefended_view(flat, *initial(flat, 0), truth)), (task, view)):
        case = Case(seen, each, Portfolio(), stream(0, purpose="attack"), float("inf"))
        answers = [Reconstruction(x, truth.y, 0.0, 1) for x in (noise, truth.x)]
        plain = [missed(case.judged, answer.x, truth.y) for answer in answers]
        found = [case.found("sgi", answer, None, case.missed(answer)) for answer in answers]
        assert not settled(found[:1], False) and settled(found, False)
        assert (plain[0] < EXPLAINED) is (each is flat)
        assert [one.missed for one in found] == plain, "what is missed is what it was, whatever others miss"


def test_where_any_image_is_a_part_none_takes_a_place() -> None:
    """Three digits of a class behind softplus: noise alone misses 8e-5 of their update."""
    torch.manual_seed(0)
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [each for inputs, stride in sizes for each in (nn.Conv2d(inputs, 12, 5, stride, 2), nn.Softplus())]
    net = ModuleTask("net", (1, 8, 8), 10, nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 10)))
    x, y, draw = digits().x[digits().y == 3][:3], torch.full((3,), 3), stream(0, purpose="noise")
    case = Case(undefended_view(net, *initial(net, 0), PrivateBatch(x, y)), net, Portfolio(), draw, float("inf"))
    near = (x + 0.03 * torch.randn(x.shape, generator=draw)).clamp(0, 1)
    answers = (Reconstruction(near, y, 0.0, 1), Reconstruction(torch.rand(1, 1, 8, 8, generator=draw), y[:1], 0.0, 1))
    whole = case.found("sgi", answers[0], None, case.missed(answers[0]))
    noise = case.part("one", answers[1])
    assert whole.missed < noise.missed < 1e-3, "by its figure alone it counts"
    assert with_parts(whole, [noise]) is whole


def test_a_usual_range_is_judged_on_the_coordinates_of_the_wide_one_it_was_read_from(task, fresh, batch) -> None:
    view = undefended_view(task, *fresh, batch(0, 1))
    case = Case(view, task, Portfolio(), stream(0, purpose="attack"), float("inf"))
    wide = case.normalised(WIDE, "wide")
    torch.rand(1, generator=case.generator)  # what was tried in between draws
    alone, same = case.normalised(USUAL[0], "usual"), case.normalised(USUAL[0], "usual", wide)
    for name in ("fitted", "judged"):
        of_wide, of_same, of_alone = (getattr(each, name) for each in (wide, same, alone))
        assert torch.equal(of_same.flat, of_wide.flat) and torch.equal(of_same.support, of_wide.support)
        assert not torch.equal(of_alone.support, of_wide.support)
