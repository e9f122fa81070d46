"""The loop's defenses around a model on a device beside the CPU: one that is there, or one that is not
(``tests.pretended``), where two devices that meet raise as they would on a GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message
from flwr.serverapp.strategy import FedAvg
from torch import nn
from torch.nn.functional import cross_entropy

from prunella.core.trees import count, full_mask
from prunella.flower.defend import Defend
from prunella.flower.loop import protected
from prunella.flower.prune import Prune
from prunella.privacy import DEFENSES
from tests.flower.foreign import RATE, Seen, batches, load, make, run
from tests.flower.test_scheme import MODEL, SETTINGS, federation

CUDA = torch.device("cuda", 0)
# Part of the model; wants colours; wants a server that answers; not of an app of one's own.
CHAINS = [name for name in DEFENSES if name not in ("precode", "ats", "adgp", "leakage-guard", "mask-hiding")]


def there(model: nn.Module, message: Message, context: Context) -> Any:
    """A loop as people with a GPU write it, whose model goes home for the answer."""
    client = int(context.node_config["partition-id"])
    optimizer = torch.optim.SGD(model.to(CUDA).parameters(), lr=RATE)
    with protected(message, context, model, load(client)[0]) as guard:
        for x, y in batches(client, 2):
            guard.step(x.to(CUDA), y.to(CUDA), cross_entropy, optimizer)
    model.cpu()


@pytest.mark.parametrize("chain", [*CHAINS, "channel-white,gaussian,dgp,mask-hiding"])
def test_a_defense_works_on_a_model_there(chain: str, tmp_path: Path, pretended: None) -> None:
    seen = Seen()
    run(make([Defend()], there), tmp_path, {"defenses": chain}, rounds=2, tamper=seen)
    assert not seen.errors and seen.trained()[1]["prunella"]["applied"] == chain.split(",")


def scored(model: nn.Module) -> float:
    x, y = (t.to(CUDA) for t in load(8, 40))
    return float((model(x).argmax(dim=1) == y).float().mean())


def scheming(model: nn.Module, message: Message, context: Context) -> Any:
    """For schemes that have a half of theirs at the client."""
    optimizer = torch.optim.SGD(model.to(CUDA).parameters(), lr=RATE)
    with protected(message, context, model, accuracy=scored) as guard:
        for x, y in batches(int(context.node_config["partition-id"])):
            guard.step(x.to(CUDA), y.to(CUDA), cross_entropy, optimizer)
    model.cpu()


@pytest.mark.parametrize(
    ("scheme", "more"),
    [
        ("prunefl", SETTINGS),
        ("prunefl", {**SETTINGS, "granularity": "filter"}),
        ("feddst", {"adjust_interval": 1, "local_steps": 4}),
        ("lotteryfl", {"accuracy": 0.01, "step": 0.3}),
        ("lotteryfl", {"accuracy": 0.01, "step": 0.3, "granularity": "filter"}),
        ("magnitude", {"ramp_rounds": 1}),
    ],
)
def test_a_scheme_s_half_works_there_and_prunes(
    scheme: str, more: dict[str, Any], tmp_path: Path, pretended: None
) -> None:
    layer, _, seen = federation(scheming, tmp_path, scheme, 3, "dgp,mask-hiding", **more)
    assert not seen.errors
    mask = layer.masks[-1]
    assert scheme == "lotteryfl" or 0 < count(mask) < count(full_mask(mask))  # whose masks are its clients' own


def test_adgp_s_set_is_kept_there(tmp_path: Path, pretended: None) -> None:
    seen = Seen()
    layer = Prune(FedAvg(fraction_evaluate=0.0), "magnitude", rate=0.3, run_config={"defenses": "adgp"}, **MODEL)
    run(make([Defend()], scheming), tmp_path, {"defenses": "adgp"}, layer, rounds=3, tamper=seen)
    assert not seen.errors
