"""The same network without the units that pruning left with nothing to do: smaller tensors, equal outputs.

A *unit* is an output channel of a convolution or an output of a linear layer. It goes when every weight into it is
zero, or every weight out of it. A unit without weights into it still has an output: its bias, after normalisation and
activation, is a constant c. The layer that reads it adds Σ c_u W[:, u] of such units to its own bias, which is exact
for a linear layer and for a convolution without padding. Where zeros are padded around the image, or the reading layer
has no bias, one of those units stays and stands for all: W[:, k] becomes Σ (c_u / c_k) W[:, u], exact at the borders
too.

``tree`` holds parameters and float buffers by name, pruned weights zero; the network is in evaluation mode. What lies
between two layers is followed in the graph of ``torch.fx``: activations, batch norm, pooling, flattening, dropout. A
layer whose units reach anything else (the output, a residual sum, a concatenation, a grouped convolution) keeps them
all. A layer keeps at least one unit. A network whose graph depends on its input raises ``PrunellaError``.

>>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
>>> tree = {"0.weight": torch.tensor([[1., 1.], [0., 0.], [1., 0.]]), "0.bias": torch.tensor([0., 2., 0.]),
...         "2.weight": torch.tensor([[1., 3., 0.]]), "2.bias": torch.tensor([1.])}
>>> {name: t.tolist() for name, t in shrink(net, tree, (2,)).items()}
{'0.weight': [[1.0, 1.0]], '0.bias': [0.0], '2.weight': [[1.0]], '2.bias': [7.0]}
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from prunella.core.errors import PrunellaError
from prunella.core.trees import Tree

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
)  # fmt: skip
_FUNCTIONS = frozenset(
    "relu relu_ relu6 leaky_relu elu selu celu gelu silu mish tanh sigmoid softplus hardtanh hardswish".split()
)
_CONSTANT_KEEPING = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
Through = Callable[[Tree, Tensor], Tensor]  # what an operation makes of one constant a unit, [U] float64


@dataclass(frozen=True)
class Path:
    """From a layer to one that reads its units. ``norms`` and ``through`` are what lies between; ``folds``: the
    reader's bias can take constants over."""

    reader: str
    norms: tuple[str, ...]
    through: tuple[Through, ...]
    folds: bool


def shrink(module: nn.Module, tree: Tree, shape: tuple[int, ...]) -> Tree:
    """The tensors of the smaller network, by the same names; ``shape`` is that of one input, without the batch."""
    network = paths(module, shape)
    current = dict(tree)
    while True:
        before = [current[f"{layer}.weight"].shape for layer in network]
        for layer, ways in network.items():
            current = _without(layer, ways, current)
        if before == [current[f"{layer}.weight"].shape for layer in network]:
            return current


def _columns(tree: Tree, reader: str, units: int) -> Tensor:
    """A reader's weights as [outputs, units, what it reads of a unit]: a kernel's pixels, or a flat channel's."""
    weight = tree[f"{reader}.weight"]
    return weight.reshape(weight.shape[0], units, -1)


def _constants(layer: str, way: Path, tree: Tree) -> Tensor:
    """What the reader gets from every unit if no weight leads into it, [U] float64."""
    weight = tree[f"{layer}.weight"]
    value = tree[f"{layer}.bias"].double() if f"{layer}.bias" in tree else weight.new_zeros(len(weight)).double()
    for operation in way.through:
        value = operation(tree, value)
    return value


def _without(layer: str, ways: tuple[Path, ...], tree: Tree) -> Tree:
    """The tree without the units of one layer that can go."""
    units = len(tree[f"{layer}.weight"])
    columns = {way.reader: _columns(tree, way.reader, units).double() for way in ways}
    read = torch.stack([c.ne(0).any(2).any(0) for c in columns.values()]).any(0)
    dead = ~tree[f"{layer}.weight"].reshape(units, -1).ne(0).any(1)
    constants = torch.stack([_constants(layer, way, tree) for way in ways])
    speaking = dead & read & constants.ne(0).any(0)
    keep = read & ~dead
    changed = dict(tree)
    if bool(speaking.any()):
        if all(way.folds for way in ways):
            for way, c in zip(ways, constants, strict=True):
                _fold(changed, way.reader, columns[way.reader], c * speaking)
        else:
            keep |= _speaker(columns, constants, speaking)
    if not bool(keep.any()):  # what the last one says, if anything, is in the readers' biases
        keep[0] = True
        for c in columns.values():
            c[:, 0] = 0
    return tree if bool(keep.all()) else _cut(layer, ways, changed, columns, keep)


def _fold(tree: Tree, reader: str, columns: Tensor, constants: Tensor) -> None:
    bias = tree[f"{reader}.bias"]
    tree[f"{reader}.bias"] = (bias.double() + columns.sum(2) @ constants).to(bias.dtype)


def _speaker(columns: Tree, constants: Tensor, speaking: Tensor) -> Tensor:
    """Let one unit say what all ``speaking`` ones say, and return those that stay: [U]. ``columns`` are changed."""
    least = constants.abs().amin(0) * speaking
    first = int(least.argmax())
    if least[first] == 0:  # some reader hears nothing from any that all readers hear
        return speaking
    for c, reader in zip(constants, columns.values(), strict=True):
        reader[:, first] = torch.einsum("ous,u->os", reader, c * speaking / c[first])
    return torch.arange(len(speaking)) == first


def _cut(layer: str, ways: tuple[Path, ...], tree: Tree, columns: Tree, keep: Tensor) -> Tree:
    changed = dict(tree)
    owners = {layer, *(norm for way in ways for norm in way.norms)}
    for name, tensor in tree.items():
        if name.rpartition(".")[0] in owners and tensor.ndim:
            changed[name] = tensor[keep]
    for reader, c in columns.items():
        old = tree[f"{reader}.weight"]
        cut = c[:, keep].to(old.dtype)
        changed[f"{reader}.weight"] = cut.reshape(len(old), -1, *old.shape[2:]) if old.ndim > 2 else cut.flatten(1)
    return changed


# the graph ------------------------------------------------------------------------------------------------------------


def paths(module: nn.Module, shape: tuple[int, ...]) -> dict[str, tuple[Path, ...]]:
    """For every layer that may lose units, in the order of the graph, who reads them. Raises ``PrunellaError``."""
    training = module.training
    try:
        graph = fx.symbolic_trace(module.eval())
        with torch.no_grad():
            ShapeProp(graph).propagate(torch.zeros(2, *shape, dtype=next(module.parameters()).dtype))
    except Exception as error:  # noqa: BLE001 - a network of somebody else's may do anything while it is traced
        raise PrunellaError(f"this network's structure cannot be followed ({type(error).__name__})") from None
    finally:
        module.train(training)
    used = [node.target for node in graph.graph.nodes if node.op == "call_module"]
    layers = dict(graph.named_modules())
    found = {}
    for node in graph.graph.nodes:
        layer = layers.get(str(node.target)) if node.op == "call_module" else None
        if layer is not None and _is_layer(layer) and _images(node) is isinstance(layer, nn.Conv2d):
            ways = _follow(node, len(layer.weight), layers)
            readers = [way.reader for way in ways or ()]
            alone = all(used.count(name) == 1 for name in (node.target, *readers))
            if ways and alone:
                found[str(node.target)] = tuple(ways)
    return found


def _is_layer(layer: object) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear


def _images(node: fx.Node) -> bool | None:
    """Whether a node's result is [B, C, H, W], or None for anything but that and [B, F]."""
    meta: Any = node.meta.get("tensor_meta")
    return {4: True, 2: False}.get(len(getattr(meta, "shape", ())))


def _follow(node: fx.Node, units: int, layers: dict[str, nn.Module]) -> list[Path] | None:
    """Every way from a node to the layers that read it, None where one leads elsewhere."""
    ways = []
    for user in node.users:
        layer = layers.get(str(user.target)) if user.op == "call_module" else None
        if layer is not None and _is_layer(layer):
            if _images(node) is not isinstance(layer, nn.Conv2d):
                return None
            folds = layer.bias is not None and (type(layer) is nn.Linear or layer.padding in ((0, 0), "valid"))
            ways.append(Path(str(user.target), (), (), folds))
            continue
        step = _norm(user, layer, units) or _pass(user, layer)
        rest = _follow(user, units, layers) if step is not None else None
        if step is None or rest is None:
            return None
        norms, through = step
        ways += [Path(way.reader, norms + way.norms, through + way.through, way.folds) for way in rest]
    return ways or None


Step = tuple[tuple[str, ...], tuple[Through, ...]]


def _norm(node: fx.Node, layer: nn.Module | None, units: int) -> Step | None:
    """Batch norm with one feature a unit."""
    if not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) or layer.num_features != units:
        return None
    if not layer.track_running_stats:
        return None
    name, eps = str(node.target), layer.eps

    def normalised(tree: Tree, value: Tensor) -> Tensor:
        deviation = (tree[f"{name}.running_var"].double() + eps).sqrt()
        value = (value - tree[f"{name}.running_mean"].double()) / deviation
        if f"{name}.weight" in tree:
            value = value * tree[f"{name}.weight"].double() + tree[f"{name}.bias"].double()
        return value

    return (name,), (normalised,)


def _pass(node: fx.Node, layer: nn.Module | None) -> Step | None:
    """What works on every unit by itself and makes a constant of a constant; None for anything else."""
    if layer is not None:
        if isinstance(layer, _ACTIVATIONS):
            return (), (lambda tree, value: layer(value.clone()),)
        padded = isinstance(layer, nn.AvgPool2d) and bool(layer.padding) and layer.count_include_pad
        plain_mean = isinstance(layer, nn.AvgPool2d) and layer.divisor_override is None and not padded
        flat = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
        return ((), ()) if isinstance(layer, _CONSTANT_KEEPING) or plain_mean or flat else None
    rest = (*node.args[1:], *node.kwargs.values())
    name = str(getattr(node.target, "__name__", node.target))
    if any(isinstance(argument, fx.Node) for argument in rest) or node.op not in ("call_function", "call_method"):
        return None
    if name == "flatten":
        return ((), ()) if rest in ((1,), (1, -1)) else None
    if name not in _FUNCTIONS:
        return None
    given, named = node.args[1:], node.kwargs
    function: Any = node.target if node.op == "call_function" else getattr(Tensor, name)
    return (), (lambda tree, value: function(value.clone(), *given, **named),)
