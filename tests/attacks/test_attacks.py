"""What every attack must do; ``OWN_ATTACK=package.module:NAME`` in the environment asks it of somebody's own."""

import dataclasses
import os

import pytest
import torch

from prunella.attacks import ATTACKS, PROBES, SECTIONS, find_attack
from prunella.attacks.score.control import PSNR_FLOOR, undefended_view
from prunella.attacks.score.leakage import psnr, score
from prunella.core.config import parse_section, section_defaults
from prunella.core.errors import ConfigError
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch, ServerView
from prunella.tasks.task import Task, initial
from tests.attacks.conftest import SHAPES


def test_every_attack_has_a_section_whose_defaults_parse() -> None:
    assert set(SECTIONS) == set(ATTACKS) | set(PROBES) and not set(ATTACKS) & set(PROBES)
    for name, settings in SECTIONS.items():
        assert parse_section(section_defaults(name, settings), name, settings) == settings()


def test_only_the_mask_aware_attack_claims_to_be_adaptive() -> None:
    for attack in ATTACKS.values():
        assert attack.adaptive == getattr(attack.settings(), "mask_aware", False) and attack.threat


OWN = ATTACKS["ig"]._replace(threat="mine")


def copied(view: ServerView) -> dict[str, dict[str, torch.Tensor]]:
    """Its trees."""
    trees = {f.name: getattr(view, f.name) for f in dataclasses.fields(view)}
    return {name: {k: t.clone() for k, t in tree.items()} for name, tree in trees.items() if isinstance(tree, dict)}


@pytest.mark.parametrize("name", os.environ.get("OWN_ATTACK", "ig,r-gap").split(","))
def test_a_digit_is_rebuilt_the_same_way_twice_and_not_from_a_wrong_view(name: str, task, view, batch) -> None:
    """The contract: settings are frozen and default, the view stays as it is, the seed decides, images are in the box,
    what is undefended is recognised, and what comes of other weights is not. Labels are known."""
    attack, truth = find_attack(name), batch(0, 1)
    view = dataclasses.replace(view, labels=truth.y)
    before = copied(view)
    settings = attack.settings()
    assert dataclasses.is_dataclass(settings) and settings.__dataclass_params__.frozen and attack.threat
    found, again = (attack.reconstruct(view, task, settings, stream(0, purpose="attack")) for _ in range(2))
    assert torch.equal(found.x, again.x) and found.objective == again.objective
    assert found.x.shape == truth.x.shape and 0 <= float(found.x.min()) <= float(found.x.max()) <= 1
    after = copied(view)
    assert all(torch.equal(after[field][key], t) for field, tree in before.items() for key, t in tree.items())
    assert psnr(truth.x, found.x)[0] > PSNR_FLOOR
    wrong = dataclasses.replace(view, params=initial(task, 1)[0])
    missed = attack.reconstruct(wrong, task, settings, stream(0, purpose="attack"))
    assert psnr(truth.x, missed.x)[0] < PSNR_FLOOR - 3


@pytest.mark.parametrize("name", ["dlg", "idlg", "ig", "sgi"])
def test_rebuilds_an_undefended_image_and_not_another(name: str, task, fresh, same_label) -> None:
    attack, (truth, other) = ATTACKS[name], same_label
    seen = undefended_view(task, *fresh, truth)
    found = attack.reconstruct(seen, task, attack.settings(), stream(0, purpose="attack"))
    right, wrong = score(found, truth), score(found, other)
    assert right.psnr.mean >= PSNR_FLOOR and right.label_accuracy == 1.0
    assert right.psnr.mean > wrong.psnr.mean + 6 and right.ssim.mean > wrong.ssim.mean  # told apart at one label
    assert right.psnr.mean > right.psnr.random + 6 and right.psnr.other is None, "of one image, without others"


def test_somebody_s_own_attack_is_found_and_what_is_none_is_refused() -> None:
    assert find_attack(f"{__name__}:OWN") is OWN
    with pytest.raises(ConfigError, match="is a dict, not an attacks.Attack"):
        find_attack("prunella.attacks:ATTACKS")
    with pytest.raises(ConfigError, match="is the class Attack, not an attacks.Attack"):
        find_attack("prunella.attacks:Attack")
    with pytest.raises(ConfigError, match="did you mean 'sgi'"):
        find_attack("sgo")


@pytest.mark.parametrize("data", ["mnist", "cifar10"])
@pytest.mark.parametrize("name", ["dlg", "idlg", "ig", "sgi", "gradinversion"])
def test_a_photograph_is_rebuilt_on_zhu_s_lenet_and_is_no_other(name: str, data: str, photographs) -> None:
    both, attack = photographs(data, 2), ATTACKS[name]
    truth, other = PrivateBatch(both.x[:1], both.y[:1]), both.x[1:]
    task = Task("lenet-zhu", SHAPES[data], 10)
    short = dataclasses.replace(attack.settings(), iterations=200, restarts=1, labels_tried=1)
    sent = undefended_view(task, *initial(task, 0), truth)
    found = attack.reconstruct(sent, task, short, stream(0, purpose="attack"))
    assert psnr(truth.x, found.x)[0] > PSNR_FLOOR > psnr(other, found.x)[0] + 3
    assert found.y is not None and found.y.tolist() == truth.y.tolist()


def test_on_other_weights_than_the_client_had_every_attack_fails(photographs) -> None:
    """The wrong view: what was sent belongs to another model."""
    truth, task = photographs("mnist"), Task("lenet-zhu", SHAPES["mnist"], 10)
    sent = undefended_view(task, *initial(task, 0), truth)
    wrong = dataclasses.replace(sent, params=initial(task, 1)[0])
    for name in ("dlg", "idlg", "ig", "sgi", "gradinversion", "r-gap"):
        attack = ATTACKS[name]
        short = {"restarts": 1, "labels_tried": 1} if name != "r-gap" else {}
        settings = dataclasses.replace(attack.settings(), iterations=60, **short)
        found = attack.reconstruct(wrong, task, settings, stream(0, purpose="attack"))
        assert psnr(truth.x, found.x)[0] < PSNR_FLOOR - 3, name
