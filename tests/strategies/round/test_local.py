from dataclasses import replace

import pytest
import torch
from torch import nn

from prunella.core.errors import DefenseError
from prunella.core.randomness import rehearsal
from prunella.core.trees import apply_mask, full_mask, l2, subtract
from prunella.privacy import DEFENSES
from prunella.privacy.chain import build_chain, start
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.strategies.round.plan import LocalPlan
from prunella.tasks.examples import Examples
from prunella.tasks.models.precode import with_bottleneck
from prunella.tasks.training import Sgd


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.tanh(self.one(x.flatten(1))))


def setting(defenses: list[str], keep: float = 1.0):
    torch.manual_seed(0)
    net = with_bottleneck(lambda shape, classes: Net(), 4)((1, 2, 3), 3) if "precode" in defenses else Net()
    params = {n: p.detach().clone() for n, p in net.named_parameters()}
    mask = (
        {n: (torch.rand(p.shape) < keep) | (p.dim() == 1) for n, p in params.items()} if keep < 1 else full_mask(params)
    )
    received = Received(apply_mask(params, mask), mask, {})
    batches = [Examples(torch.rand(4, 1, 2, 3), torch.randint(3, (4,))) for _ in range(3)]
    chain = build_chain(defenses, {})
    state = start(chain, batches[0].x, received.params, {}, rehearsal(0, purpose="fit"))
    return Procedure(net, Sgd(0.1, 0.9, 0.01), chain), received, batches, state


def test_without_defense_one_client_is_plain_sgd() -> None:
    procedure, received, batches, state = setting(["none"])
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    net = Net()
    net.load_state_dict(received.params)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for batch in batches:
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(batch.x), batch.y).backward()
        optimiser.step()
    after = {n: p.detach() for n, p in net.named_parameters()}
    assert l2(subtract(result.outgoing.local, after)) < 1e-6
    assert l2(subtract(result.outgoing.update, subtract(after, received.params))) < 1e-6
    assert result.steps == 3 and result.applied == ("none",)


@pytest.mark.parametrize("defense", [name for name, entry in DEFENSES.items() if entry.stage != "data"])
def test_pruned_weights_stay_zero_and_nothing_pruned_leaves(defense: str) -> None:
    procedure, received, batches, state = setting([defense], keep=0.5)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    for name, kept in received.mask.items():
        assert not result.outgoing.local[name][~kept].any()
        assert not result.outgoing.update[name][~kept].any()
        assert not (result.outgoing.shared[name] & ~kept).any()


@pytest.mark.parametrize("defense", ["none", "dp-sgd", "soteria"])
def test_a_client_of_our_own_trains_in_training_mode_and_leaves_modes_as_they_were(defense: str) -> None:
    procedure, received, batches, state = setting([defense])
    seen = list[bool]()
    procedure.module.eval().register_forward_hook(lambda layer, *_: seen.append(layer.training))
    local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    assert seen and all(seen) and not procedure.module.training


def test_importance_is_the_mean_squared_gradient_also_outside_the_mask() -> None:
    procedure, received, batches, state = setting(["none"], keep=0.5)
    result = local_update(procedure, received, iter(batches[:1]), state, rehearsal(0, purpose="x"))
    net = Net()
    net.load_state_dict(received.params)
    nn.functional.cross_entropy(net(batches[0].x), batches[0].y).backward()
    for name, parameter in net.named_parameters():
        assert torch.allclose(result.importance[name], parameter.grad.square(), atol=1e-8)


def test_a_withheld_coordinate_carries_no_importance() -> None:
    procedure, received, batches, state = setting(["largest"], keep=0.5)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    withheld = 0
    for name, kept in received.mask.items():
        hidden = kept & ~result.outgoing.shared[name]
        withheld += int(hidden.sum())
        assert not result.importance[name][hidden].any()
    assert withheld > 0


@pytest.mark.parametrize("defenses", ["none", "dgp", "priprune"])
def test_a_plan_that_turns_half_way_trains_what_it_grew_and_the_chain_sees_the_new_mask(defenses: str) -> None:
    procedure, received, batches, state = setting([defenses], keep=0.5)
    seen: list[dict[str, torch.Tensor]] = []

    def readjust(params, squares, mask):
        seen.append(squares)
        moved = {n: ~m if m.dim() == 2 else m for n, m in mask.items()}
        return apply_mask(params, moved), moved

    plan = LocalPlan(readjust=readjust, before=1)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"), plan)
    moved = {n: ~m if m.dim() == 2 else m for n, m in received.mask.items()}
    assert all(torch.equal(result.base[n], moved[n]) for n in moved)
    assert not any(bool((result.outgoing.participates[n] & ~moved[n]).any()) for n in moved)
    assert bool(result.outgoing.local["one.weight"][moved["one.weight"]].any())
    assert not bool(result.outgoing.local["one.weight"][~moved["one.weight"]].any())
    assert len(seen) == 1 and result.steps == 3
    assert bool(seen[0]["one.weight"][~received.mask["one.weight"]].any())


@pytest.mark.parametrize("defense", ["fed-spa", "fed-ltp-client", "outpost"])
def test_a_plan_that_turns_half_way_is_one_round_to_the_chain(defense: str) -> None:
    """A second step 0 drew fed-spa's mask anew, and was a second round on fed-ltp's clock."""
    procedure, received, batches, state = setting([defense])
    procedure, numbers = (
        replace(procedure, sgd=Sgd(0.1), allows=lambda *asked: bool(numbers.append(asked[3:])) or True),
        [],
    )
    plan = LocalPlan(readjust=lambda params, squares, mask: (params, mask), before=1)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"), plan)
    whole = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    for name, update in whole.outgoing.update.items():
        torch.testing.assert_close(result.outgoing.update[name], update)
    if defense == "fed-ltp-client":
        assert float(result.state[defense]["clock"]["rounds"]) == 1
    assert numbers == [(0, True), (1, True), (2, False), (0, True), (1, False), (2, False)]


def test_a_plan_may_start_elsewhere_under_a_smaller_mask_and_the_update_is_against_what_was_received() -> None:
    procedure, received, batches, state = setting(["none"])
    smaller = {n: torch.ones_like(m) if m.dim() == 1 else torch.eye(*m.shape).bool() for n, m in received.mask.items()}
    start_at = apply_mask({n: t * 2 for n, t in received.params.items()}, smaller)
    plan = LocalPlan(start=start_at, mask=smaller)
    result = local_update(procedure, received, iter([]), state, rehearsal(0, purpose="x"), plan)
    expected = apply_mask(subtract(start_at, received.params), smaller)
    assert all(torch.equal(result.outgoing.update[n], expected[n]) for n in expected)
    assert result.steps == 0 and all(torch.equal(result.base[n], smaller[n]) for n in smaller)


def test_clipped_to_nothing_and_hardly_noised_nothing_moves() -> None:
    """The update is made of the private gradient alone: no other path from the batch to what leaves."""
    procedure, received, batches, state = setting(["dp-sgd"])
    quiet = build_chain(["dp-sgd"], {"dp-sgd.clip": 1e-12, "dp-sgd.noise-multiplier": 1e-3})
    procedure = Procedure(procedure.module, Sgd(0.1), quiet)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    assert l2(result.outgoing.update) < 1e-6 and result.steps == 3
    assert all(float(t.max()) < 1e-12 for t in result.importance.values())


def test_the_noise_of_a_private_round_is_divided_by_the_expected_batch() -> None:
    procedure, received, batches, state = setting(["dp-sgd"])
    loud = build_chain(["dp-sgd"], {"dp-sgd.clip": 1e-6, "dp-sgd.noise-multiplier": 1e6})
    sizes = []
    for expected in (1, 100):
        procedure = Procedure(procedure.module, Sgd(0.1), loud, expected)
        result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
        sizes.append(float(l2(result.outgoing.update)))
    assert sizes[0] / sizes[1] == pytest.approx(100, rel=1e-3)


def test_an_empty_batch_trains_on_noise_alone_and_buffers_are_refused() -> None:
    procedure, received, batches, state = setting(["dp-sgd"])
    empty = [Examples(batches[0].x[:0], batches[0].y[:0])]
    result = local_update(procedure, received, iter(empty), state, rehearsal(0, purpose="x"))
    assert l2(result.outgoing.update) > 0
    with pytest.raises(DefenseError, match="batch norm"):
        mixed = Received(received.params, received.mask, {"bn.running_mean": torch.zeros(2)})
        local_update(procedure, mixed, iter(batches), state, rehearsal(0, purpose="x"))


def test_importances_do_not_tell_what_mask_hiding_filled() -> None:
    procedure, received, batches, state = setting(["dgp", "mask-hiding"], keep=0.5)
    result = local_update(procedure, received, iter(batches), state, rehearsal(0, purpose="x"))
    assert not any(bool(result.importance[n][kept].any()) for n, kept in received.mask.items())
    assert any(bool(result.importance[n][~kept].any()) for n, kept in received.mask.items())
