"""Gradients of single examples: what some defenses ask for.

A pure function of the model, whose layers stay in the mode that the caller put them in; no statistics are updated.
Examples are computed in groups of one constant size, the last filled up with blank ones: how a matrix product rounds
depends on how many rows it has, and weights can be chosen that make of this rounding the whole gradient. Were the
groups as large as the batch, one example more or less would change the gradients of all others, and a clip bound would
bound nothing. On a GPU the order of every sum is fixed for the same reason (``core.device.repeatable``).

In a group of one size, too, some kernels round a row by its place, and one example less moves all later ones up: of
linear layers on an x86 CPU those whose number of inputs is no multiple of four. So a network is asked once, with random
weights and one random example in every place, whether it does; where it does, each example is computed alone.

Some operations ``vmap`` has no rule for (LSTM and GRU, layer norm under autocast); where it raises on random examples,
they are computed one at a time without it. So is a batch of named tensors (a transformer's), which goes in as keywords:
such models ask what is in a mask, which no ``vmap`` can answer. Padding to the longest of a batch would let one example
change how the gradients of the others round: pad to a length that no data chooses.

What a model draws from the global generators while it trains (dropout) is drawn once for a call: every group begins
them at one seed of the operating system's, and every example of a group has the same numbers, so that all examples of a
step share one dropout mask. Drawn one after the other, a mask would depend on how many examples came before. A model
that draws from a generator of its own, or whose answers change with every call, is refused.

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
from prunella.core.global_draws import any_seed, draws_from, repeats
from prunella.core.randomness import stream
from prunella.core.trees import Tree, map_trees, size
from prunella.tasks.models.precode import take_divergence
from prunella.tasks.training import drawing

FLOATS = 1 << 26  # of gradients held at a time: 256 MiB
TOGETHER = 64  # examples computed at a time at most
PROBES = 8  # random examples that are asked how they round
Criterion = Callable[[Tensor, Tensor], Tensor]
Examples = Tensor | Mapping[str, Tensor]  # of a batch, or by names
Answer = Callable[[Tree, Any], Any]  # of weights and an example
ExampleLoss = Callable[[Tree, Any, Tensor], Tensor]  # of weights, an example and its label
_together: WeakKeyDictionary[nn.Module, dict[Hashable, int]] = WeakKeyDictionary()
_steady: WeakKeyDictionary[nn.Module, dict[Hashable, bool]] = WeakKeyDictionary()


def group_of(expected: int) -> int:
    """How many examples are computed together where a batch is expected to have so many: a number that no data changes.

    >>> group_of(1), group_of(16), group_of(17), group_of(500)
    (1, 16, 32, 64)
    """
    return min(TOGETHER, 1 << (expected - 1).bit_length())


def layers_that_mix(module: nn.Module) -> list[str]:
    """Names of layers whose answer to one example depends on the others of its batch."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def require_unmixed(module: nn.Module) -> None:
    """Refuse (``DefenseError``) a model with a layer that mixes."""
    if mixing := layers_that_mix(module):
        raise DefenseError(
            f"{mixing[0]} is batch norm, which mixes examples: none has a gradient of its own, and no ε holds: choose "
            "a model with group or layer norm"
        )


def _random_weights(params: Tree) -> Tree:
    """Of an ordinary size, so that every layer answers to its input: those that were sent may hide what rounds."""
    drawn = stream(0, purpose="weights that show rounding")

    def draw(tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=drawn)
        found = noise * (tensor.shape[0] / tensor.numel()) ** 0.5 if tensor.dim() > 1 else 1 + noise / 8
        return found.to(tensor)

    return map_trees(draw, params)


def _random_row(given: Tensor, drawn: torch.Generator) -> Tensor:
    """Of a kind with a row of what is given: numbers, or zeros and ones, which are labels and words of all models."""
    shape, floats = given.shape[1:], given.is_floating_point()
    one = torch.rand(shape, generator=drawn) if floats else torch.randint(2, shape, generator=drawn)
    return one.to(given)


def rounds_by_place(
    module: nn.Module, answer: Answer, loss: ExampleLoss, params: Tree, x: Tensor, y: Tensor, group: int
) -> bool:
    """Whether an example's ``answer``, or gradient of ``loss``, has other bits at another place of a group of so many.
    No value of ``params``, ``x`` or ``y`` matters, only their shapes. ``PROBES`` random examples are asked, since one
    may round alike by chance: most of them for the answer only, which takes far less time. Raises what ``vmap``
    raises."""
    drawn, weights = stream(0, purpose="an example that shows rounding"), _random_weights(params)

    def copies(given: Tensor) -> Tensor:
        return _random_row(given, drawn).expand(group, *given.shape[1:]).clone()

    def apart(rows: Any) -> bool:
        return any(bool((row != row[:1]).any()) for row in tree_leaves(rows) if isinstance(row, Tensor))

    answers = vmap(answer, in_dims=(None, 0), randomness="same")
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
    with torch.random.fork_rng([x.device] if x.is_cuda else []), drawing(module, None), repeatable(x.device):
        with torch.no_grad():
            found = any(apart(answers(weights, copies(x))) for _ in range(PROBES - 1))
        # Always asked for a gradient: what has no rule may be there alone.
        return apart(each(weights, copies(x), copies(y))) or found


def vmapped_together(
    module: nn.Module, answer: Answer, loss: ExampleLoss, params: Tree, x: Tensor, y: Tensor, group: int
) -> int:
    """How many examples ``vmap`` is to compute together: ``group``, 1 where an example rounds by its place, 0 where
    ``vmap`` raises on random ones. Asked once for shapes, kinds of numbers and modes of layers."""
    sizes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in params.items())
    shape, labels = tuple(x.shape[1:]), tuple(y.shape[1:])
    modes = tuple(layer.training for layer in module.modules())
    cast = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
    key = (sizes, shape, labels, x.dtype, y.dtype, x.device, torch.get_num_threads(), modes, cast, group)
    known = _together.setdefault(module, {})
    if key not in known:
        try:
            known[key] = 1 if rounds_by_place(module, answer, loss, params, x, y, group) else group
        except Exception:  # noqa: BLE001 - of somebody's network and loss; one at a time tells whether it is theirs
            known[key] = 0
    return known[key]


def require_gradients(
    module: nn.Module, params: Tree, buffers: Tree, x: Tensor, y: Tensor, expected: int, criterion: Criterion
) -> None:
    """Raise what ``per_example_gradients`` would raise on any examples of the shapes of x [B, ...], y [B]: it is asked
    about random ones under random weights, so that whether it raises tells nothing of those that are given."""
    answer, loss = _functions(module, buffers, criterion)
    if vmapped_together(module, answer, loss, params, x, y, _group(expected, params)):
        return
    drawn, weights = stream(0, purpose="an example that shows a gradient"), _random_weights(params)
    with torch.random.fork_rng([x.device] if x.is_cuda else []), drawing(module, None), repeatable(x.device):
        for left in reversed(range(PROBES)):  # a random label may be none of this loss's
            try:
                grad(loss)(weights, _random_row(x, drawn), _random_row(y, drawn))
            except Exception:
                if not left:
                    raise
            else:
                return


def _group(expected: int, params: Tree) -> int:
    return max(1, min(group_of(expected), FLOATS // max(1, size(params))))


def _functions(module: nn.Module, buffers: Tree, criterion: Criterion) -> tuple[Answer, ExampleLoss]:
    """What the model answers to one example, a tensor or named tensors without a batch's dimension, and its loss."""
    state = {name: tensor.detach() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}

    def answer(weights: Tree, image: Tensor | Mapping[str, Tensor]) -> Any:
        named = {name: tensor[None] for name, tensor in image.items()} if isinstance(image, Mapping) else {}
        return functional_call(module, (weights, state), () if isinstance(image, Mapping) else (image[None],), named)

    def loss(weights: Tree, image: Tensor | Mapping[str, Tensor], label: Tensor) -> Tensor:
        return criterion(answer(weights, image), label[None]) + take_divergence(module)

    return answer, loss


def require_examples_apart(
    module: nn.Module, params: Tree, buffers: Tree, x: Examples, y: Tensor, criterion: Criterion = cross_entropy
) -> None:
    """Refuse (``DefenseError``) a model in which what one example of x [B, ...], y [B] is answered depends on others:
    of its batch, or on how many came before. Random weights and, of images, a random example are asked, once for the
    modes of its layers: weights that were sent may hide what a generator of its own draws."""
    require_unmixed(module)
    modes, known = tuple(layer.training for layer in module.modules()), _steady.setdefault(module, {})
    if modes not in known and len(y):
        state = {name: tensor.clone() for name, tensor in {**dict(module.named_buffers()), **buffers}.items()}
        drawn, weights = stream(0, purpose="an example that shows draws"), _random_weights(params)
        image = _row(x, 0) if isinstance(x, Mapping) else _random_row(x, drawn)
        label = _random_row(y, drawn)
        _, loss = _functions(module, state, criterion)
        with drawing(module, None), repeatable(y.device), torch.no_grad():
            known[modes] = repeats(lambda: loss(weights, image, label))
    if not known.get(modes, True):
        raise DefenseError(
            f"{type(module).__name__} answers one example otherwise every time: it draws from a generator of its own, "
            "or keeps something between its calls, so that an example's gradient depends on which came before it, and "
            "no ε holds: let it draw from PyTorch's global generator, and keep nothing"
        )


def _row(x: Examples, row: int) -> Any:
    """A copy of one example, without a batch's dimension."""
    return {name: tensor[row].clone() for name, tensor in x.items()} if isinstance(x, Mapping) else x[row].clone()


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
    require_unmixed(module)
    leaves, seed = {name: tensor.detach() for name, tensor in params.items()}, any_seed()
    answer, loss = _functions(module, buffers, criterion)
    group = 0
    if isinstance(x, Tensor) and len(y):
        group = vmapped_together(module, answer, loss, leaves, x, y, _group(expected, params))
    if isinstance(x, Mapping) or not group:
        for row, label in enumerate(y):
            with draws_from(seed), repeatable(label.device):
                found = grad(loss)(leaves, _row(x, row), label)
            yield {name: found[name][None] for name in params}
        return
    each = vmap(grad(loss), in_dims=(None, 0, 0), randomness="same")
    for images, labels in zip(torch.split(x, group), torch.split(y, group), strict=True):
        if held := len(labels):
            # Copies, full groups too: a view of a row may begin at another alignment, which rounds otherwise.
            images, labels = (
                torch.cat([part, part.new_zeros((group - held, *part.shape[1:]))]) for part in (images, labels)
            )
            with draws_from(seed), repeatable(labels.device):
                gradients = each(leaves, images, labels)
            yield {name: gradients[name][:held] for name in params}
