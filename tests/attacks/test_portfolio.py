import dataclasses
from dataclasses import dataclass

import pytest
import torch

from prunella.attacks import ATTACKS, find_attack, portfolio
from prunella.attacks.engine.matching import target_of
from prunella.attacks.portfolio import CANDIDATES, Candidate, Case, Clock, Portfolio, Setting, held_out
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial

QUICK = Portfolio(seconds=20, iterations=150, restarts=1)


def run(view: ServerView, task: Task, attack: Portfolio = QUICK, **keywords) -> Reconstruction:
    return ATTACKS["portfolio"].reconstruct(view, task, attack, stream(0, purpose="attack"), **keywords)


@dataclass(frozen=True)
class NoisyShadow:
    """A client whose updates carry noise of a multiple of their own deviation."""

    public: Examples
    task: Task
    noise: float

    def send(self, shown: Examples, draw: int, steps: int | None = None, batch_size: int | None = None) -> ServerView:
        view = undefended_view(self.task, *initial(self.task, 0), PrivateBatch(shown.x, shown.y))
        generator = stream(draw, purpose="noise")
        update = {
            n: u + self.noise * u.std() * torch.randn(u.shape, generator=generator) for n, u in view.update.items()
        }
        return dataclasses.replace(view, update=update, labels=shown.y)


def test_every_candidate_names_an_attack_its_settings_and_itself() -> None:
    for each in CANDIDATES:
        names = {f.name for f in dataclasses.fields(find_attack(each.attack).settings)}
        assert set(each.changes) <= names, each.name
    assert len({each.name for each in CANDIDATES}) == len(CANDIDATES)


def test_rebuilds_an_undefended_image_names_who_did_and_takes_it_for_no_other(task, fresh, same_label) -> None:
    truth, other = same_label
    found = run(undefended_view(task, *fresh, truth), task)
    assert score(found, truth).psnr.mean > 40 and psnr(other.x, found.x)[0] < 25
    assert found.found_by in {each.name for each in CANDIDATES} and found.objective < 1e-4


def test_the_update_of_other_weights_gives_nothing(task, fresh, batch) -> None:
    truth = batch(0, 1)
    wrong = dataclasses.replace(undefended_view(task, *fresh, truth), params=initial(task, 1)[0])
    found = run(wrong, task, dataclasses.replace(QUICK, seconds=5))
    assert psnr(truth.x, found.x)[0] < 17 and found.objective > 0.01


def test_predicates_ask_the_view_and_the_model(batch) -> None:
    def names(model: str, size: int) -> set[str]:
        task, truth = Task(model, (1, 16, 16), 10), PrivateBatch(torch.rand(size, 1, 16, 16), torch.arange(size))
        view = undefended_view(task, *initial(task, 0), truth)
        setting = Setting(view, target_of(view, task.build(), True, 16))
        return {each.name for each in CANDIDATES if each.applies(setting)}

    assert names("precode-cnn", 1) == {"representation"}
    assert "r-gap" in names("cnn", 1) - names("cnn", 2) and "r-gap" not in names("lenet", 1)
    assert "gradinversion" in {name.split()[0] for name in names("resnet10", 2) - names("cnn", 2)}
    assert "dlg labels=optimise" in names("cnn", 2) - names("cnn", 1)


def test_a_tenth_of_what_arrived_is_kept_from_descents_where_enough_arrived(task, view) -> None:
    target = target_of(view, task.build(), True, 16)
    fitted, judged = held_out(target, task, stream(0, purpose="held"))
    assert torch.equal(fitted.flat + judged.flat, target.flat) and not bool((fitted.flat * judged.flat).any())
    assert 0.08 < float(judged.support.mean()) < 0.12
    first = (torch.arange(len(target.flat)) < 200).float()
    few = dataclasses.replace(target, flat=target.flat * first, support=first)
    assert all(each is few for each in held_out(few, task, stream(0, purpose="held")))


def test_a_noised_digit_is_rebuilt_with_a_shadow_and_without(task, digits, batch) -> None:
    shadow = NoisyShadow(Examples(digits.x[:50], digits.y[:50]), task, 1.0)
    truth, other = batch(0, 1), batch(1, 1)
    view = shadow.send(Examples(truth.x, truth.y), 99)
    for keywords in ({}, {"shadow": shadow}):
        found = run(view, task, **keywords)
        assert psnr(truth.x, found.x)[0] > max(13, psnr(other.x, found.x)[0] + 2)


def test_ends_by_its_budget_or_the_deadline(task, view, monkeypatch) -> None:
    now = [0.0]

    def tick() -> float:
        now[0] += 0.01
        return now[0]

    monkeypatch.setattr(portfolio.time, "monotonic", tick)
    clock = Clock(10.0, 3.0)
    assert 2.9 < clock.left() < 3.0
    clock.cost = 0.1
    assert clock.iterations(0.5, 1000) == pytest.approx(12, abs=2) and clock.iterations(0.5, 5) == 5
    clock.measured("lbfgs", 40.0, 40)
    assert clock.iterations(0.5, 1000, "lbfgs") == 1


def test_where_nothing_fits_it_says_so(task, view, monkeypatch) -> None:
    monkeypatch.setattr(portfolio, "CANDIDATES", (Candidate("sgi", lambda setting: False),))
    with pytest.raises(AttackError, match="no attack of the portfolio"):
        run(view, task)


def test_an_attempt_that_cannot_be_made_costs_nothing_but_itself(task, view, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise AttackError("no")

    monkeypatch.setattr(Case, "solve", refuse)
    assert run(view, task, dataclasses.replace(QUICK, seconds=5)).found_by not in {None, "representation", "r-gap"}
