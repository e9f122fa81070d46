"""Single gradients against a loop and against Opacus."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from opacus import GradSampleModule
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy

import prunella.tasks.per_example
from prunella.core.errors import DefenseError
from prunella.core.trees import Tree, full_mask, l2, subtract, to_device
from prunella.privacy.defense import Step
from prunella.privacy.dp_sgd import clipped_sum, flat_weight
from prunella.tasks.datasets.digits import everything
from prunella.tasks.per_example import per_example_gradients, require_examples_apart, require_gradients
from prunella.tasks.task import Task, initial

# How a GPU rounds is its library's choice for a shape: ``pytest tests/tasks`` on a machine with one tells.
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"))]


def net_of(*layers: nn.Module) -> tuple[nn.Sequential, Tree]:
    torch.manual_seed(0)
    net = nn.Sequential(*layers)
    return net, {name: p.detach().clone() for name, p in net.named_parameters()}


X, Y = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 0, 1])


def conv() -> tuple[nn.Sequential, Tree]:
    return net_of(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4), nn.Linear(4, 3))


@pytest.mark.parametrize("floats", [1 << 26, 300, 1])
def test_equals_a_loop_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch, floats: int) -> None:
    monkeypatch.setattr(prunella.tasks.per_example, "FLOATS", floats)
    net, params = conv()
    chunks = list(per_example_gradients(net, params, {}, X, Y))
    together = {name: torch.cat([chunk[name] for chunk in chunks]) for name in params}
    for i in range(len(Y)):
        net.zero_grad()
        cross_entropy(net(X[i : i + 1]), Y[i : i + 1]).backward()
        for name, p in net.named_parameters():
            torch.testing.assert_close(together[name][i], p.grad, rtol=1e-4, atol=1e-6)


def test_dropout_that_is_in_evaluation_mode_drops_nothing() -> None:
    """Also where the same network was asked in training mode before."""
    net, params = net_of(nn.Flatten(), nn.Linear(16, 30), nn.Dropout(0.5), nn.Linear(30, 3))
    list(per_example_gradients(net, params, {}, X, Y))
    found = torch.cat([chunk["3.weight"] for chunk in per_example_gradients(net.eval(), params, {}, X, Y)])
    assert not any(layer.training for layer in net.modules())
    for i in range(len(Y)):
        net.zero_grad()
        cross_entropy(net(X[i : i + 1]), Y[i : i + 1]).backward()
        torch.testing.assert_close(found[i], net[3].weight.grad, rtol=1e-4, atol=1e-6)


class Asking(nn.Module):
    """Takes its input by name and asks what is in it, as transformers do."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.net(images if mask.all() else images * mask)
        return logits


def test_a_batch_of_named_tensors_has_the_gradients_of_its_examples() -> None:
    net, params = conv()
    named = {f"net.{name}": tensor for name, tensor in params.items()}
    mask = torch.ones_like(X)
    mask[2, :, 1:] = 0
    chunks = list(per_example_gradients(Asking(net), named, {}, {"images": X, "mask": mask}, Y))
    assert [len(chunk["net.0.weight"]) for chunk in chunks] == [1] * len(Y)
    want = next(iter(per_example_gradients(net, params, {}, X * mask, Y)))
    for i, chunk in enumerate(chunks):
        for name in params:
            torch.testing.assert_close(chunk[f"net.{name}"][0], want[name][i], rtol=1e-4, atol=1e-6)


class Recurrent(nn.Module):
    """What ``vmap`` has no rule for: the last of an LSTM's answers to the rows of an image."""

    def __init__(self) -> None:
        super().__init__()
        self.reads, self.out = nn.LSTM(4, 6, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        answer: torch.Tensor = self.out(self.reads(x[:, 0])[0][:, -1])
        return answer


def one_by_one(net: nn.Module, cast: bool = False) -> list[Tree]:
    """The oracle: a backward pass an example."""
    found = []
    for i in range(len(Y)):
        net.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            loss = cross_entropy(net(X[i : i + 1]), Y[i : i + 1])
        loss.backward()
        found.append({name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None})
    return found


@pytest.mark.parametrize("expected", [1, 16])
def test_where_vmap_has_no_rule_examples_are_computed_one_at_a_time(expected: int) -> None:
    torch.manual_seed(0)
    net = Recurrent()
    params = {name: p.detach().clone() for name, p in net.named_parameters()}
    found = list(per_example_gradients(net, params, {}, X, Y, expected))
    assert [len(rows["out.bias"]) for rows in found] == [1] * len(Y)
    for rows, want in zip(found, one_by_one(net), strict=True):
        for name in params:
            torch.testing.assert_close(rows[name][0], want[name], rtol=1e-4, atol=1e-6)


def test_layer_norm_under_autocast_too_and_the_same_network_without_it_together() -> None:
    net, params = net_of(nn.Flatten(), nn.Linear(16, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    for cast in (True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=cast):
            found = list(per_example_gradients(net, params, {}, X, Y, 8))
        assert [len(rows["1.weight"]) for rows in found] == ([1] * len(Y) if cast else [len(Y)])
        rows = {name: torch.cat([each[name] for each in found]) for name in params}
        for i, want in enumerate(one_by_one(net, cast)):
            for name in params:
                torch.testing.assert_close(rows[name][i], want[name], rtol=2e-2 if cast else 1e-4, atol=1e-2 * cast)


class Detached(torch.autograd.Function):
    """Written as before ``torch.func``, which cannot take its gradient."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, *slopes: torch.Tensor) -> Any:
        return slopes[0]


class Old(nn.Flatten):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Detached.apply(super().forward(x))  # type: ignore[no-any-return, no-untyped-call]


def test_what_has_no_gradient_of_one_example_is_known_from_random_ones() -> None:
    for first, refused in ((nn.Flatten(), False), (Recurrent(), False), (Old(), True)):
        net, params = net_of(first, nn.Linear(3 if isinstance(first, Recurrent) else 16, 3))
        asked = lambda: require_gradients(net, params, {}, X * torch.nan, Y, 8, cross_entropy)  # noqa: B023, E731
        if refused:
            with pytest.raises(RuntimeError, match="setup_context"):
                asked()
        else:
            asked()
    net, params = net_of(Recurrent())
    require_gradients(net, params, {}, X, Y, 8, lambda answer, y: cross_entropy(answer, y - 1))  # of labels from 1 on


def test_equals_opacus() -> None:
    net, params = conv()
    theirs = GradSampleModule(net, loss_reduction="sum")
    cross_entropy(theirs(X), Y, reduction="sum").backward()
    (ours,) = per_example_gradients(conv()[0], params, {}, X, Y)
    for name, p in theirs._module.named_parameters():
        torch.testing.assert_close(ours[name], p.grad_sample, rtol=1e-4, atol=1e-6)


def test_no_example_no_gradient_and_batch_norm_is_refused() -> None:
    net, params = conv()
    assert list(per_example_gradients(net, params, {}, X[:0], Y[:0])) == []
    mixed, params = net_of(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    with pytest.raises(DefenseError, match="batch norm"):
        list(per_example_gradients(mixed, params, {}, X, Y))


@pytest.mark.parametrize("name", ["cnn", "lenet", "lenet-zhu", "conv-1"])
@pytest.mark.parametrize("expected", [16, 64])
@pytest.mark.parametrize("device", DEVICES)
def test_no_bit_of_a_gradient_depends_on_who_else_is_in_the_batch(name: str, expected: int, device: str) -> None:
    task = Task(name, (1, 16, 16), 10)
    net, params = task.build().to(device), to_device(initial(task, 0)[0], device)
    x = torch.rand(20, 1, 16, 16, generator=torch.Generator().manual_seed(1)).to(device)
    y = torch.arange(20, device=device) % 10

    def gradients(rows: torch.Tensor) -> Tree:
        chunks = list(per_example_gradients(net, params, {}, x[rows], y[rows], expected))
        return {key: torch.cat([chunk[key] for chunk in chunks]) for key in params}

    whole = gradients(torch.arange(20))
    for rows in (torch.arange(1), torch.arange(15), torch.arange(1, 16), torch.arange(3, 20), torch.arange(19, -1, -1)):
        some = gradients(rows)
        assert all(torch.equal(some[key], whole[key][rows]) for key in params), f"{len(rows)} from {rows[0]}"


def test_on_a_gpu_the_order_of_sums_is_fixed_and_only_there(pretended: None) -> None:
    """What the test above asks of a GPU that is there, for machines without one."""
    task, asked = Task("cnn", (1, 8, 8), 10), list[bool]()

    def noted(answer: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        asked.append(torch.are_deterministic_algorithms_enabled() and torch.backends.cudnn.deterministic)
        return cross_entropy(answer, label)

    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        params, x = to_device(initial(task, 0)[0], device), torch.rand(2, 1, 8, 8).to(device)
        list(per_example_gradients(task.build(), params, {}, x, torch.tensor([0, 1]).to(device), 2, noted))
        assert not torch.are_deterministic_algorithms_enabled()
    assert asked[:2] == [False, False] and asked == sorted(asked) and asked.count(True) == asked.count(False)


WIDTHS = [(7, 10), (30, 3), (50, 10), (333, 10), (20, 5)]  # of a hidden layer, and of the answer


@pytest.mark.parametrize("expected", [3, 16, 64])
@pytest.mark.parametrize("widths", WIDTHS)
def test_no_bit_of_a_gradient_depends_on_its_place(widths: tuple[int, int], expected: int) -> None:
    """Where a kernel rounds a row by its place in the group, an example less moves all later ones up."""
    net, params = net_of(nn.Flatten(), nn.Linear(64, widths[0]), nn.Tanh(), nn.Linear(*widths))
    x = torch.rand(19, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    y = torch.arange(19) % widths[1]

    def gradients(rows: torch.Tensor) -> Tree:
        chunks = list(per_example_gradients(net, params, {}, x[rows], y[rows], expected))
        return {key: torch.cat([chunk[key] for chunk in chunks]) for key in params}

    whole = gradients(torch.arange(19))
    for rows in (torch.arange(1, 19), torch.arange(2, 19), torch.arange(7, 19), torch.arange(18, -1, -1)):
        some = gradients(rows)
        assert all(torch.equal(some[key], whole[key][rows]) for key in params), f"{len(rows)} from {rows[0]}"


class Bytes(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.float() / 255)  # type: ignore[no-any-return]


@pytest.mark.parametrize("side", [5, 7])
def test_images_of_whole_numbers_are_asked_about_as_others(side: int) -> None:
    torch.manual_seed(0)
    net = Bytes(nn.Flatten(), nn.Linear(side * side, 32), nn.Tanh(), nn.Linear(32, 4))
    params = {name: p.detach() for name, p in net.named_parameters()}
    x = torch.randint(256, (9, 1, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    whole = torch.cat([c["1.weight"] for c in per_example_gradients(net, params, {}, x, torch.arange(9) % 4, 3)])
    some = torch.cat([c["1.weight"] for c in per_example_gradients(net, params, {}, x[1:], torch.arange(1, 9) % 4, 3)])
    assert torch.equal(whole[1:], some)


def test_a_network_is_asked_once_how_it_rounds_and_draws_nothing_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    net, params = net_of(nn.Flatten(), nn.Linear(64, 7), nn.Dropout(0.5), nn.Linear(7, 10))
    x, y, asked = torch.rand(4, 1, 8, 8), torch.arange(4), list[Tree]()
    weights = prunella.tasks.per_example._random_weights

    def counted(given: Tree) -> Tree:
        asked.append(given)
        return weights(given)

    monkeypatch.setattr(prunella.tasks.per_example, "_random_weights", counted)
    torch.manual_seed(0)
    before = torch.rand(3)
    torch.manual_seed(0)
    for _ in range(2):
        list(per_example_gradients(net, params, {}, x, y, 4))
        require_examples_apart(net, params, {}, x, y)
    assert torch.equal(torch.rand(3), before) and len(asked) == 2  # how it rounds, and what it draws
    prunella.tasks.per_example._together.clear()
    torch.manual_seed(0)
    prunella.tasks.per_example.rounds_by_place(
        net, lambda p, i: functional_call(net, p, (i[None],)),
        lambda p, i, j: cross_entropy(functional_call(net, p, (i[None],)), j[None]), params, x, y, 4,
    )  # fmt: skip
    assert torch.equal(torch.rand(3), before) and len(asked) == 3


# ---- what a model draws


class Drawing(nn.Module):
    """Noise on the logits from anywhere."""

    def __init__(self, draw: Callable[[], torch.Tensor]) -> None:
        super().__init__()
        self.inner, self.outer, self.draw = nn.Linear(64, 32), nn.Linear(32, 10), draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.relu(self.inner(x.flatten(1))) * self.draw())  # type: ignore[no-any-return]


def dropping() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))


GLOBAL: dict[str, Callable[[], nn.Module]] = {
    "dropout": dropping,
    "tensor": lambda: Drawing(lambda: torch.rand(32)),
    "numpy": lambda: Drawing(lambda: torch.from_numpy(np.random.rand(32)).float()),  # noqa: NPY002
    "python": lambda: Drawing(lambda: torch.tensor([random.random() for _ in range(32)])),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("source", GLOBAL)
def test_with_the_draws_of_a_step_one_example_less_moves_the_sum_by_no_more_than_the_clip(
    source: str, named: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For any numbers that are the same on both sides: they do not depend on data. A seed that an app sets is not it,
    and of two steps the numbers are others."""
    monkeypatch.setattr(prunella.tasks.per_example, "any_seed", lambda: 7)
    net = (Asking if named else nn.Sequential)(GLOBAL[source]()).to(device)
    params = {name: p.detach() for name, p in net.named_parameters()}
    x, y = everything().x[10:90].to(device), everything().y[10:90].to(device)

    def total(rows: slice, clip: float = 0.05) -> Tree:
        torch.manual_seed(0)
        given = {"images": x[rows], "mask": torch.ones_like(x[rows])} if named else x[rows]
        each = lambda: per_example_gradients(net, params, {}, given, y[rows], 32)  # noqa: E731
        step = Step(params, full_mask(params), 0, 32, each, lambda: None)  # type: ignore[arg-type,return-value]
        return clipped_sum(step, lambda norms: flat_weight(norms, clip), full_mask(params))

    for less in (slice(1, 80), slice(0, 79)):
        assert 0.049 < float(l2(subtract(total(slice(0, 80)), total(less)))) <= 0.05
    same = total(slice(0, 80))
    monkeypatch.setattr(prunella.tasks.per_example, "any_seed", lambda: 8)
    assert float(l2(subtract(total(slice(0, 80)), same))) > 0.05, "nothing was drawn"


def test_the_draws_of_two_steps_are_others_though_an_app_seeds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    net = dropping()
    params = {name: p.detach() for name, p in net.named_parameters()}

    def gradient() -> torch.Tensor:
        torch.manual_seed(0)
        (chunk,) = per_example_gradients(net, params, {}, torch.ones(3, 1, 8, 8), torch.tensor([1, 1, 1]), 4)
        return chunk["4.weight"]

    one, other = gradient(), gradient()
    assert torch.equal(one[0], one[1]) and torch.equal(one[0], one[2]) and not torch.equal(one[0], other[0])


def counting() -> Callable[[], torch.Tensor]:
    calls = [1.0]

    def draw() -> torch.Tensor:
        calls[0] += 1e-3
        return torch.tensor(calls[0])

    return draw


def owned(own: torch.Generator) -> Callable[[], torch.Tensor]:
    return lambda: torch.rand(32, generator=own)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("source", [lambda: owned(torch.Generator()), counting])
def test_a_model_that_draws_from_elsewhere_or_counts_is_refused_whatever_weights_were_sent(
    source: Callable[[], Callable[[], torch.Tensor]], named: bool
) -> None:
    net = Drawing(source())
    model: nn.Module = Asking(net) if named else net
    params = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    x, y = torch.zeros(3, 1, 8, 8), torch.zeros(3, dtype=torch.int64)
    given = {"images": x, "mask": torch.ones_like(x)} if named else x
    with pytest.raises(DefenseError, match="a generator of its own"):
        require_examples_apart(model, params, {}, given, y)
    net.draw = lambda: torch.rand(32)
    require_examples_apart(Asking(net) if named else Drawing(net.draw), params, {}, given, y)


def crafted(task: Task, count: int, together: Callable[[int], torch.Tensor], device: str) -> Tree:
    """Weights of ``cnn`` under which the first logit is what rounding makes of a sum that no image changes: tanh(20) is
    1, and 2^100 times the difference of ``count`` rows and one row less decides about every gradient."""
    params = {key: torch.zeros_like(tensor, device=device) for key, tensor in initial(task, 0)[0].items()}
    params["0.2.bias"] += 20.0
    draw = torch.Generator().manual_seed(3)
    for _ in range(2000):
        direction = torch.randn(params["2.0.weight"].shape[1], generator=draw).to(device)
        params["2.0.weight"][0] = direction
        logits = [together(rows)(params) for rows in (count, count - 1)]  # type: ignore[operator]
        middle = (logits[0] + logits[1]) / 2
        if logits[0] != logits[1] and middle not in logits:
            params["2.0.weight"][0] = direction * 2.0**100
            params["2.0.bias"] = torch.full_like(params["2.0.bias"], -1e30)
            params["2.0.bias"][0], params["2.0.bias"][1] = -middle * 2.0**100, 0.0
            return params
    pytest.skip("this machine rounds alike whatever the number of rows")


@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_blow_rounding_up_move_the_sum_by_no_more_than_the_clip(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, count = Task("cnn", (1, 8, 8), 3), 16
    net, x, y = task.build().to(device), everything().x[10:26].to(device), torch.full((16,), 2, device=device)

    def together(rows: int) -> Callable[[Tree], torch.Tensor]:
        def first(params: Tree) -> torch.Tensor:
            each = torch.vmap(lambda image: functional_call(net, params, (image[None],)))
            with torch.no_grad():
                return each(x[:rows])[0, 0, 0]

        return first

    params = crafted(task, count, together, device)  # type: ignore[arg-type]

    def moved() -> float:
        sums = []
        for begin in (0, 1):
            images, labels = x[begin:], y[begin:]
            step = Step(params, full_mask(params), 0, count, lambda a=images, b=labels: gradients(a, b), lambda: None)  # type: ignore[misc,arg-type,return-value]
            sums.append(clipped_sum(step, lambda norms: flat_weight(norms, 1.0), full_mask(params)))
        return float(l2(subtract(*sums)))

    gradients = lambda a, b: per_example_gradients(net, params, {}, a, b, count)  # noqa: E731
    assert moved() <= 1.0
    gradients = lambda a, b: per_example_gradients(net, params, {}, a, b, 1)  # noqa: E731
    monkeypatch.setattr(prunella.tasks.per_example, "group_of", lambda _: len(x))
    assert moved() <= 1.0
    alone = vmap(grad(lambda p, i, j: cross_entropy(functional_call(net, p, (i[None],)), j[None])), (None, 0, 0))
    gradients = lambda a, b: iter([alone(params, a, b)])  # noqa: E731 - as many as there are: what is guarded against
    assert moved() > 5.0
