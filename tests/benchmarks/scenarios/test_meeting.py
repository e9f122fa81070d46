"""A cell of the board: an undefended image comes back, noise does not, and somebody's own attack is asked."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from prunella.attacks import Attack
from prunella.attacks.ig import Ig
from prunella.benchmarks.engine import machine
from prunella.benchmarks.engine.images import class_means, client_images, first
from prunella.benchmarks.scenarios import meeting
from prunella.benchmarks.scenarios.scenario import SCENARIOS, Scenario
from prunella.core.errors import AttackError, DefenseError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.privacy import DEFENSES
from prunella.privacy.defense import Entry, UpdateDefense, ignore_gradient, keep_received
from prunella.privacy.none import NoDefense
from prunella.tasks.data import Partition


def grey(view: Any, task: Any, settings: Any, generator: Any, shadow: Any = None, earlier: Any = ()) -> Reconstruction:
    assert (shadow is None or shadow.public.x.shape[1:] == task.shape) and not earlier
    return Reconstruction(torch.full((view.num_examples, *task.shape), 0.5), view.labels, 0.0, 1)


def helpless(view: Any, task: Any, settings: Any, generator: Any) -> Reconstruction:
    raise AttackError("nothing found")


def nowhere(view: Any, task: Any, settings: Any, generator: Any) -> Reconstruction:
    return Reconstruction(torch.full((view.num_examples, *task.shape), torch.nan), view.labels, torch.nan, 1)


CUDA = torch.device("cuda", 0)
GREY, HELPLESS, NOWHERE = (Attack(Ig, how, "nobody") for how in (grey, helpless, nowhere))
MINE: Entry = DEFENSES["top-k"]


def cell(defenses: str, attack: str = meeting.STRONG, **changed: Any) -> dict[str, Any]:
    scenario = Scenario("", "digits", updates=2, passes=600, **changed)
    return {**scenario.settings("toy"), "defenses": defenses, "raw": {}, "attack": attack}


def test_without_a_defense_images_come_back_and_nothing_is_learnt() -> None:
    found = meeting.meet(cell("none"), 0, None)
    assert found.keys() == {meeting.MATCHING, meeting.MEAN}
    row = found[meeting.MATCHING]
    assert row["psnr"] > 30 and row["rebuilt"] == 1 and row["null"] < 25 and row["seconds"] > 0
    assert row["psnr"] == pytest.approx((row["psnr.0"] + row["psnr.1"]) / 2)
    assert found[meeting.MEAN]["psnr"] < 20


@pytest.mark.parametrize(("version", "public"), [(1, False), (2, True)])
def test_matching_has_public_images_from_version_2_on_and_learns_nothing(
    version: int, public: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What version 1 measured stays what it was: the same cell, with nothing drawn from a shadow."""
    asked = list[tuple[Any, Any]]()

    def noted(view: Any, task: Any, settings: Any, draw: Any, shadow: Any, learn: bool) -> Reconstruction:
        asked.append((learn, shadow))
        return grey(view, task, settings, draw)

    monkeypatch.setattr(meeting, "portfolio", noted)
    meeting.meet(cell("none", version=version), 0, None)
    assert [(learn, shadow is not None) for learn, shadow in asked] == 2 * [(False, public)]


@pytest.mark.slow
def test_behind_noise_that_hides_everything_nothing_is_better_than_the_class_mean() -> None:
    """A limit: with a capacity of next to nothing the best attack is as good as none."""
    settings = {**cell("channel-natural"), "raw": {"channel-natural.kappa": 1e-3}}
    found = meeting.meet(settings, 0, None)
    assert found.keys() == {meeting.MATCHING, "inverter", "denoise"}
    blind = meeting.meet(cell("none"), 0, None)[meeting.MEAN]["psnr"]
    assert max(row["psnr"] for row in found.values()) < blind + 3


@pytest.mark.slow
def test_what_matching_explains_is_handed_on_and_what_it_does_not_is_learnt() -> None:
    hidden, masked = (meeting.meet(cell(chain), 0, None) for chain in ("dgp,mask-hiding", "random"))
    assert hidden.keys() == masked.keys() == {meeting.MATCHING, "inverter"}
    images = ("psnr.0", "psnr.1")
    assert [hidden["inverter"][image] != hidden[meeting.MATCHING][image] for image in images] == [True, True]
    assert [masked["inverter"][image] == masked[meeting.MATCHING][image] for image in images] == [True, True]
    assert masked[meeting.MATCHING]["psnr"] > 30 and hidden["inverter"]["psnr"] > 12


@pytest.mark.slow
def test_an_image_of_several_rounds_is_attacked_through_all_of_them_and_in_the_first_as_in_a_single_one() -> None:
    """More rounds never leave less: what one update gives, the first of several gives to the last digit."""
    few, many = (meeting.meet(cell("gaussian", rounds=rounds), 0, None) for rounds in (1, 3))
    assert many.keys() == {*few.keys(), meeting.EVERY} and many[meeting.EVERY]["psnr"] > 20
    for name, row in few.items():
        assert row["psnr"] > 20 and many[name] == {**row, "seconds": many[name]["seconds"]}


def test_somebody_s_own_attack_is_asked_alone_and_one_that_fails_leaves_the_class_mean() -> None:
    found = meeting.meet(cell("none", f"{__name__}:GREY"), 0, None)
    assert found.keys() == {f"{__name__}:GREY", meeting.MEAN}
    for name in (f"{__name__}:HELPLESS", f"{__name__}:NOWHERE"):
        failed = meeting.meet(cell("none", name), 0, None)
        assert failed[name]["psnr"] == failed[meeting.MEAN]["psnr"]


def withhold(settings: Any) -> UpdateDefense:
    def refuse(*given: Any) -> Any:
        raise DefenseError("nothing leaves")

    return UpdateDefense(lambda like: {}, keep_received, ignore_gradient, refuse)


SILENT = Entry("update", NoDefense, withhold)


def test_an_answer_is_one_guess_an_image() -> None:
    """A bag of public pictures would always hold one that is like enough, and a guess of one of four is of four."""
    images = first(client_images("digits", None, Partition("iid", clients=1)), 60)
    truth, others = PrivateBatch(images.x[:4], images.y[:4]), images.take(torch.arange(20, 60))
    means = class_means(images, 10)
    bag = Reconstruction(torch.cat([torch.zeros_like(truth.x), truth.x]), None, 0.0, 1)
    assert all(row["psnr"] < 15 for row in meeting.scored(bag, truth, others, means))
    blind = meeting.scored(Reconstruction(means[truth.y], None, 0.0, 1), truth, others, means)
    for at in range(4):
        one = meeting.scored(Reconstruction(truth.x[at : at + 1], None, 0.0, 1), truth, others, means)
        assert [row["psnr"] for row in one] == [100 if i == at else blind[i]["psnr"] for i in range(4)]


def test_a_client_that_sends_nothing_leaves_the_class_mean() -> None:
    found = meeting.meet(cell(f"{__name__}:SILENT"), 0, None)
    blind = meeting.meet(cell("none", f"{__name__}:HELPLESS"), 0, None)[meeting.MEAN]
    assert found.keys() == {meeting.MATCHING} and found[meeting.MATCHING]["psnr"] == blind["psnr"]
    assert found[meeting.MATCHING]["sent"] == 0.0


def test_noise_is_expected_of_channels_dp_and_whatever_is_not_known() -> None:
    chains = ("channel-natural,dgp", "dp-sgd", "gaussian", f"{__name__}:MINE", "dgp", "top-k,mask-hiding", "none")
    assert [meeting.noisy(chain) for chain in chains] == [True, True, True, True, False, False, False]


def met_on_cuda(monkeypatch: pytest.MonkeyPatch, scenario: Scenario, chain: str) -> Any:
    """A cell whose attacks run on a device that is not there (``tests.pretended``): two devices that meet raise."""
    monkeypatch.setattr(machine, "_DEVICE", [CUDA])
    monkeypatch.setattr(meeting, "LEARNS_FROM", {"shadows": 12, "epochs": 1, "polish": 2})
    monkeypatch.setattr(meeting, "REBUILT", 2)
    monkeypatch.setattr(meeting, "ITERATIONS", 2)
    scenario = replace(scenario, dataset="digits", updates=1, passes=100, trained=min(scenario.trained, 2))
    return meeting.meet({**scenario.settings("toy"), "defenses": chain, "raw": {}, "attack": meeting.STRONG}, 0, None)


@pytest.mark.parametrize("name", [name for name in SCENARIOS if not name.startswith("one-")])
def test_a_scenario_is_attacked_on_another_device(name: str, pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """On small digits, where the first two scenarios are the third's without its training, behind noise: everything is
    asked."""
    found = met_on_cuda(monkeypatch, SCENARIOS[name], "gaussian")
    assert found.keys() >= {meeting.MATCHING, "inverter"} and all(row["sent"] == 1 for row in found.values())


@pytest.mark.slow
@pytest.mark.parametrize("chain", ["channel-natural,dgp", "dgp,mask-hiding", "priprune", "precode", "dp-sgd"])
def test_a_chain_is_attacked_on_another_device(chain: str, pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = met_on_cuda(monkeypatch, Scenario("", "digits"), chain)
    assert found.keys() >= {meeting.MATCHING, "inverter"} and all(row["sent"] == 1 for row in found.values())
