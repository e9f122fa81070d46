"""A line now and then, with what is left; and an estimate that counts the iterations an attack may run."""

import dataclasses

import pytest
import torch
from torch.nn.functional import cross_entropy

from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.ig import Ig
from prunella.attacks.model_inversion import ModelInversion
from prunella.attacks.portfolio import Portfolio
from prunella.attacks.sgi import Sgi
from prunella.core.randomness import stream
from prunella.library import pace
from prunella.library.pace import Pace, descents_of, estimate
from prunella.library.view import View, view
from prunella.server.audit.attempt import Order, attempt
from tests.library.test_view import X, Y, net


def test_lines_come_now_and_then_and_say_what_is_left() -> None:
    now, lines = [100.0], list[str]()
    told = Pace(100, lines.append, "control", every=5.0, clock=lambda: now[0])
    for iteration in range(30):
        told.tell(0, iteration, 0.5)
        now[0] += 1
    assert len(lines) == 5  # after 5, 10, … 25 seconds
    assert lines[0] == "control: start 1, iteration 5 of 100, objective 0.5, at most 1\N{NARROW NO-BREAK SPACE}min " + (
        "35\N{NARROW NO-BREAK SPACE}s left of this start"
    )
    told.tell(1, 0, 0.4)
    assert "left" not in told.line(1, 0, 0.4, now[0])


def test_the_portfolio_says_that_it_goes_on_too() -> None:
    """It is many descents, of which none is the store's."""
    now, lines = [100.0], list[str]()
    told = Pace(600, lines.append, every=5.0, clock=lambda: now[0])
    model = net()
    cross_entropy(model(X), Y).backward()
    one = view(model, batch=2)

    def tell(start: int, iteration: int, objective: float) -> None:
        told.tell(start, iteration, objective)
        now[0] += 1

    how = Portfolio(passes=400, label_passes=100)
    attempt(one.seen, one.task, Order("portfolio", how, stream(0, purpose="attack")), ResumeStore(tell=tell))
    assert len(lines) > 3 and lines[0] == "5\N{NARROW NO-BREAK SPACE}s so far"


def seen(labels: torch.Tensor | None = None) -> View:
    model = net()
    cross_entropy(model(X), Y).backward()
    return view(model, batch=None if labels is not None else 2, labels=labels)


def test_whole_descents_and_scouts_are_counted() -> None:
    two = seen().seen
    single = seen(labels=Y[:1]).seen
    assert descents_of(two, Ig(iterations=50, restarts=3)) == (150, 0)
    assert descents_of(single, Ig(iterations=50, restarts=1)) == (50, 0)
    from dataclasses import replace

    unknown = replace(single, labels=None)
    assert descents_of(unknown, Ig(iterations=500, labels_tried=10)) == (1000, 9 * 60)


def test_an_estimate_is_the_time_of_an_iteration_times_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(1000))
    monkeypatch.setattr(pace.time, "perf_counter", lambda: float(next(ticks)) * 2)
    found = seen()
    assert estimate(found.seen, found.task, "sgi", Sgi(iterations=50, restarts=4)) == 2 * 50 * 4
    assert estimate(found.seen, found.task, "portfolio", Portfolio(seconds=7)) == 7
    several, passes = dataclasses.replace(found.seen, labels=None), Portfolio(passes=90, label_passes=20)
    assert estimate(several, found.task, "portfolio", passes) == 2 * (90 + 20) / 2
    named = dataclasses.replace(found.seen, labels=Y)
    assert estimate(named, found.task, "portfolio", passes) == 2 * 90 / 2
    defended = dataclasses.replace(found.seen, defenses=("dgp",))
    assert estimate(defended, found.task, "portfolio", Portfolio(passes=90)) == Portfolio().seconds
    assert estimate(found.seen, found.task, "model-inversion", ModelInversion()) is None
