"""Gradients of single examples: what some defenses ask for.

A pure function of the model, whose layers stay in the mode that the caller put them in; no statistics are updated.
Examples are computed in groups of one constant size, the last filled up with blank ones: how a matrix product rounds
depends on how many rows it has, and weights can be chosen that make of this rounding the whole gradient. Were the
groups as large as the batch, one example more or less would change the gradients of all others, and a clip bound would
bound nothing. On a GPU the order of every sum is fixed for the same reason (``core.device.repeatable``).

In a group of one size, too, some kernels round a row by its place, and one example less moves all later ones up: of
linear layers on an x86 CPU those whose number of inputs is no multiple of four. So a network is asked once, with random
weights and one random example in every place, whether it does; where it does, each example is computed alone.

A batch of named tensors (a transformer's) goes in as keywords, one example at a time: such models ask what is in a
mask, which no ``vmap`` can answer. Padding to the longest of a batch would let one example change how the gradients of
the others round: pad to a length that no data chooses.

Batch norm in training mode mixes the examples of a batch, so that no example has a gradient of its own: refused.

>>> from torch import nn
>>> net = nn.Linear(2, 3)
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> chunks = list(per_example_gradients(net, params, {}, torch.ones(5, 2), torch.zeros(5, dtype=torch.int64)))
>>> [tuple(chunk["weight"].shape) for chunk in chunks]
[(5, 3, 2)]
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._pytree import tree_leaves

from prunella.core.device import repeatable
from prunella.core.errors import DefenseError
from prunella.core.randomness import stream
from prunella.core.trees import Tree, map_trees, size
from prunella.tasks.models.precode import take_divergence
from prunella.tasks.training import drawing

FLOATS = 1 << 26  # of gradients held at a time: 256 MiB
TOGETHER = 64  # examples computed at a time at most
PROBES = 8  # random examples that are asked how they round
Criterion = Callable[[Tensor, Tensor], Tensor]
_placed: WeakKeyDictionary[nn.Module, dict[Hashable, bool]] = WeakKeyDictionary()


def group_of(expected: int) -> int:
    """How many examples are computed together where a batch is expected to have so many: a number that no data changes.

    >>> group_of(1), group_of(16), group_of(17), group_of(500)
    (1, 16, 32, 64)
    """
    return min(TOGETHER, 1 << (expected - 1).bit_length())


def layers_that_mix(module: nn.Module) -> list[str]:
    """Names of layers whose answer to one example depends on the others of its batch."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def _random_weights(params: Tree) -> Tree:
    """Of an ordinary size, so that every layer answers to its input: those that were sent may hide what rounds."""
    drawn = stream(0, purpose="weights that show rounding")

    def draw(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=drawn)
        found = noise * (tensor.shape[0] / tensor.numel()) ** 0.5 if tensor.dim() > 1 else 1 + noise / 8
        return found.to(tensor)

    return map_trees(draw, params)


def rounds_by_place(
    module: nn.Module,
    answer: Callable[[Tree, Tensor], Any],
    loss: Callable[[Tree, Tensor, Tensor], Tensor],
    params: Tree,
    x: Tensor,
    y: Tensor,
    group: int,
) -> bool:
    """Whether an example's ``answer`` (weights, image), or gradient of ``loss`` (weights, image, label), has other bits
    at another place of a group of so many. No value of ``params``, ``x`` or ``y`` matters, only their shapes; asked
    once for each. ``PROBES`` random examples are asked, since one may round alike by chance: most of them for the
    answer only, which takes far less time."""
    sizes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in params.items())
    shape, labels = tuple(x.shape[1:]), tuple(y.shape[1:])
    modes = tuple(layer.training for layer in module.modules())
    key = (sizes, shape, labels, x.dtype, y.dtype, x.device, torch.get_num_threads(), modes, group)
    known = _placed.setdefault(module, {})
    if key not in known:
        drawn, weights = stream(0, purpose="an example that shows rounding"), _random_weights(params)

        def random_like(given: Tensor, shape: tuple[int, ...]) -> Tensor:
            """Of a kind with what is given: numbers, or zeros and ones, which are labels and words of all models."""
            floats = given.is_floating_point()
            one = torch.rand(shape, generator=drawn) if floats else torch.randint(2, shape, generator=drawn)
            return one.to(given)

        def copies() -> Tensor:
            return random_like(x, shape).expand(group, *shape).clone()

        def apart(rows: Any) -> bool:
            return any(bool((row != row[:1]).any()) for row in tree_leaves(rows) if isinstance(row, Tensor))

        answers = vmap(answer, in_dims=(None, 0), randomness="same")
        each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
        with torch.random.fork_rng([x.device] if x.is_cuda else []), drawing(module, None):
            with repeatable(x.device):
                with torch.no_grad():
                    found = any(apart(answers(weights, copies())) for _ in range(PROBES - 1))
                known[key] = found or apart(
                    each(weights, copies(), random_like(y, labels).expand(group, *labels).clone())
                )
    return known[key]


def per_example_gradients(
    module: nn.Module,
    params: Tree,
    buffers: Tree,
    x: Tensor | Mapping[str, Tensor],
    y: Tensor,
    expected: int = TOGETHER,
    criterion: Criterion = cross_entropy,
) -> Iterator[Tree]:
    """The gradient of ``criterion`` (the model's answer, label [1]) of every example of x [B, ...], y [B], as trees of
    [b, *shape] in order. ``expected`` is a public guess at B."""
    if layers_that_mix(module):
        raise DefenseError(f"{type(module).__name__} has batch norm, so no example has a gradient of its own")
    state = {name: tensor.detach() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
    leaves = {name: tensor.detach() for name, tensor in params.items()}

    def answer(weights: Tree, image: Tensor | Mapping[str, Tensor]) -> Any:
        named = {name: tensor[None] for name, tensor in image.items()} if isinstance(image, Mapping) else {}
        return functional_call(module, (weights, state), () if isinstance(image, Mapping) else (image[None],), named)

    def loss(weights: Tree, image: Tensor | Mapping[str, Tensor], label: Tensor) -> Tensor:
        return criterion(answer(weights, image), label[None]) + take_divergence(module)

    if isinstance(x, Mapping):
        for row, label in enumerate(y):
            with repeatable(label.device):
                found = grad(loss)(leaves, {name: tensor[row].clone() for name, tensor in x.items()}, label)
            yield {name: found[name][None] for name in params}
        return
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="different")
    group = max(1, min(group_of(expected), FLOATS // max(1, size(params))))
    if group > 1 and len(y) and rounds_by_place(module, answer, loss, leaves, x, y, group):
        group = 1
    for images, labels in zip(torch.split(x, group), torch.split(y, group), strict=True):
        if held := len(labels):
            # Copies, full groups too: a view of a row may begin at another alignment, which rounds otherwise.
            images, labels = (
                torch.cat([part, part.new_zeros((group - held, *part.shape[1:]))]) for part in (images, labels)
            )
            with repeatable(labels.device):
                gradients = each(leaves, images, labels)
            yield {name: gradients[name][:held] for name in params}
