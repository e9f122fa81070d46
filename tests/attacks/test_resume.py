"""An attack that is stopped and taken up again ends where one that was never stopped does, bit for bit."""

import dataclasses
from pathlib import Path

import pytest
import torch

from attacks.control import undefended_view
from attacks.inversion import Inversion, reconstruct, reconstruct_views
from attacks.resume import Shelf, fingerprint
from core.errors import AttackError
from core.files import write_tree
from core.randomness import stream
from core.trees import full_mask
from core.types import Reconstruction, ServerView
from tasks.task import Task

BATCHED = Inversion(iterations=40, restarts=3, labels_tried=3, tolerance=0.0, max_images=2)


class Stopped(Exception):
    pass


def stop_at(monkeypatch: pytest.MonkeyPatch, savings: int) -> None:
    """The process ends right after so many savings."""
    left, write = [savings], Shelf.slot.__globals__["Slot"]._write

    def counted(self, tree, plain):  # noqa: ANN001, ANN202
        write(self, tree, plain)
        left[0] -= 1
        if not left[0]:
            raise Stopped

    monkeypatch.setattr("attacks.resume.Slot._write", counted)


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
def test_stopped_and_taken_up_again(
    settings: Inversion, savings: int, view: ServerView, task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def attack(shelf: Shelf | None) -> list[Reconstruction]:
        return [reconstruct(view, task, settings, stream(0, purpose="attack"), shelf)]

    whole = attack(None)
    with monkeypatch.context() as patch:
        stop_at(patch, savings)
        try:
            attack(Shelf(tmp_path, every=20))
        except Stopped:
            pass
    files = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert files and all(path.stat().st_mode & 0o777 == 0o600 for path in files)
    assert equal(whole, attack(Shelf(tmp_path, every=20)))
    assert equal(whole, attack(Shelf(tmp_path, every=20))), "over: read, not computed"


def views_of(task, fresh, batch) -> list[ServerView]:  # noqa: ANN001
    views = [undefended_view(task, *fresh, batch(i, 1)) for i in range(3)]
    return [dataclasses.replace(view, shared=full_mask(view.update)) for view in views]


def test_views_of_several_clients_together_and_taken_up(task, fresh, batch, tmp_path, monkeypatch) -> None:
    views = views_of(task, fresh, batch)
    settings = Inversion(iterations=60, restarts=2, max_images=4)

    def attack(shelf: Shelf | None) -> list[Reconstruction]:
        return reconstruct_views(views, task, settings, stream(0, purpose="attack"), shelf)

    whole = attack(None)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        stop_at(patch, 2)
        attack(Shelf(tmp_path, every=20))
    assert equal(whole, attack(Shelf(tmp_path, every=20)))
    truth = [batch(i, 1) for i in range(3)]
    errors = torch.tensor([[float((f.x - t.x).square().mean()) for t in truth] for f in whole])
    assert errors.argmin(dim=1).tolist() == [0, 1, 2] and [int(f.y) for f in whole] == [int(t.y) for t in truth]


def test_the_memory_s_bound_does_not_change_what_is_found(task, fresh, batch) -> None:
    views = views_of(task, fresh, batch)
    found = [
        reconstruct_views(views, task, Inversion(iterations=8, signed=False, max_images=n), stream(0, purpose="a"))
        for n in (1, 2, 16)
    ]
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            torch.testing.assert_close(one.x, two.x, rtol=1e-3, atol=1e-4)


def test_views_that_do_not_belong_together_and_folders_of_another_attack(task, fresh, batch, view, tmp_path) -> None:
    other = dataclasses.replace(view, params={n: p + 1 for n, p in view.params.items()})
    for views in ([], [view, other], [undefended_view(task, *fresh, batch(0, 2))]):
        with pytest.raises(AttackError, match="one batch"):
            reconstruct_views(views, task, BATCHED, stream(0, purpose="a"))
    short = Inversion(iterations=2)
    reconstruct(view, task, short, stream(0, purpose="a"), Shelf(tmp_path))
    for settings, seed in ((dataclasses.replace(short, tv=0.1), 0), (short, 1)):
        with pytest.raises(AttackError, match="belongs to an attack with other settings"):
            reconstruct(view, task, settings, stream(seed, purpose="a"), Shelf(tmp_path))
    (tmp_path / "descent-000.safetensors").write_bytes(b"\x80\x04.")
    with pytest.raises(AttackError, match="no descent that can be taken up"):
        reconstruct(view, task, short, stream(0, purpose="a"), Shelf(tmp_path))
    write_tree(tmp_path / "descent-000.safetensors", {"x": torch.zeros(1)})
    with pytest.raises(AttackError, match="not a prunella.descent"):
        reconstruct(view, task, short, stream(0, purpose="a"), Shelf(tmp_path))


def test_a_fingerprint_tells_settings_shapes_and_values_apart() -> None:
    x = torch.arange(4.0)
    prints = {fingerprint(s, [t]) for s in (1, 2) for t in (x, x.view(2, 2), x + 1, -x)}
    assert len(prints) == 8 and fingerprint(1, [x]) == fingerprint(1, [x.clone()])
