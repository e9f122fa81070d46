"""One attack on one view ends in an answer that is finite, and in the outcome that a run's audits have."""

import dataclasses
import time

import pytest
import torch
from torch import nn

from prunella.attacks import ATTACKS, Attack
from prunella.attacks.engine.inversion import EXPLAINED
from prunella.attacks.engine.resume import ResumeStore
from prunella.attacks.ig import Ig
from prunella.attacks.r_gap import RGap
from prunella.attacks.representation import Representation
from prunella.attacks.score.control import undefended_view
from prunella.attacks.score.leakage import score
from prunella.attacks.sgi import Sgi
from prunella.core.errors import AttackError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.server.audit.attempt import TRANSFORMED, Fit, Order, attempt, canary_outcome, control_fault, evidence
from prunella.tasks.public import digits
from prunella.tasks.task import ModuleTask, Task, initial

TASK = Task("cnn", (1, 8, 8), 10)
R_GAP = Order("r-gap", RGap(), stream(0, purpose="attack"))


def seen() -> ServerView:
    x = torch.rand(1, 1, 8, 8, generator=stream(0, purpose="image"))
    return undefended_view(TASK, *initial(TASK, 0), PrivateBatch(x, torch.tensor([3])))


def order(**settings: int) -> Order:
    return Order("ig", Ig(**settings), stream(0, purpose="attack"))


def test_an_attack_says_whether_it_explains_the_update_and_whether_it_was_cut() -> None:
    few = attempt(seen(), TASK, order(iterations=2), ResumeStore())
    many = attempt(seen(), TASK, order(iterations=400), ResumeStore())
    assert (few.explained, few.cut) == (False, False) and many.explained
    assert many.rebuilt.objective < few.rebuilt.objective and many.rebuilt.y is not None
    late = attempt(seen(), TASK, order(iterations=400), ResumeStore(deadline=time.monotonic()))
    assert late.cut and late.rebuilt.objective > many.rebuilt.objective


X, Y = torch.rand(2, 1, 8, 8), torch.tensor([3, 4])


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (None, "answers with a NoneType, not with a Reconstruction"),
        (X, "answers with a Tensor, not with"),
        (Reconstruction(X.squeeze(1), Y, 0.1, 1), "images of shape (2, 8, 8), not of [N, 1, 8, 8]"),
        (Reconstruction(X[:0], None, 0.1, 1), "images of shape (0, 1, 8, 8)"),
        (Reconstruction(X.numpy(), None, 0.1, 1), "images of the type ndarray"),  # type: ignore[arg-type]
        (Reconstruction(X * torch.nan, Y, 0.1, 1), "images that are not finite"),
        (Reconstruction((X * 255).byte(), Y, 0.1, 1), "images that are not finite floating-point numbers"),
        (Reconstruction(X, Y + 7, 0.1, 1), "one int64 class for each image, from 0 to 9"),
        (Reconstruction(X, Y[:1], 0.1, 1), "one int64 class for each image"),
        (Reconstruction(X, torch.rand(2, 10), 0.1, 1), "one int64 class for each image"),
        (Reconstruction(X, Y, "0.1", 1), "the objective is not finite"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_answer_is_refused_before_a_client_is_asked(
    monkeypatch: pytest.MonkeyPatch, answer: object, words: str
) -> None:
    own = Attack(Ig, lambda view, task, settings, generator: answer, "somebody's own")  # type: ignore[arg-type,return-value]
    monkeypatch.setitem(ATTACKS, "own", own)
    with pytest.raises(AttackError) as caught:
        attempt(seen(), TASK, Order("own", Ig(), stream(0, purpose="attack")), ResumeStore())
    assert words in str(caught.value)


def test_what_fewer_values_than_pixels_are_explained_by_is_not_an_explanation() -> None:
    """Of any attack: 40 of an update's values are matched whole by images that are not the client's."""
    view = seen()
    shared = {name: torch.zeros_like(update, dtype=torch.bool) for name, update in view.update.items()}
    shared[max(shared, key=lambda name: shared[name].numel())].view(-1)[:40] = True
    sparse = dataclasses.replace(view, shared=shared)
    sgi = Order("sgi", Sgi(iterations=400), stream(0, purpose="attack"))
    found = attempt(sparse, TASK, sgi, ResumeStore())
    assert found.rebuilt.objective < 1e-4 and (found.explained, found.rebuilt.fit) == (False, None)


def test_what_any_image_explains_is_not_explained() -> None:
    """Behind sigmoids a first guess, which is noise, misses less than a ten-thousandth of an update: any image does."""
    torch.manual_seed(0)
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [each for inputs, stride in sizes for each in (nn.Conv2d(inputs, 12, 5, stride, 2), nn.Sigmoid())]
    task = ModuleTask("net", (1, 8, 8), 10, nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 10)))
    batch = PrivateBatch(digits().x[:1], digits().y[:1])
    view = undefended_view(task, *initial(task, 0), batch)
    weak = attempt(view, task, Order("sgi", Sgi(iterations=1), stream(0, purpose="attack")), ResumeStore())
    assert weak.rebuilt.objective < EXPLAINED and score(weak.rebuilt, batch).psnr.worst < 12
    assert (weak.explained, weak.rebuilt.fit) == (False, None)
    reads = Order("representation", Representation(), stream(0, purpose="attack"))
    strong = attempt(view, task, reads, ResumeStore())
    assert score(strong.rebuilt, batch).psnr.worst > 25
    assert strong.explained and strong.rebuilt.fit is not None


def test_what_explains_noisy_images_is_no_explanation_of_the_client_s() -> None:
    """Of any attack, r-gap among them: behind a channel it had 3.8 dB of an image at an objective of 3e-10."""
    noisy = dataclasses.replace(seen(), defenses=("channel-natural",))
    found = attempt(noisy, TASK, order(iterations=400), ResumeStore())
    assert found.rebuilt.objective < 1e-4 and (found.explained, found.rebuilt.fit) == (False, None)
    task = Task("cnn6", (3, 32, 32), 10)
    x = torch.rand(1, 3, 32, 32, generator=stream(0, purpose="image"))
    view = undefended_view(task, *initial(task, 0), PrivateBatch(x, torch.tensor([3])))
    solved = attempt(dataclasses.replace(view, defenses=("channel-white",)), task, R_GAP, ResumeStore())
    assert solved.rebuilt.objective < 1e-4 and (solved.explained, solved.rebuilt.fit) == (None, None)


def test_an_objective_that_is_not_finite_is_a_failed_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*_: object) -> Reconstruction:
        return Reconstruction(torch.zeros(1, 1, 8, 8), None, float("inf"), 1)

    monkeypatch.setattr("prunella.server.audit.attempt.find_attack", lambda name: Attack(Ig, endless, "none"))
    with pytest.raises(AttackError, match="not finite"):
        attempt(seen(), TASK, order(iterations=2), ResumeStore())


def test_a_control_of_several_images_must_explain_its_update(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guess in 128 digits looks like one of them: a run at the defaults had 16.7 dB at an objective of 0.02."""
    monkeypatch.setattr("prunella.server.audit.attempt.rebuilt_control", lambda scores: scores["psnr"] > 20)
    why = str(control_fault({"psnr": 40, "images": 16}, Fit(False, 0.02)))
    assert "do not explain" in why
    near = str(control_fault({"psnr": 40, "images": 16}, Fit(False, 0.002)))
    assert "do not explain" not in near and "other images may" in near
    assert "does not rebuild" in str(control_fault({"psnr": 9, "images": 1}, Fit(True)))
    for images, explained in ((16, True), (16, None)):
        assert control_fault({"psnr": 40, "images": images}, Fit(explained)) is None
    assert canary_outcome("control", "none", {"psnr": 9, "images": 1}, Fit(True))[:2] == ("control-failed", False)
    assert canary_outcome("control", "none", {"psnr": 40, "images": 1}, Fit(True)) == ("scored", True, None)
    assert canary_outcome("single", "none", {"psnr": 9, "images": 1}, Fit(True)) == ("scored", None, None)
    assert canary_outcome("single", "none", {"psnr": 40, "images": 4}, Fit(False))[0] == "control-failed"  # of a sum
    assert canary_outcome("single", "none", {"psnr": 40, "images": 4}, Fit(True)) == ("scored", True, None)


def test_a_control_of_one_image_is_explained_or_at_20_db(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was told from its look-alikes is "rebuilt" at 8.4 dB, which shows nothing of what an attack can do."""
    monkeypatch.setattr("prunella.server.audit.attempt.rebuilt_control", lambda scores: True)
    for worst, explained, holds in ((8.4, False, False), (8.4, None, False), (8.4, True, True), (20.0, False, True)):
        why = control_fault({"psnr": {"worst": worst}, "images": 1}, Fit(explained, 0.05))
        assert (why is None) is holds and (holds or "20 dB" in str(why))


def test_a_client_s_audit_that_explains_nothing_is_no_evidence() -> None:
    assert evidence("none", Fit(False), "baseline") == (False, None)
    assert evidence("dgp", Fit(True), "baseline", "stopped") == (False, "stopped")
    assert evidence("dgp", Fit(False), "baseline") == evidence("none", Fit(True), "baseline") == (None, None)


def test_behind_a_defense_that_transforms_images_finding_nothing_shows_nothing() -> None:
    """ATS trains on turned and shifted pictures: two of three that came back whole read as foreign images."""
    nothing = {"images": 2, "psnr": {"worst": 9.0, "random": 6.0, "other": 9.0}}
    for explained in (True, False, None):
        assert evidence("ats,dgp", Fit(explained), "baseline") == (False, TRANSFORMED)
        assert evidence("ats", Fit(explained), "traces") == evidence("ats", Fit(explained), "rebuilt") == (None, None)
        assert canary_outcome("single-defended", "ats", nothing, Fit(explained)) == ("scored", False, TRANSFORMED)
    assert canary_outcome("control-defended", "dgp", nothing, Fit(True)) == ("scored", None, None)
    assert evidence("mine:TURNS", Fit(True), "baseline") == (False, TRANSFORMED)
    assert evidence("mine:TURNS", Fit(False), "baseline") == (None, None)
    for near in (Fit(False, 0.005), Fit(None, 0.01)):  # which a report takes for explained
        assert evidence("mine:TURNS", near, "baseline") == (False, TRANSFORMED)
        assert evidence("mine:TURNS", near, "rebuilt") == (None, None)
    assert (
        evidence("mine:TURNS", Fit(False, 0.02), "baseline")
        == evidence("dgp", Fit(None, 0.0), "baseline")
        == (None, None)
    )
    assert canary_outcome("single-defended", "dgp", nothing, Fit(True), "doubted") == ("scored", False, "doubted")


@pytest.mark.parametrize(("own", "judged"), [(True, True), (None, False)])
def test_the_attack_s_own_word_counts(own: bool | None, judged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """SPEAR's objective is a share of units: a hundredth of them may disagree in a batch that it has found."""
    told = Reconstruction(torch.zeros(1, 1, 8, 8), None, 0.015, 1, explained=own)
    entry = ATTACKS["spear"]._replace(reconstruct=lambda *_, **__: told)
    monkeypatch.setitem(ATTACKS, "spear", entry)
    asked = Order("spear", entry.settings(), stream(0, purpose="attack"))
    assert attempt(seen(), TASK, asked, ResumeStore()).explained is judged
