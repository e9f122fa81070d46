"""How strongly a model's representation depends on its input: what Soteria ranks units by.

The representation r [B, F] is the input of the last linear layer. Wanted is ||dr_f / dx|| for every example and unit.
Backwards that is F passes, one a unit. Behind convolutions and pooling a unit sees a small window of the image, and
pixels whose windows do not meet can be moved together: with v one at every such pixel, each entry of J v is one entry
of J, so that the sum of (J v)^2 over all sets of pixels is the square wanted (Curtis, Powell and Reid, 1974). A unit
behind two 3x3 convolutions, the second of stride 2, sees 5x5 pixels: 25 passes for a grey image, however many units.

Which rows and which columns a unit sees is found by running images with one row or column that is not a number. Where
that says nothing (a layer hides it), where examples mix (batch norm), where the windows are so large that units are
fewer than sets, or where a set moved with alternating signs gives something else, the units are taken one by one.

>>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
>>> params = {name: p.detach() for name, p in net.named_parameters()}
>>> name, features, norms = representation_sensitivity(net, params, {}, torch.ones(5, 1, 2, 2))
>>> name, tuple(features.shape), torch.allclose(norms[0], params["1.weight"].norm(dim=1))
('2.weight', (5, 3), True)
"""

import itertools
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vmap

from prunella.core.errors import ConfigError
from prunella.core.trees import Tree
from prunella.tasks.models.precode import take_divergence

SEEDS = 4  # sets of pixels moved at a time: more no longer save time, and cost memory
PROBES = 32  # images run at a time to find out what a unit sees
Representation = Callable[[Tensor], Tensor]


def representation_sensitivity(module: nn.Module, params: Tree, buffers: Tree, x: Tensor) -> tuple[str, Tensor, Tensor]:
    """Weight name of the last linear layer, its input r [B, F], and the norm of dr_f/dx for every example [B, F].

    x [B, C, H, W]. Layers are in the mode that the caller put them in, and no statistics are updated. ``ConfigError``
    without a linear layer.
    """
    linear = [(name, layer) for name, layer in module.named_modules() if isinstance(layer, nn.Linear)]
    if not linear:
        raise ConfigError("soteria needs a model whose last layer is linear")
    name, layer = linear[-1]
    seen: list[Tensor] = []

    def representation(image: Tensor) -> Tensor:
        state = {key: t.detach().clone() for key, t in {**dict(module.named_buffers()), **buffers}.items()}
        seen.clear()
        functional_call(module, ({k: t.detach() for k, t in params.items()}, state), (image,))
        take_divergence(module)
        return seen[0]

    with layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0])):
        norms = _by_pixels(representation, x.detach())
        features, backwards = _by_units(representation, x.detach(), norms is None)
    return f"{name}.weight" if name else "weight", features, backwards if norms is None else norms


def _by_units(representation: Representation, x: Tensor, wanted: bool) -> tuple[Tensor, Tensor]:
    """r [B, F], and if ``wanted`` the norms [B, F] by one backward pass a unit."""
    image = x.clone().requires_grad_(wanted)
    with torch.set_grad_enabled(wanted):
        features = representation(image)
    columns = [
        torch.autograd.grad(features[:, f].sum(), image, retain_graph=True)[0].flatten(1).norm(dim=1)
        for f in range(features.shape[1] if wanted else 0)
    ]
    return features.detach(), torch.stack(columns, dim=1) if columns else torch.zeros(0)


def _by_pixels(representation: Representation, x: Tensor) -> Tensor | None:
    """The norms [B, F] by moving sets of pixels together; None where that is not known to be right, or not cheaper."""
    seen = _rows_and_columns(representation, x[:1]) if len(x) else None
    if seen is None:
        return None
    rows, columns = (_sets(part) for part in seen)
    if len(rows) * len(columns) * x.shape[1] >= seen[0].shape[1]:
        return None

    def moved(v: Tensor) -> Tensor:
        result: Tensor = jvp(representation, (x,), (v.expand_as(x),))[1]
        return result

    def squares(directions: Tensor) -> Tensor:  # [S, C, H, W] to [S, B, F]; every pass sees the same random draws
        with torch.random.fork_rng():
            result: Tensor = vmap(moved, randomness="same")(directions)
        return result.square()

    def directions(part: Sequence[tuple[int, int, int]], signed: bool) -> Tensor:
        made = torch.zeros(len(part), *x.shape[1:])
        for direction, (channel, row, column) in zip(made, part, strict=True):
            spots = rows[row][:, None] * columns[column]
            direction[channel] = spots if signed else spots.abs()
        return made.to(x)

    all_sets = list(itertools.product(range(x.shape[1]), range(len(rows)), range(len(columns))))
    try:
        with torch.no_grad():
            first, other = squares(torch.cat([directions(all_sets[:1], signed) for signed in (False, True)]))
            if not torch.allclose(first, other, rtol=1e-3, atol=1e-3 * float(first.max())):
                return None
            total: Tensor = first
            for begin in range(1, len(all_sets), SEEDS):
                total = total + squares(directions(all_sets[begin : begin + SEEDS], False)).sum(0)
            return total.sqrt()
    except NotImplementedError:  # a layer without forward differentiation
        return None


def _rows_and_columns(representation: Representation, x: Tensor) -> tuple[Tensor, Tensor] | None:
    """Which rows [H, F] and which columns [W, F] of an image like x [1, C, H, W] each unit sees, or None."""
    rows, columns = (_seen(representation, x, dim) for dim in (2, 3))
    return None if rows is None or columns is None else (rows, columns)


def _seen(representation: Representation, x: Tensor, dim: int) -> Tensor | None:
    """Which lines along ``dim`` of an image like x [1, C, H, W] each unit sees, [L, F]; None where that is not clear:
    beside an image with a line that is not a number a whole one has to stay one, and every unit has to see a line."""
    found = []
    for lines in torch.split(torch.arange(x.shape[dim], device=x.device), PROBES):
        probes = torch.zeros_like(x).repeat(1 + len(lines), 1, 1, 1)
        for probe, line in zip(probes[1:], lines, strict=True):
            probe.select(dim - 1, int(line)).fill_(torch.nan)
        with torch.no_grad(), torch.random.fork_rng():
            hidden = representation(probes).isnan()
        if bool(hidden[0].any()):
            return None
        found.append(hidden[1:])
    sees = torch.cat(found)
    return sees if bool(sees.any(0).all()) else None


def _sets(sees: Tensor) -> Tensor:
    """Lines [L, F] of pixels into as few sets as a greedy choice finds, no two of a set seen by one unit: [S, L], 0
    outside, 1 and -1 in turns inside.

    >>> _sets(torch.tensor([[True, False], [True, True], [False, True]])).tolist()
    [[1.0, 0.0, -1.0], [0.0, 1.0, 0.0]]
    """
    meets = (sees.float() @ sees.float().T > 0).tolist()
    sets: list[list[int]] = []
    for line in range(len(sees)):
        room = [members for members in sets if not any(meets[line][other] for other in members)]
        if not room:
            sets.append([])
        (room or sets[-1:])[0].append(line)
    found = torch.zeros(len(sets), len(sees))
    for number, members in enumerate(sets):
        found[number, members] = torch.tensor([(-1.0) ** turn for turn in range(len(members))])
    return found
