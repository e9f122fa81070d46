import dataclasses

import pytest

from attacks import ATTACKS, PROBES, SECTIONS
from attacks.control import PSNR_FLOOR, undefended_view
from attacks.leakage import psnr
from core.config import parse_section, section_defaults
from core.randomness import stream
from core.types import PrivateBatch
from tasks.task import Task, initial
from tests.attacks.conftest import SHAPES


def test_every_attack_has_a_section_whose_defaults_parse() -> None:
    assert set(SECTIONS) == set(ATTACKS) | set(PROBES) and not set(ATTACKS) & set(PROBES)
    for name, settings in SECTIONS.items():
        assert parse_section(section_defaults(name, settings), name, settings) == settings()


def test_only_the_mask_aware_attack_claims_to_be_adaptive() -> None:
    for attack in ATTACKS.values():
        assert attack.adaptive == getattr(attack.settings(), "mask_aware", False) and attack.threat


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
