"""An attack that is stopped and resumed ends where one that was never stopped does, bit for bit."""

import contextlib
import dataclasses
from pathlib import Path

import pytest
import torch

from prunella.attacks import ATTACKS, every_round, expectation, ggl, gradinversion, rog, unrolling
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.engine.resume import DescentFile, ResumeStore, fingerprint
from prunella.attacks.score.control import undefended_view
from prunella.core.errors import AttackError
from prunella.core.files import write_tree
from prunella.core.randomness import stream
from prunella.core.trees import apply_mask
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.task import Task

BATCHED = Inversion(iterations=20, restarts=3, labels_tried=3, tolerance=0.0, max_images=2)
EVERY = 10  # iterations from one saving to the next


class Stopped(Exception):
    pass


def stop_at(monkeypatch: pytest.MonkeyPatch, savings: int) -> None:
    """The process ends right after so many savings."""
    left, write = [savings], DescentFile._write

    def counted(self, tree, plain):  # noqa: ANN001, ANN202
        write(self, tree, plain)
        left[0] -= 1
        if not left[0]:
            raise Stopped

    monkeypatch.setattr("prunella.attacks.engine.resume.DescentFile._write", counted)


def equal(a: list[Reconstruction], b: list[Reconstruction]) -> bool:
    return all(
        torch.equal(one.x, two.x) and torch.equal(one.y, two.y) and one.objective == two.objective
        and one.iterations == two.iterations
        for one, two in zip(a, b, strict=True)
    )  # fmt: skip


@pytest.mark.parametrize("savings", [1, 3, 6])
@pytest.mark.parametrize(
    "settings",
    [
        BATCHED,
        dataclasses.replace(BATCHED, optimizer="lbfgs", labels_tried=1),
        dataclasses.replace(BATCHED, labels="optimise", restarts=1, signed=False),
        dataclasses.replace(BATCHED, labels="optimise", optimizer="lbfgs", restarts=1),
    ],
    ids=["adam", "lbfgs", "adam-labels", "lbfgs-labels"],
)
def test_stopped_and_resumed(
    settings: Inversion, savings: int, view: ServerView, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attack(store: ResumeStore | None) -> list[Reconstruction]:
        return [reconstruct(view, task, settings, stream(0, purpose="attack"), store)]

    whole = attack(None)
    with monkeypatch.context() as patch:
        stop_at(patch, savings)
        try:
            attack(ResumeStore(tmp_path, every=EVERY))
        except Stopped:
            pass
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert files and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert equal(whole, attack(ResumeStore(tmp_path, every=EVERY)))
    assert equal(whole, attack(ResumeStore(tmp_path, every=EVERY))), "over: read, not computed"


@pytest.fixture(scope="module")
def prior(digits: PrivateBatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a generator for ``ggl`` and a repairing network for ``rog``."""
    folder, images = tmp_path_factory.mktemp("prior"), PrivateBatch(digits.x[:64], digits.y[:64])
    ggl.save(folder / "ggl", ggl.train(images, 10, stream(0, purpose="prior"), epochs=1))
    rog.save(folder / "rog", rog.train(images.x, stream(0, purpose="prior"), epochs=1))
    return folder


def long_attacks(prior: Path, earlier: ServerView) -> dict[str, tuple[object, dict[str, object]]]:
    """Every other attack that descends, with settings that do not end early and what else it must be given."""
    searched = {"iterations": 50, "restarts": 2, "tolerance": 0.0, "max_images": 1}
    inverted = {"iterations": 30, "restarts": 2, "labels_tried": 2, "tolerance": 0.0}
    return {
        "ggl": (ggl.Ggl(prior=str(prior / "ggl"), **searched), {}),
        "ggl-lbfgs": (ggl.Ggl(prior=str(prior / "ggl"), optimizer="lbfgs", **searched), {}),
        "rog": (rog.Rog(prior=str(prior / "rog"), **searched), {}),
        "gradinversion": (gradinversion.GradInversion(**inverted), {}),
        "gradinversion-lbfgs": (gradinversion.GradInversion(optimizer="lbfgs", **inverted), {}),
        "expectation": (expectation.Expectation(draws=2, **inverted), {}),
        "unrolling": (unrolling.Unrolling(**inverted), {"earlier": [earlier]}),
        "every-round": (every_round.EveryRound(**inverted), {"earlier": [earlier]}),
    }


@pytest.mark.parametrize(
    "name",
    ["ggl", "ggl-lbfgs", "rog", "gradinversion", "gradinversion-lbfgs", "expectation", "unrolling", "every-round"],
)
def test_every_attack_that_descends_is_resumed(
    name: str, task, fresh, batch, prior, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped at its second saving and again two savings later."""
    view = undefended_view(task, *fresh, batch(0, 1))
    withheld = {n: t.abs() >= t.abs().flatten().quantile(0.5) for n, t in view.update.items()}
    view = dataclasses.replace(view, shared=withheld, update=apply_mask(view.update, withheld))
    settings, more = long_attacks(prior, view)[name]
    kept = tmp_path / "kept"

    def attack(store: ResumeStore | None) -> list[Reconstruction]:
        run = ATTACKS[name.removesuffix("-lbfgs")].reconstruct
        return [run(view, task, settings, stream(0, purpose="attack"), **more, resume=store)]

    whole = attack(None)
    for _ in range(2):
        with monkeypatch.context() as patch, pytest.raises(Stopped):
            stop_at(patch, 2)
            attack(ResumeStore(kept, every=EVERY))
    assert equal(whole, attack(ResumeStore(kept, every=EVERY)))
    other = dataclasses.replace(settings, max_images=3)
    with pytest.raises(AttackError, match="belongs to an attack with other settings"):
        ATTACKS[name.removesuffix("-lbfgs")].reconstruct(
            view, task, other, stream(0, purpose="attack"), **more, resume=ResumeStore(kept)
        )


def test_another_prior_is_another_attack(task, view, digits, tmp_path: Path) -> None:
    """The file has the same name; what it makes is not the same."""
    images = PrivateBatch(digits.x[:64], digits.y[:64])
    settings = ggl.Ggl(prior=str(tmp_path / "ggl"), iterations=2, restarts=1)
    for seed, wrong in ((0, False), (1, True)):
        ggl.save(tmp_path / "ggl", ggl.train(images, 10, stream(seed, purpose="prior"), epochs=1))
        with pytest.raises(AttackError, match="other settings") if wrong else contextlib.nullcontext():
            ggl.reconstruct(view, task, settings, stream(0, purpose="a"), ResumeStore(tmp_path / "kept"))


def test_the_memory_s_bound_does_not_change_what_is_found(task, view) -> None:
    settings = Inversion(iterations=8, restarts=6, labels_tried=1, signed=False, tolerance=0.0)
    found = [
        reconstruct(view, task, dataclasses.replace(settings, max_images=n), stream(0, purpose="a")) for n in (1, 2, 16)
    ]
    for other in found[1:]:
        torch.testing.assert_close(found[0].x, other.x, rtol=1e-3, atol=1e-4)


def test_a_folder_of_another_attack_is_refused(task, view, tmp_path) -> None:
    short = Inversion(iterations=2)
    reconstruct(view, task, short, stream(0, purpose="a"), ResumeStore(tmp_path))
    for settings, seed in ((dataclasses.replace(short, tv=0.1), 0), (short, 1)):
        with pytest.raises(AttackError, match="belongs to an attack with other settings"):
            reconstruct(view, task, settings, stream(seed, purpose="a"), ResumeStore(tmp_path))
    (tmp_path / "descent-000.safetensors").write_bytes(b"\x80\x04.")
    with pytest.raises(AttackError, match="not a descent that can be resumed"):
        reconstruct(view, task, short, stream(0, purpose="a"), ResumeStore(tmp_path))
    write_tree(tmp_path / "descent-000.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(AttackError, match="not a prunella.descent"):
        reconstruct(view, task, short, stream(0, purpose="a"), ResumeStore(tmp_path))


def test_a_fingerprint_tells_settings_shapes_and_values_apart() -> None:
    x = torch.arange(4.0)
    prints = {fingerprint(s, [t]) for s in (1, 2) for t in (x, x.view(2, 2), x + 1, -x)}
    assert len(prints) == 8 and fingerprint(1, [x]) == fingerprint(1, [x.clone()])


def test_whoever_listens_hears_every_iteration_and_changes_nothing(view: ServerView, task: Task) -> None:
    heard: list[tuple[int, int, float]] = []
    settings = Inversion(iterations=6, restarts=2, labels_tried=1, tolerance=0.0)
    store = ResumeStore(tell=lambda *now: heard.append(now))
    listened = reconstruct(view, task, settings, stream(0, purpose="attack"), store)
    assert equal([listened], [reconstruct(view, task, settings, stream(0, purpose="attack"))])
    assert [(number, iteration) for number, iteration, _ in heard] == [(n, i) for n in (0, 1) for i in range(7)]
    lowest = [objective for number, _, objective in heard if number == 0]
    assert lowest[0] == float("inf") and lowest[1:] == sorted(lowest[1:], reverse=True)


@pytest.mark.parametrize("settings", [BATCHED, dataclasses.replace(BATCHED, optimizer="lbfgs", labels_tried=1)])
def test_a_descent_that_is_out_of_time_ends_with_the_best_it_has(settings, fresh, task, batch) -> None:
    view = undefended_view(task, *fresh, batch(0, 1))
    late, never = ResumeStore(deadline=0.0), ResumeStore(deadline=float("inf"))
    hasty, calm, free = (
        reconstruct(view, task, settings, stream(0, purpose="attack"), resume) for resume in (late, never, None)
    )
    assert late.cut and hasty.iterations == 0 and hasty.x.shape == free.x.shape
    assert not never.cut and torch.equal(calm.x, free.x) and calm.objective == free.objective < hasty.objective


def test_a_descent_that_ends_by_its_own_rule_is_not_cut(fresh, task, batch) -> None:
    view, store = undefended_view(task, *fresh, batch(0, 1)), ResumeStore(deadline=0.0)
    done = dataclasses.replace(BATCHED, tolerance=10.0, restarts=1, labels_tried=1)
    reconstruct(view, task, done, stream(0, purpose="attack"), store)
    assert not store.cut
