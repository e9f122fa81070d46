"""Each layer's four passes against autograd and forward-mode differentiation of the module itself."""

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.func import functional_call

from prunella.attacks.engine import layer_rules
from prunella.attacks.engine.layer_rules import rule_of
from prunella.core.trees import Tree

LAYERS = {
    "conv": (nn.Conv2d(3, 5, 3, padding=1), (2, 3, 6, 7)),
    "strided": (nn.Conv2d(3, 5, (3, 2), stride=2, padding=(1, 0), bias=False), (2, 3, 7, 6)),
    "dilated": (nn.Conv2d(2, 3, 2, dilation=2), (1, 2, 6, 6)),
    "grouped": (nn.Conv2d(4, 6, 3, groups=2), (2, 4, 5, 5)),
    "linear": (nn.Linear(4, 3), (2, 4)),
    "norm": (nn.BatchNorm2d(3), (2, 3, 4, 4)),
    "pool": (nn.MaxPool2d(3, 2, padding=1), (2, 3, 7, 7)),
    "mean": (nn.AdaptiveAvgPool2d(3), (2, 3, 5, 5)),
    "flatten": (nn.Flatten(), (2, 3, 2, 2)),
    "tanh": (nn.Tanh(), (2, 5)),
    "sigmoid": (nn.Sigmoid(), (2, 5)),
    "relu": (nn.ReLU(), (2, 5)),
    "leaky": (nn.LeakyReLU(0.2), (2, 5)),
    "dropout": (nn.Dropout().eval(), (2, 5)),
}


def like(tree: Tree, generator: torch.Generator) -> Tree:
    return {name: torch.randn(t.shape, generator=generator, dtype=t.dtype) for name, t in tree.items()}


@pytest.mark.parametrize("small", [True, False], ids=["patches", "library"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_four_passes_are_those_of_autograd(name: str, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rules, "_SMALL", 1 << 18 if small else 0)
    module, shape = LAYERS[name]
    module, generator = module.double(), torch.Generator().manual_seed(0)
    w = like(dict(module.named_parameters()), generator)
    v = like(w, generator)
    x, x_dot = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    rule = rule_of("", module)
    assert rule is not None and set(rule.weights) == w.keys()

    y, saved = rule.forward(w, x)
    delta, delta_dot = (torch.randn(y.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    y_dot, moved = rule.tangent(w, v, saved, x_dot)
    inner, gradient = rule.backward(w, saved, delta, True)
    inner_dot, gradient_dot = rule.tangent_backward(w, v, saved, moved, delta, delta_dot, True)

    with forward_ad.dual_level():
        leaves = {n: t.clone().requires_grad_() for n, t in {**w, "x": x}.items()}
        duals = {n: forward_ad.make_dual(t, {**v, "x": x_dot}[n]) for n, t in leaves.items()}
        image = duals.pop("x")
        out = functional_call(module, duals, (image,))
        seed = forward_ad.make_dual(delta, delta_dot)
        slopes = torch.autograd.grad(out, [image, *duals.values()], seed)
        expected = [forward_ad.unpack_dual(t) for t in (out, *slopes)]
    found = [(y, y_dot), (inner, inner_dot), *((gradient[n], gradient_dot.get(n)) for n in w)]
    for (value, dot), (primal, tangent) in zip(found, expected, strict=True):
        torch.testing.assert_close(value, primal)
        torch.testing.assert_close(dot, torch.zeros_like(primal) if tangent is None else tangent)


def test_what_has_no_rule_says_so() -> None:
    for module in (
        nn.GELU(), nn.Dropout(), nn.Flatten(0), nn.BatchNorm2d(2).eval(), nn.Conv2d(1, 1, 3, padding="same"),
        nn.Conv2d(1, 1, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2, return_indices=True), nn.LSTM(1, 1),
    ):  # fmt: skip
        assert rule_of("layer", module) is None
