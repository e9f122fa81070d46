"""A model as a list of layers, its gradient, and the gradient's derivative along a direction, all by hand.

Matching gradients needs the derivative, in the images, of <gradient, v> for a direction v of the weights, and for
several local steps the Hessian times v as well. Autograd gets both by building the graph of a gradient and going back
through it; here they are one more pass forward and one back with the rules of ``attacks.engine.layer_rules``
(Pearlmutter 1994), without a graph, and nothing is computed twice. Equal to autograd up to rounding:
tests/attacks/engine/test_network.py.

``network_of`` traces a module with torch.fx and answers None where a part of it has no rule; the engine then takes
autograd. The loss is the mean cross-entropy over x [N, C, H, W] with labels y [N] or probabilities [N, K]. A row of
these that does not add up to 1 weighs its image: that of ``cross_entropy`` in PyTorch, which is linear in y.
"""

import operator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.nn.functional import relu as relu_function
from torch.nn.functional import softmax

from prunella.attacks.engine.layer_rules import LayerRule, relu, rule_of
from prunella.core.tracing import symbolic_trace
from prunella.core.trees import Tree


@dataclass(frozen=True)
class Operation:
    """One node of the graph: a layer, or the sum of its two inputs (None). 0 is the image, i + 1 step i's output."""

    layer: LayerRule | None
    inputs: tuple[int, ...]


@dataclass(frozen=True)
class Pass:
    """What a pass forward and back leaves for ``Network.derivative``."""

    saved: list[Any]
    deltas: "_Deltas"
    probabilities: Tensor
    weights: Tensor
    gradient: Tree


@dataclass(frozen=True)
class Network:
    """``alone``: the loss is that of every image by itself, not their mean."""

    steps: tuple[Operation, ...]
    alone: bool = False

    def share(self, x: Tensor) -> int:
        return 1 if self.alone else len(x)

    def gradient(self, w: Tree, x: Tensor, y: Tensor) -> Pass:
        """The gradient of the loss in the weights ``w``."""
        values, saved = [x], list[Any]()
        for step in self.steps:
            inputs = [values[i] for i in step.inputs]
            value, kept = step.layer.forward(w, inputs[0]) if step.layer is not None else (inputs[0] + inputs[1], None)
            values.append(value)
            saved.append(kept)
        probabilities = softmax(values[-1], dim=1)
        weights = weights_of(y).to(x)
        deltas = _Deltas(len(values), _less(weights * probabilities, y) / self.share(x))
        gradient: Tree = {}
        for place, step in reversed(list(enumerate(self.steps, start=1))):
            before: Tensor | None = deltas[place]
            if step.layer is not None:
                before, new = step.layer.backward(w, saved[place - 1], deltas[place], step.inputs[0] > 0)
                gradient |= new
            deltas.add(step, before)
        return Pass(saved, deltas, probabilities, weights, gradient)

    def derivative(self, w: Tree, at: Pass, v: Tree, curved: bool) -> tuple[Tensor, Tensor, Tree]:
        """Of <gradient, v>: the gradients in x, in y and, if ``curved``, in the weights (the Hessian times v)."""
        dots: list[Tensor | None] = [None]
        moved: list[Any] = []
        for step, saved in zip(self.steps, at.saved, strict=True):
            inputs = [dots[i] for i in step.inputs]
            if step.layer is None:
                dot, kept = _sum(*inputs), None
            else:
                dot, kept = step.layer.tangent(w, v, saved, inputs[0])
            dots.append(dot)
            moved.append(kept)
        logits = cast(Tensor, dots[-1])  # weights were passed on the way, so this one is not zero
        centred = logits - (at.probabilities * logits).sum(dim=1, keepdim=True)
        deltas = _Deltas(len(dots), at.weights * at.probabilities * centred / self.share(centred))
        curvature: Tree = {}
        for place, step in reversed(list(enumerate(self.steps, start=1))):
            before = deltas[place]
            if step.layer is not None:
                given = at.saved[place - 1], moved[place - 1], at.deltas[place], deltas[place]
                before, new = step.layer.tangent_backward(w, v, *given, curved)
                curvature |= new
            deltas.add(step, before)
        return deltas[0], centred / -self.share(centred), curvature


class _Deltas:
    """A gradient for each value of a network, added up from those that use it."""

    def __init__(self, values: int, last: Tensor) -> None:
        self.parts: list[Tensor | None] = [None] * (values - 1) + [last]

    def __getitem__(self, place: int) -> Tensor:
        return cast(Tensor, self.parts[place])

    def add(self, step: Operation, delta: Tensor | None) -> None:
        """Give every input of ``step`` its share."""
        for i in step.inputs:
            self.parts[i] = _sum(self.parts[i], delta)


def weights_of(y: Tensor) -> Tensor:
    """[N, 1]: what the labels [N], or the rows of [N, K], add up to."""
    return y.sum(dim=1, keepdim=True) if y.is_floating_point() else torch.ones_like(y)[:, None]


def _less(probabilities: Tensor, y: Tensor) -> Tensor:
    """Probabilities less the labels, which are probabilities themselves or numbers."""
    if y.is_floating_point():
        return probabilities - y
    return probabilities.scatter_add(1, y[:, None], probabilities.new_full((len(y), 1), -1.0))


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    return b if a is None else a if b is None else a + b


def _layer(node: fx.Node, module: nn.Module) -> LayerRule | None:
    if node.op == "call_module":
        shared = len(node.all_input_nodes[0].users) > 1
        if shared and getattr(module.get_submodule(str(node.target)), "inplace", False):
            return None  # it would change what another layer reads
        return rule_of(str(node.target), module.get_submodule(str(node.target)))
    return relu() if node.target in (torch.relu, relu_function) and len(node.args) == 1 else None


def network_of(module: nn.Module) -> Network | None:
    """The module, in its present mode, as a network; None where something in it has no rule."""
    try:
        graph = symbolic_trace(module).graph
        graph.eliminate_dead_code()
        nodes = list(graph.nodes)
    except Exception:  # noqa: BLE001 - whatever a stranger's model does when it is traced, autograd can still attack it
        return None
    places: dict[fx.Node, int] = {}
    steps: list[Operation] = []
    for node in nodes:
        if node.op == "placeholder":
            places[node] = len(places)
            continue
        inputs = tuple(places[argument] for argument in node.all_input_nodes)
        if node.op == "output":
            break
        plus = node.target in (operator.add, torch.add) and len(inputs) == 2 and not node.kwargs
        layer = None if plus else _layer(node, module)
        if not plus and (layer is None or len(inputs) != 1):
            return None
        steps.append(Operation(layer, inputs))
        places[node] = len(steps)
    return _checked(steps, nodes, places, module)


def _checked(
    steps: list[Operation], nodes: list[fx.Node], places: dict[fx.Node, int], module: nn.Module
) -> Network | None:
    """A network of one input, whose last step is the output and whose layers have every parameter once."""
    inputs = [node for node in nodes if node.op == "placeholder"]
    weights = [name for step in steps if step.layer for name in step.layer.weights]
    whole = sorted(weights) == sorted(name for name, _ in module.named_parameters())
    last = nodes[-1].args[0]
    if len(inputs) != 1 or not whole or not isinstance(last, fx.Node) or places.get(last) != len(steps):
        return None
    return Network(tuple(steps))
