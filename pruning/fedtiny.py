"""FedTiny's masks: a pool of coarse ones, and the move of one block. Huang et al., ICDCS 2023 (arXiv 2212.01977).

Coarse pruning. Every candidate keeps as many weights as the rate leaves, each layer its largest by magnitude; how many
of them lie in which layer differs by noise. The first has the same density in every layer.

Progressive pruning, t rounds into the run. In every layer l of the block that is due, a_t = α/2 (1 + cos(π t / T)) n_l
weights move, n_l those it keeps, T the round in which moving ends. A client names its a_t pruned weights with the
largest gradients and their sizes, nothing else; the server grows the a_t weights that lead the clients' sum, at zero,
and prunes as many of those that were there before by magnitude. Blocks are runs of consecutive layers and take turns
from the output to the input.

Departures and readings. The gradient's size is its mean square over the local steps as the defenses left it, where the
paper sums one batch's gradients with their signs: nothing undefended decides what leaves, and no sign does. The paper's
algorithm was not at hand in print: the pool of candidates, a_t and the averages are those of the authors' program
(FedPruning), block and order are as the paper is cited. Noise is uniform, a layer's share times 1 ± ``noise``. No layer
loses its last weight; the output layer is pruned like the others.

>>> mask = {"w": torch.tensor([True, True, False, False])}
>>> told = reported({"w": torch.tensor([9.0, 9.0, 1.0, 4.0])}, mask, {"w": 1})
>>> told["w"].tolist()
[0.0, 0.0, 0.0, 4.0]
>>> grow_and_prune({"w": torch.tensor([2.0, 1.0, 0.0, 0.0])}, told, mask, {"w": 1})["w"].tolist()
[True, False, False, True]
"""

from collections.abc import Mapping, Sequence, Set

import torch

from prunella.core.randomness import stream
from prunella.core.ranking import keep_largest, keep_smallest
from prunella.core.trees import Mask, Tree, full_mask, zeros_like
from prunella.pruning.erk import proportional_counts, uniform_counts
from prunella.pruning.scores import magnitude
from prunella.pruning.selection import keep_counts, kept_count

Counts = Mapping[str, int]


def candidate_masks(
    params: Tree, prunable: Set[str], rate: float, plan: tuple[int, float], seed: int
) -> tuple[Mask, ...]:
    """The pool; ``plan`` is how many there are and the noise. The same for the same seed and weights."""
    count, noise = plan
    shapes = {name: tuple(params[name].shape) for name in params if name in prunable}
    total = kept_count(sum(params[name].numel() for name in shapes), rate)
    masks = []
    for number in range(count):
        counts = uniform_counts(shapes, total)
        if number:
            draw = torch.rand(len(shapes), generator=stream(seed, client=number, purpose="fedtiny-candidate"))
            spread = (1 + noise * (2 * draw.double() - 1)).tolist()
            shares = {name: params[name].numel() * part for name, part in zip(shapes, spread, strict=True)}
            counts = proportional_counts(shapes, total, shares)
        masks.append({**full_mask(params), **keep_counts(magnitude(params), counts)})
    return tuple(masks)


def block(layers: Sequence[str], blocks: int, turn: int) -> tuple[str, ...]:
    """The layers of the block whose turn it is, from 0: the last block first, then the one before it.

    >>> [block(["a", "b", "c", "d", "e"], 2, turn) for turn in range(3)]
    [('d', 'e'), ('a', 'b', 'c'), ('d', 'e')]
    """
    blocks = min(blocks, len(layers))
    ends = [-(-len(layers) * number // blocks) for number in range(blocks + 1)]
    at = blocks - 1 - turn % blocks
    return tuple(layers[ends[at] : ends[at + 1]])


def moved(mask: Mask, layers: Sequence[str], share: float) -> dict[str, int]:
    """How many weights move in each layer: ``share`` of those it keeps, at most what it has pruned, and one stays.

    >>> moved({"w": torch.tensor([True] * 5 + [False] * 2)}, ["w"], 0.5)
    {'w': 2}
    """
    counts = {}
    for name in layers:
        held = int(mask[name].sum())
        counts[name] = max(0, min(int(share * held), held - 1, mask[name].numel() - held))
    return counts


def reported(squares: Tree, mask: Mask, counts: Counts) -> Tree:
    """What a client tells: of every layer with a count its largest squares outside the mask, zero everywhere else."""
    told = zeros_like(squares)
    for name, count in counts.items():
        outside = squares[name].masked_fill(mask[name], -1.0)
        told[name] = torch.where(keep_largest(outside, count), squares[name], told[name])
    return told


def grow_and_prune(params: Tree, votes: Tree, mask: Mask, counts: Counts) -> Mask:
    """The next mask. ``votes`` are the clients' reports, summed; what nobody named cannot grow, so fewer weights may
    move. Every layer keeps its number of weights. Ties go to the lowest index."""
    after = dict(mask)
    for name, most in counts.items():
        named = votes[name].masked_fill(mask[name], 0.0)
        count = min(most, int((named > 0).sum()))
        grown = keep_largest(named, count)
        size = params[name].abs().masked_fill(~mask[name], torch.inf)
        after[name] = (mask[name] & ~keep_smallest(size, count)) | grown
    return after
