"""What a machine without an accelerator can check of the engine on one: devices.

Fake tensors (the fixture ``fake``) have a device and a shape and no values; those of the fixture ``pretended`` have
values, so that every attack runs as a whole; where PyTorch sees a GPU they are on that one.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import interpolate

from prunella.attacks import ATTACKS, ggl, portfolio, rog, seer
from prunella.attacks.denoise import Channel, Denoise
from prunella.attacks.engine.inversion import Inversion, reconstruct
from prunella.attacks.score.control import undefended_view
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from tests.shadow_client import ShadowClient

CUDA = torch.device("cuda", 0)


def seen(task: Task, images: int) -> ServerView:
    params, buffers = initial(task, seed=0)
    training = {"num_examples": images, "batch_size": images, "steps": 1, "learning_rate": 0.1}
    return ServerView(params, dict(params), buffers=buffers, received_buffers=dict(buffers), **training)


@pytest.mark.parametrize(
    ("model", "name"),
    [("cnn", name) for name in ("dlg", "idlg", "ig", "sgi", "gradinversion")]
    + [(model, name) for model in ("lenet-zhu", "vgg-4") for name in ("ig", "gradinversion")],  # the two engines
)
def test_attacks_stay_on_the_view_s_device(fake: None, name: str, model: str) -> None:
    task = Task(model, (3, 32, 32), 10)
    settings = dataclasses.replace(ATTACKS[name].settings(), iterations=2, restarts=2, labels_tried=2)
    found = ATTACKS[name].reconstruct(seen(task, 1).on(CUDA), task, settings, torch.Generator())
    assert found.x.device == CUDA and found.y is not None and found.y.device == CUDA
    assert found.x.shape == (1, 3, 32, 32)


@pytest.mark.parametrize("model", ["resnet10", "conv-2"])
def test_batches_with_labels_of_their_own_stay_there_too(fake: None, model: str) -> None:
    task = Task(model, (3, 32, 32), 10)
    view = dataclasses.replace(seen(task, 2), steps=2, num_examples=4, momentum=0.9)
    settings = Inversion(iterations=2, labels="optimise", tv=0.1)
    assert reconstruct(view.on(CUDA), task, settings, torch.Generator()).x.device == CUDA


def test_two_devices_raise_here_as_they_would_there(fake: None) -> None:
    """The positive control: the same attack on a view of which one part was left behind."""
    task = Task("cnn", (3, 32, 32), 10)
    torn = dataclasses.replace(seen(task, 1).on(CUDA), labels=torch.tensor([1]))
    with pytest.raises(RuntimeError, match="device"):
        reconstruct(torn, task, Inversion(iterations=1), torch.Generator())


QUICK = {"iterations": 2, "restarts": 1, "passes": 40, "label_passes": 400, "shadows": 24, "epochs": 1, "match": 2}
QUICK |= {"polish": 2, "draws": 2}
PLANTED = {"rob": "tests.attacks.test_rob:digits", "loki": "prunella.attacks.loki:cnn"}
PLANTED |= {"scale-mia": "prunella.attacks.scale_mia:conv_2", "fishing": "prunella.attacks.fishing:cnn"}
PLANTED |= {"spear": "tests.attacks.test_spear:mlp", "april": "tests.attacks.test_april:plain"}
PLANTED |= {"extraction": "tests.attacks.test_spear:mlp"}
CHAOTIC = ("portfolio", "components")  # a real GPU rounds otherwise, and these descents soon go another way
BATCHES = ("label", "components", "inverter", "representation", "spear", "sgi", "every-round")


def settings_of(name: str, folder: Path, public: PrivateBatch) -> Any:
    """Few iterations, and a network learnt in one pass where the attack needs a file of one."""
    settings = ATTACKS[name].settings()
    changes = {key: value for key, value in QUICK.items() if type(getattr(settings, key, None)) is int}
    if name == "ggl":
        ggl.save(folder / "ggl", ggl.train(public, 10, stream(0, purpose="prior"), epochs=1, latent=4))
    if name == "rog":
        rog.save(folder / "rog", rog.train(public.x, stream(0, purpose="prior"), epochs=1))
    if name == "seer":
        task, planting = Task("cnn", (1, 8, 8), 10), seer.Planting(batch=4, steps=1, width=8)
        shown, draw = Examples(public.x, public.y), stream(0, purpose="prior")
        seer.save(folder / "seer", seer.plant(task.build(), initial(task, 0)[0], shown, draw, planting)[1])
    learnt = {"prior": str(folder / name)} if name in ("ggl", "rog", "seer") else {}
    return dataclasses.replace(settings, **changes, **learnt)


@dataclasses.dataclass
class ShadowThere:
    """A shadow whose views lie on CUDA, as a benchmark's do; its public images are on the CPU."""

    here: ShadowClient

    @property
    def public(self) -> Examples:
        return self.here.public

    def send(self, *given: Any) -> ServerView:
        return self.here.send(*given).on(CUDA)


@pytest.mark.parametrize(
    ("name", "images", "known"),
    [(name, 4 if name in PLANTED and name != "april" else 1, True) for name in ATTACKS]
    + [(name, 2, False) for name in BATCHES]
    + [pytest.param("portfolio", 2, False, marks=pytest.mark.slow)],
)
def test_every_attack_makes_of_a_view_there_what_it_makes_here(
    name: str, images: int, known: bool, digits: PrivateBatch, batch, tmp_path: Path, pretended: None, monkeypatch
) -> None:
    """Few iterations of each, with its shadow or earlier view where it takes one. ``loki``'s and ``scale-mia``'s
    modules want larger images than digits are. What a portfolio learns stands for itself here."""
    monkeypatch.setattr(portfolio, "LEARNT", ())
    shape = (1, 28, 28) if name in ("loki", "scale-mia") else (1, 8, 8)
    # Its module fishes for noughts: the fourth is one.
    task, truth = Task(PLANTED.get(name, "cnn"), shape, 10), batch(13 if name == "fishing" else 0, images)
    if shape != (1, 8, 8):
        truth = PrivateBatch(interpolate(truth.x, shape[1:]), truth.y)
    public = PrivateBatch(digits.x[:200], digits.y[:200])
    view = undefended_view(task, *initial(task, 0), truth)
    # A tenth of the values did not arrive, as behind a defense, but in the planted layers.
    held = {n: torch.rand(u.shape, generator=stream(0, purpose="held")) < 0.9 for n, u in view.update.items()}
    if name not in PLANTED and name != "r-gap":
        view = dataclasses.replace(view, update={n: u * held[n] for n, u in view.update.items()}, defenses=("random",))
    view = dataclasses.replace(view, labels=truth.y if known else None)
    line, settings = ATTACKS[name], settings_of(name, tmp_path, public)
    shadow = ShadowClient(task, Examples(public.x, public.y), batch_size=images)
    found = list[Reconstruction]()
    for seen, player in ((view, shadow), (view.on(CUDA), ShadowThere(shadow))):
        more = line.taken(shadow=player, earlier=[seen])
        found.append(line.reconstruct(seen, task, settings, stream(0, purpose="attack"), **more))
    here, there = found
    assert there.x.device == CUDA and (there.y is None or there.y.device == CUDA)
    assert here.x.shape == there.x.shape and (here.y is None) == (there.y is None)
    near = 0.3 if name in CHAOTIC and torch.cuda.is_available() else 0.02
    torch.testing.assert_close(there.x.cpu(), here.x, atol=near, rtol=0)


def test_an_image_taken_out_of_noise_that_is_known_lies_there(view: ServerView, task: Task, digits, pretended) -> None:
    known = Channel(digits.x[:100], torch.tensor(0.1))
    how, draw = Denoise(iterations=2), stream(0, purpose="attack")
    found = ATTACKS["denoise"].reconstruct(view.on(CUDA), task, how, draw, known)
    assert found.y is not None and found.x.device == found.y.device == CUDA
