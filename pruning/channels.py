"""Which channels of a network are one: a filter can only go together with all that is added into its channel.

A *group* is a set of channels that several layers share. Convolutions and linear layers *write* them (row u of their
weights), batch norms and depthwise convolutions *carry* them (entry u of all their tensors), and the layers that come
next *read* them (column u). In ResNet every layer that ends in the residual sums of a stage writes the same channels,
so that channel u is gone only if row u is gone in all of them. The idea is DepGraph's (Fang et al., CVPR 2023); here
the groups are read off the graph of ``torch.fx`` in evaluation mode, and not found by autograd.

What a group may pass: activations, batch norm, pooling, flattening, dropout, the mean over an image, sums of equal
shapes. Channels that reach anything else (the output, a concatenation, a grouped convolution, a product, a module that
is used twice), or are overwritten before all have read them, are in no group and stay. A depthwise convolution has one
filter a channel.

``Group.constants`` says what a reader gets of a channel whose value depends on no input: [U] float64, NaN where it does
depend. A network whose graph cannot be followed raises ``PrunellaError``.

>>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 2))
>>> [(g.units, g.writers, g.carriers, [r.layer for r in g.readers]) for g in channel_groups(net, (1, 4, 4))]
[(4, ('0',), ('1',), ['3'])]
"""

import inspect
import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from prunella.core.errors import PrunellaError
from prunella.core.tracing import symbolic_trace
from prunella.core.trees import Tree

_ACTIVATIONS = (
    nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh, nn.Sigmoid,
    nn.Softplus, nn.Softsign, nn.Hardtanh, nn.Hardswish, nn.Hardsigmoid,
)  # fmt: skip
_FUNCTIONS = frozenset(
    "relu relu_ relu6 leaky_relu elu selu celu gelu silu mish tanh sigmoid softplus hardtanh hardswish".split()
)
_CONSTANT_KEEPING = (nn.Identity, nn.Dropout, nn.Dropout2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d)
_SUMS = (operator.add, operator.iadd, torch.add)
Constants = Callable[..., Tensor]  # (tree, values of the inputs) to a value: one constant a channel, [U] float64


@dataclass(frozen=True)
class ChannelStep:
    """One operation on the channels of a group: what becomes of constants. ``inputs`` are earlier steps' names, and
    ``norm`` is the module's name where the step is a batch norm."""

    name: str
    inputs: tuple[str, ...]
    constants: Constants
    norm: str = ""


@dataclass(frozen=True)
class ChannelReader:
    """A layer that reads channels as step ``source`` leaves them. ``folds``: its bias can take constants over, since no
    zeros are padded around them."""

    layer: str
    source: str
    folds: bool


@dataclass
class Group:
    """Channels that are one. ``writers``, ``carriers`` and the readers' layers are names of modules."""

    units: int
    writers: tuple[str, ...] = ()
    carriers: tuple[str, ...] = ()
    readers: tuple[ChannelReader, ...] = ()
    steps: list[ChannelStep] = field(default_factory=list)

    def constants(self, tree: Tree) -> dict[str, Tensor]:
        """By layer that reads: the value of each channel that no input changes, [U] float64, or NaN."""
        values: Tree = {}
        for step in self.steps:
            values[step.name] = step.constants(tree, *(values[name] for name in step.inputs))
        return {reader.layer: values[reader.source] for reader in self.readers}

    def means(self, tree: Tree) -> Tree:
        """By batch norm: the mean over a batch of each channel that no input changes, [U] float64, or NaN, where batch
        norm normalises by the batch. Such a channel leaves it as its bias."""
        values: Tree = {}
        found: Tree = {}
        for step in self.steps:
            inputs = [values[name] for name in step.inputs]
            if step.norm:
                found[step.norm] = inputs[0]
                tree = {**tree, f"{step.norm}.running_mean": inputs[0]}
            values[step.name] = step.constants(tree, *inputs)
        return found


def columns(weight: Tensor, units: int) -> Tensor:
    """A reader's weights as [outputs, units, what it reads of a unit]: a kernel's pixels, or a flat channel's."""
    return weight.reshape(weight.shape[0], units, -1)


def channel_groups(module: nn.Module, shape: tuple[int, ...]) -> list[Group]:
    """The groups whose channels can go, in the order of the graph; ``shape`` is one input's, without the batch."""
    graph = traced(module, shape)
    found = _Groups(dict(graph.named_modules()), _used(graph))
    for node in graph.graph.nodes:
        found.add(node)
    return found.free()


def traced(module: nn.Module, shape: tuple[int, ...]) -> fx.GraphModule:
    """The graph in evaluation mode, every node with the shape of its result. Raises ``PrunellaError``."""
    training = module.training
    try:
        graph = symbolic_trace(module.eval())
        with torch.no_grad():
            ShapeProp(graph).propagate(next(module.parameters()).new_zeros(2, *shape))
    except Exception as error:  # noqa: BLE001 - a network of somebody else's may do anything while it is traced
        raise PrunellaError(f"this network's structure cannot be followed ({type(error).__name__})") from None
    finally:
        module.train(training)
    return graph


def _used(graph: fx.GraphModule) -> Counter[str]:
    """How often each module is called, or its tensors are taken out of it, or are another's, too."""
    nodes = graph.graph.nodes
    called = [str(node.target) for node in nodes if node.op == "call_module"]
    taken = [str(node.target) for node in nodes if node.op == "get_attr"]
    owned = [(name, id(tensor)) for name, tensor in graph.named_parameters(remove_duplicate=False)]
    times = Counter(place for _, place in owned)
    taken += [name for name, place in owned if times[place] > 1]
    return Counter(called + 2 * [name.rpartition(".")[0] for name in taken])


def _shape(node: fx.Node) -> tuple[int, ...]:
    """[B, C, H, W] or [B, F]; () for a result that is no tensor."""
    meta: Any = node.meta.get("tensor_meta")
    return tuple(getattr(meta, "shape", ()))


def _named(node: fx.Node) -> dict[str, Any]:
    """A call's arguments by name; of a function without a signature, as PyTorch's built-in ones, those given so."""
    if node.op != "call_function" or not callable(node.target):
        return dict(node.kwargs)
    try:
        return inspect.signature(node.target).bind(*node.args, **node.kwargs).arguments
    except (TypeError, ValueError):
        return dict(node.kwargs)


class _Groups:
    """The groups so far: ``of`` a node's name, and those that are ``pinned``, whose channels all stay."""

    def __init__(self, layers: dict[str, nn.Module], used: Counter[str]) -> None:
        self.layers, self.used = layers, used
        self.of: dict[str, Group] = {}
        self.pinned: list[Group] = []

    def free(self) -> list[Group]:
        distinct = {id(group): group for group in self.of.values()}.values()
        return [g for g in distinct if g.writers and g.readers and not any(g is each for each in self.pinned)]

    def add(self, node: fx.Node) -> None:
        layer = self.layers.get(str(node.target)) if node.op == "call_module" else None
        if layer is not None and self.used[str(node.target)] == 1 and self._parametrised(node, layer):
            return
        made = _sum(node) or _pass(node, layer)
        if made is None or self._overwrites(node, layer) or not self._joined(node):
            self._pin(node)
            return
        group = self.of[node.all_input_nodes[0].name]
        self._step(group, node, made)

    def _step(self, group: Group, node: fx.Node, constants: Constants, norm: str = "") -> None:
        group.steps.append(ChannelStep(node.name, tuple(each.name for each in node.all_input_nodes), constants, norm))
        self.of[node.name] = group

    def _pin(self, node: fx.Node) -> None:
        """All channels that an unknown operation takes stay, and those that it gives."""
        self.pinned += [self.of[each.name] for each in node.all_input_nodes]
        self.of[node.name] = Group(0)
        self.pinned.append(self.of[node.name])

    def _overwrites(self, node: fx.Node, layer: nn.Module | None) -> bool:
        """Whether it works in place on what others read later: they find other values than the graph says."""
        name = str(getattr(node.target, "__name__", node.target))
        asked = getattr(layer, "inplace", False) or _named(node).get("inplace", False)
        in_place = node.target is operator.iadd or name.endswith("_") or asked
        return in_place and any(user.name not in self.of for user in node.all_input_nodes[0].users if user is not node)

    def _joined(self, node: fx.Node) -> bool:
        """Make one group of those that are added up. False where their channels do not correspond."""
        groups = [self.of[each.name] for each in node.all_input_nodes]
        if len({group.units for group in groups}) != 1 or len({_shape(each) for each in node.all_input_nodes}) != 1:
            return False
        first = groups[0]
        for other in groups[1:]:
            if other is not first:
                first.writers += other.writers
                first.carriers += other.carriers
                first.readers += other.readers
                first.steps += other.steps
                self.pinned += [first] * any(other is each for each in self.pinned)
                self.of = {name: first if group is other else group for name, group in self.of.items()}
        return True

    def _parametrised(self, node: fx.Node, layer: nn.Module) -> bool:
        name, (source, *_) = str(node.target), node.all_input_nodes
        group = self.of[source.name]
        if _is_norm(layer, group, source) or _is_depthwise(layer):
            group.carriers += (name,)
            norm = _is_norm(layer, group, source)
            self._step(group, node, _normalised(name, layer) if norm else _dw(name, layer), name if norm else "")
        elif _is_layer(layer) and len(_shape(source)) == (4 if isinstance(layer, nn.Conv2d) else 2):
            group.readers += (ChannelReader(name, source.name, _folds(layer)),)
            written = Group(len(layer.weight), (name,))  # type: ignore[arg-type]
            written.steps.append(ChannelStep(node.name, (), _written(name)))
            self.of[node.name] = written
        else:
            return False
        return True


# what operations do to constants --------------------------------------------------------------------------------------


def _is_layer(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return _owns(layer) and layer.groups == 1 and layer.padding_mode == "zeros"
    return type(layer) is nn.Linear and _owns(layer)


def _owns(layer: nn.Module) -> bool:
    """Whether its weight is a parameter, and not made of others before every pass, as by a weight norm."""
    return layer._parameters.get("weight") is not None


def _is_depthwise(layer: nn.Module) -> bool:
    if type(layer) is not nn.Conv2d or layer.padding_mode != "zeros" or not _owns(layer):
        return False
    return 1 < layer.groups == layer.in_channels == layer.out_channels


def _is_norm(layer: nn.Module, group: Group, source: fx.Node) -> bool:
    """Batch norm with one feature a channel."""
    known = isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.track_running_stats
    return bool(known and layer.num_features == group.units == _shape(source)[1])


def _folds(layer: nn.Module) -> bool:
    return layer.bias is not None and (type(layer) is nn.Linear or layer.padding in ((0, 0), "valid"))


def _bias(tree: Tree, name: str) -> Tensor:
    weight = tree[f"{name}.weight"]
    return tree[f"{name}.bias"].double() if f"{name}.bias" in tree else weight.new_zeros(len(weight)).double()


def _silent(tree: Tree, name: str) -> Tensor:
    """Rows without a weight, [U] bool."""
    return ~tree[f"{name}.weight"].flatten(1).ne(0).any(1)


def _written(name: str) -> Constants:
    return lambda tree: _bias(tree, name).masked_fill(~_silent(tree, name), torch.nan)


def _dw(name: str, layer: nn.Module) -> Constants:
    """Where zeros are padded, a constant that is not zero is none at the border."""

    def constants(tree: Tree, value: Tensor) -> Tensor:
        inside = value * tree[f"{name}.weight"].double().flatten(1).sum(1)
        if layer.padding not in ((0, 0), "valid"):
            inside = inside.masked_fill(value != 0, torch.nan)
        return inside.masked_fill(_silent(tree, name), 0.0) + _bias(tree, name)

    return constants


def _normalised(name: str, layer: nn.Module) -> Constants:
    eps: Any = layer.eps

    def constants(tree: Tree, value: Tensor) -> Tensor:
        deviation = (tree[f"{name}.running_var"].double() + eps).sqrt()
        value = (value - tree[f"{name}.running_mean"].double()) / deviation
        if f"{name}.weight" in tree:
            scale = tree[f"{name}.weight"].double()
            value = (value * scale).masked_fill(scale == 0, 0.0) + tree[f"{name}.bias"].double()
        return value

    return constants


def _sum(node: fx.Node) -> Constants | None:
    """x + y, and x + x; not x + 1, nor with a factor."""
    is_sum = node.target in _SUMS if node.op == "call_function" else node.target in ("add", "add_")
    if node.op not in ("call_function", "call_method") or not is_sum or node.kwargs or len(node.args) != 2:
        return None
    if not all(isinstance(argument, fx.Node) for argument in node.args):
        return None
    same = len(node.all_input_nodes) == 1
    return (lambda tree, value: value + value) if same else (lambda tree, a, b: a + b)


def _pass(node: fx.Node, layer: nn.Module | None) -> Constants | None:
    """What works on every channel by itself and makes a constant of a constant; None for anything else."""
    if layer is not None:
        if isinstance(layer, _ACTIVATIONS):
            return lambda tree, value: layer(value.clone())
        padded = isinstance(layer, nn.AvgPool2d) and bool(layer.padding) and layer.count_include_pad
        plain_mean = isinstance(layer, nn.AvgPool2d) and layer.divisor_override is None and not padded
        flat = isinstance(layer, nn.Flatten) and (layer.start_dim, layer.end_dim) == (1, -1)
        return _same if isinstance(layer, _CONSTANT_KEEPING) or plain_mean or flat else None
    name = str(getattr(node.target, "__name__", node.target))
    if len(node.all_input_nodes) != 1 or node.op not in ("call_function", "call_method"):
        return None
    if name == "flatten":
        ends = dict(zip(("start_dim", "end_dim"), node.args[1:], strict=False)) | node.kwargs
        return _same if (ends.get("start_dim", 0), ends.get("end_dim", -1)) == (1, -1) else None
    if name == "mean":
        over: Any = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        whole = len(_shape(node.all_input_nodes[0])) == 4 and over is not None
        return _same if whole and over in ((2, 3), [2, 3], (-2, -1), [-2, -1]) else None
    if name == "adaptive_avg_pool2d":
        return _same
    if name not in _FUNCTIONS:
        return None
    given, named = node.args[1:], node.kwargs
    function: Any = node.target if node.op == "call_function" else getattr(Tensor, name)
    return lambda tree, value: function(value.clone(), *given, **named)


def _same(tree: Tree, value: Tensor) -> Tensor:
    return value
