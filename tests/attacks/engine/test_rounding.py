"""What rounding costs, against the same update as the wire brings it."""

import dataclasses

import pytest
import torch
from torch import nn

from prunella.attacks.engine.matching import target_of
from prunella.attacks.engine.others import SHARE, as_near, missed, missed_by_others
from prunella.attacks.engine.rounding import lost, rounder
from prunella.attacks.score.control import undefended_view
from prunella.core.trees import Tree
from prunella.core.types import PrivateBatch, Reconstruction, ServerView
from prunella.tasks.public import digits
from prunella.tasks.task import ModuleTask, initial
from prunella.wire.rounding import Values, restore, round_tree

DIGITS = digits()
SEVENS = torch.nonzero(DIGITS.y == 7).flatten()[:9]
OWN = PrivateBatch(DIGITS.x[SEVENS[:1]], DIGITS.y[SEVENS[:1]])


def over_the_wire(update: Tree, values: Values) -> Tree:
    codes, scales = round_tree(update, {n: torch.ones_like(u, dtype=torch.bool) for n, u in update.items()}, values)
    return {n: restore(code, scales[n], torch.float32) if n in scales else code for n, code in codes.items()}


def net(activation: type[nn.Module]) -> tuple[ModuleTask, ServerView]:
    torch.manual_seed(0)
    sizes = ((1, 2), (12, 2), (12, 1))
    layers = [each for inputs, stride in sizes for each in (nn.Conv2d(inputs, 12, 5, stride, 2), activation())]
    task = ModuleTask("net", (1, 8, 8), 10, nn.Sequential(*layers, nn.Flatten(), nn.Linear(48, 10)))
    return task, dataclasses.replace(undefended_view(task, *initial(task, 0), OWN), labels=OWN.y)


def rounded(view: ServerView, values: str) -> ServerView:
    if values == "bfloat16":
        return dataclasses.replace(view, update={n: u.bfloat16() for n, u in view.update.items()})
    return dataclasses.replace(view, update=over_the_wire(view.update, values))  # type: ignore[arg-type]


@pytest.mark.parametrize("values", ["int8", "float16", "bfloat16"])
@pytest.mark.parametrize("activation", [nn.GELU, nn.Tanh])
def test_the_client_s_own_images_miss_what_rounding_costs_and_explain_the_update(
    activation: type[nn.Module], values: str
) -> None:
    task, exact = net(activation)
    view = rounded(exact, values)
    target, plain = (target_of(each, task.build(), True, 1) for each in (view, exact))
    assert rounder(exact.update) is None
    cost = lost(view, target, plain.flat)
    assert lost(exact, plain, plain.flat) == 0 < cost
    assert missed(target, OWN.x, OWN.y) == pytest.approx(cost, rel=0.01, abs=1e-9)
    assert not as_near(view, task, Reconstruction(OWN.x, OWN.y, 0.0, 1))
    others = [Reconstruction(DIGITS.x[at : at + 1], OWN.y, 0.0, 1) for at in SEVENS[1:].tolist()]
    assert all(as_near(view, task, each) for each in others)


def test_without_it_the_client_s_own_images_explained_nothing() -> None:
    task, exact = net(nn.GELU)
    target = target_of(rounded(exact, "int8"), task.build(), True, 1)
    assert missed(target, OWN.x, OWN.y) > SHARE * missed_by_others(target, OWN.x, OWN.y)


def test_where_rounding_costs_what_others_miss_nothing_is_explained() -> None:
    task, exact = net(nn.Sigmoid)
    view = rounded(exact, "int8")
    assert all(as_near(view, task, Reconstruction(DIGITS.x[at : at + 1], OWN.y, 0.0, 1)) for at in SEVENS.tolist())


def test_few_values_and_signs_lie_on_no_grid() -> None:
    some = torch.rand(400, generator=torch.Generator().manual_seed(0))
    for values in (torch.zeros(20), some[:1], torch.empty(0), some.sub(0.5).sign(), some, some.double()):
        assert rounder({"w": values}) is None
    codes = torch.arange(-127.0, 128)
    assert rounder({"w": codes * 0.3, "b": torch.zeros(3)}) is not None and rounder({"w": codes, "v": some}) is None
