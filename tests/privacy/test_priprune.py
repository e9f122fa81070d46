"""PriPrune: its gradient against autograd on the printed loss, its mask, its storage, its rate."""

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from prunella.core.randomness import rehearsal, stream
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, size, subtract
from prunella.privacy.chain import build_chain, start
from prunella.privacy.defense import Outgoing, State
from prunella.privacy.priprune import (
    MARGIN,
    PAPER_SIZE,
    PriPrune,
    alpha_gradient,
    gumbel_difference,
    priprune,
    sampled_share,
    soft_share,
)
from prunella.strategies.round.local import Procedure, Received, local_update
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task, initial
from prunella.tasks.training import Sgd

SHAPES = {"conv.weight": (4, 3), "conv.bias": (4,), "scale": ()}


def tree(seed: int, low: float = -1.0, high: float = 1.0) -> Tree:
    g = torch.Generator().manual_seed(seed)
    return {k: low + (high - low) * torch.rand(s, generator=g, dtype=torch.float64) for k, s in SHAPES.items()}


def task_loss(w: Tree) -> Tensor:
    """Any smooth loss that mixes the coordinates."""
    x = torch.tensor([0.3, -1.2, 0.7], dtype=torch.float64)
    return ((torch.tanh(w["conv.weight"] @ x + w["conv.bias"]) * w["scale"]) ** 2).sum() + w["conv.bias"].sum() ** 3


def printed_loss(alpha: Tree, state: State, received: Tree, setting: PriPrune) -> Tensor:
    """Eqs. 16 to 18 written out: Gumbel-softmax over [alpha, 1 - alpha], hard sample, composition, three terms."""
    w = {}
    for k in alpha:
        logits = torch.stack([alpha[k].log(), (1 - alpha[k]).log()])
        gumbel = torch.stack([torch.zeros_like(state["noise"][k]), state["noise"][k]])
        soft = torch.softmax((logits + gumbel) / setting.temperature, 0)[1]
        share = (soft > 0.5).double() - soft.detach() + soft
        stored = torch.where(state["held"][k], state["withheld"][k], received[k])
        w[k] = share * received[k] + (1 - share) * stored
    leaf = {k: t.detach().requires_grad_() for k, t in w.items()}
    gradient = dict(zip(leaf, torch.autograd.grad(task_loss(leaf), list(leaf.values())), strict=True))
    total = size(received)
    privacy = sum((-(g.numel() / total) * g.abs() / g.abs().sum() * alpha[k].log()).sum() for k, g in gradient.items())
    sharing = sum(a.sum() for a in alpha.values()) * setting.sharing_weight(total)
    return setting.lambda_acc * task_loss(w) + setting.lambda_pri * privacy + sharing


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_closed_form_equals_autograd_on_the_printed_loss(seed: int, temperature: float) -> None:
    setting = PriPrune(lambda_acc=3.0, lambda_pri=2.0, lambda_sha=1e-6, temperature=temperature)
    received, g = tree(seed), torch.Generator().manual_seed(seed)
    held = {k: torch.rand(t.shape, generator=g) > 0.4 for k, t in received.items()}
    state = {"alpha": tree(seed + 9, 0.1, 0.9), "withheld": apply_mask(tree(seed + 5), held), "held": held}
    start, state = priprune(setting).compose(received, state, rehearsal(seed, purpose="compose"))
    leaf = {k: t.detach().requires_grad_() for k, t in start.items()}
    gradient = dict(zip(leaf, torch.autograd.grad(task_loss(leaf), list(leaf.values())), strict=True))
    gap = apply_mask(subtract(received, state["withheld"]), held)
    closed = alpha_gradient(gradient, gap, state, received, setting)
    alpha = {k: t.clone().requires_grad_() for k, t in state["alpha"].items()}
    expected = torch.autograd.grad(printed_loss(alpha, state, received, setting), list(alpha.values()))
    for k, slope in zip(alpha, expected, strict=True):
        torch.testing.assert_close(closed[k], slope)
    full = full_mask(received)
    after = priprune(setting).observe(gradient, received, full, state, rehearsal(seed, purpose="observe"))
    for k in alpha:
        step = state["alpha"][k] - setting.mask_learning_rate * closed[k]
        torch.testing.assert_close(after["alpha"][k], step.clamp(MARGIN, 1 - MARGIN))


def test_the_sample_withholds_with_probability_alpha() -> None:
    alpha = {"w": torch.full((40_000,), 0.3)}
    noise = gumbel_difference(alpha, rehearsal(0, purpose="test"))
    assert abs(float(noise["w"].mean())) < 0.05 and abs(float(noise["w"].var()) - torch.pi**2 / 3) < 0.1
    for temperature in (0.2, 1.0, 5.0):
        assert abs(float(sampled_share(alpha, noise, temperature)["w"].double().mean()) - 0.7) < 0.01


def test_soft_decisions_become_hard_as_the_temperature_falls() -> None:
    alpha, noise = torch.tensor([0.2, 0.8]), torch.zeros(2)
    assert soft_share(alpha, noise, 1e-3).tolist() == [1.0, 0.0]
    torch.testing.assert_close(soft_share(alpha, noise, 1.0), 1 - alpha)


def test_withheld_weights_are_stored_and_rejoin() -> None:
    setting = PriPrune()
    received = {"w": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    local = {"w": torch.tensor([1.5, 2.5, 0.0, 4.5])}
    base = {"w": torch.tensor([True, True, False, True])}
    alpha = {"w": torch.tensor([0.999, 0.4, 0.9, 0.5])}
    state = {**priprune(setting).init(received), "alpha": alpha}
    update = apply_mask(subtract(local, received), base)
    out, state = priprune(setting).apply(Outgoing(update, base, base, local), state, rehearsal(0, purpose="test"))
    assert out.shared["w"].tolist() == out.participates["w"].tolist() == [False, True, False, False]
    assert out.update["w"].tolist() == [0.0, 0.5, 0.0, 0.0]
    assert state["held"]["w"].tolist() == [True, False, False, True]
    assert state["withheld"]["w"].tolist() == [1.5, 0.0, 0.0, 4.5]
    picks = [priprune(setting).compose(received, state, rehearsal(s, purpose="test"))[0]["w"] for s in range(300)]
    stacked = torch.stack(picks)
    assert bool((stacked[:, 1:3] == torch.tensor([2.0, 3.0])).all())
    assert float((stacked[:, 0] == 1.5).double().mean()) > 0.97
    assert 0.4 < float((stacked[:, 3] == 4.5).double().mean()) < 0.6


def test_without_a_privacy_weight_everything_is_shared() -> None:
    received, full = tree(0), full_mask(tree(0))
    defense = priprune(PriPrune(lambda_pri=0.0))
    state = defense.observe(tree(1), received, full, defense.init(received), rehearsal(0, purpose="test"))
    out, _ = defense.apply(Outgoing(received, full, full, received), state, rehearsal(0, purpose="test"))
    assert all(torch.equal(out.update[k], received[k]) for k in received)


def test_large_gradients_stay_home_small_ones_leave_zero_layers_do_not_break() -> None:
    gradient = {"w": torch.cat([torch.full((5,), 10.0), torch.full((95,), 0.1)]), "dead": torch.zeros(3)}
    defense = priprune(PriPrune())
    state = defense.init(gradient)
    for _ in range(20):
        state = defense.observe(gradient, gradient, full_mask(gradient), state, rehearsal(0, purpose="test"))
    assert bool((state["alpha"]["w"][:5] > 0.5).all()) and bool((state["alpha"]["w"][5:] < 0.5).all())
    assert bool((state["alpha"]["dead"] < 0.5).all())
    assert all(bool(((a >= MARGIN) & (a <= 1 - MARGIN)).all()) for a in state["alpha"].values())


def test_size_scaling_keeps_the_balance_of_the_paper() -> None:
    for n in (100, 20_000, PAPER_SIZE):
        assert PriPrune().lambda_pri / (n * PriPrune().sharing_weight(n)) == pytest.approx(15 / (PAPER_SIZE * 7e-6))
    assert PriPrune(as_printed=True).sharing_weight(100) == 7e-6


def test_the_rate_adapts_to_the_spread_of_the_gradient() -> None:
    def rate(power: float) -> float:
        g = torch.Generator().manual_seed(0)
        defense = priprune(PriPrune(lambda_sha=2e-5))
        like = {"w": torch.zeros(100, 100), "v": torch.zeros(5000)}
        scales = {k: torch.rand(t.shape, generator=g) ** power for k, t in like.items()}
        state = defense.init(like)
        for _ in range(30):
            step = {k: s * torch.randn(s.shape, generator=g) for k, s in scales.items()}
            state = defense.observe(step, like, full_mask(like), state, rehearsal(0, purpose="test"))
        return sum(int((a >= 0.5).sum()) for a in state["alpha"].values()) / size(like)

    flat, heavy = rate(1.0), rate(12.0)
    assert flat < 0.05 < heavy < 0.3


@pytest.mark.parametrize("factor", [0.0, 1.0, 10.0])
def test_the_weights_step_on_the_accuracy_loss_alone(factor: float) -> None:
    """Departure 7: line 9 of Algorithm 3 read with lambda_acc would be another learning rate."""
    task = Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    draw = stream(0, purpose="images")
    batch = Examples(torch.rand(4, 1, 8, 8, generator=draw), torch.arange(4))
    trained = {}
    for name in ("priprune", "none"):
        chain = build_chain([name], {"priprune.lambda-acc": factor} if name == "priprune" else {})
        state = start(chain, batch.x, params, {}, rehearsal(0, purpose="fit"))
        procedure = Procedure(task.build(), Sgd(0.25), chain)
        received = Received(params, full_mask(params), buffers)
        done = local_update(procedure, received, iter([batch] * 3), state, rehearsal(0, purpose="draws"))
        trained[name] = done.outgoing.local
    assert all(torch.equal(trained["priprune"][key], trained["none"][key]) for key in params)


def test_line_9_of_algorithm_3_is_a_learning_rate_times_lambda_acc() -> None:
    """Lines 5 to 10 in a loop, L_acc's part of line 9 with its factor, beside a client that has it in its rate."""
    setting, eta = PriPrune(lambda_acc=5.0), 0.02
    task = Task("cnn", (1, 8, 8), 10)
    params, buffers = initial(task, 0)
    draw = stream(0, purpose="images")
    batches = [Examples(torch.rand(4, 1, 8, 8, generator=draw), torch.arange(4)) for _ in range(3)]
    defense, module, generator = priprune(setting), task.build(), rehearsal(0, purpose="draws")
    w, state = defense.compose(params, defense.init(params), generator)
    for batch in batches:
        leaf = {key: tensor.detach().clone().requires_grad_() for key, tensor in w.items()}
        loss = setting.lambda_acc * cross_entropy(functional_call(module, leaf, (batch.x,)), batch.y)
        slope = dict(zip(leaf, torch.autograd.grad(loss, list(leaf.values())), strict=True))
        w = {key: w[key] - eta * slope[key] for key in w}
        plain = {key: g / setting.lambda_acc for key, g in slope.items()}
        state = defense.observe(plain, params, full_mask(params), state, generator)
    chain = build_chain(["priprune"], {"priprune.lambda-acc": setting.lambda_acc})
    procedure = Procedure(module, Sgd(eta * setting.lambda_acc), chain)
    begin = start(chain, batches[0].x, params, {}, rehearsal(0, purpose="fit"))
    received = Received(params, full_mask(params), buffers)
    done = local_update(procedure, received, iter(batches), begin, rehearsal(0, purpose="draws"))
    for key, tensor in w.items():
        torch.testing.assert_close(done.outgoing.local[key], tensor)
        torch.testing.assert_close(done.state["priprune"]["alpha"][key], state["alpha"][key])


def test_gradients_of_filters_that_are_gone_do_not_count_and_what_is_left_weighs_no_less() -> None:
    """Departure 8, beside the same gradient with zeros there: two of four rows and one of three columns are gone."""
    setting, kept = PriPrune(), full_mask(tree(0))
    kept["conv.weight"][[0, 2]] = kept["conv.weight"][:, 1] = False
    mask = {k: t.clone() for k, t in kept.items()}
    mask["conv.weight"][1, 0] = False  # one weight more, of a row and a column that others keep: it counts
    held = {k: torch.rand(t.shape, generator=stream(3, purpose="held")) > 0.4 for k, t in tree(0).items()}
    state = {"alpha": tree(1, 0.1, 0.9), "withheld": apply_mask(tree(2), held), "held": held, "noise": tree(3)}

    def learnt(gradient: Tree, inside: Mask) -> Tree:
        return priprune(setting).observe(gradient, tree(5), inside, state, rehearsal(0, purpose="test"))["alpha"]

    found = learnt(tree(4), mask)
    zeros, before = (learnt(gradient, full_mask(mask)) for gradient in (apply_mask(tree(4), kept), tree(4)))
    for k, counts in kept.items():
        torch.testing.assert_close(found[k][counts], zeros[k][counts])
        assert torch.equal(found[k][~counts], state["alpha"][k][~counts])
    ours, theirs = (each["conv.weight"][kept["conv.weight"]] for each in (found, before))
    assert bool((ours >= theirs).all()) and bool((ours > theirs).any())


def test_a_mask_of_single_weights_changes_nothing() -> None:
    single = {k: torch.rand(t.shape, generator=stream(1, purpose="mask")) > 0.2 for k, t in tree(0).items()}
    assert not bool(single["conv.weight"].all())
    state = {**priprune(PriPrune()).init(tree(0)), "noise": tree(3)}
    after = [
        priprune(PriPrune()).observe(tree(4), tree(5), mask, state, rehearsal(0, purpose="test"))["alpha"]
        for mask in (single, full_mask(single))
    ]
    assert all(torch.equal(after[0][k], after[1][k]) for k in single)
