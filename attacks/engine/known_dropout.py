"""The units that dropout took from one image, read off the gradient of the linear layer behind it.

z = W a + b gives dW = d a^T for one image: where a unit was dropped, a_j and the column j of dW are exactly zero. All
other units were kept, and PyTorch multiplied them by 1 / (1 - p). A unit that is zero by itself, as behind a ReLU, has
such a column too; taking it for dropped changes nothing of what is matched for the image itself.

A mask is fixed for one image in one step only, since every image and step has a mask of its own. A column of which
nothing arrived tells nothing: its unit keeps the mean of dropout, a factor of 1. Where the view does not say what
arrived, and a defense stands in between, and where fewer columns are zero than dropout leaves, as under noise, no mask
is read. Shapes: dW [K, F]. No errors: what cannot be read is left as it is.
"""

import torch
from torch import Tensor, fx, nn

from prunella.core.tracing import symbolic_trace
from prunella.core.trees import Tree
from prunella.core.types import ServerView

_RESHAPES = ("flatten", "view", "reshape", "contiguous")
_ROUNDING = 2.0**-22  # of a float32 weight, relative: what its decay leaves of a gradient that is zero
_LIKELY = 1e-3  # that dropout leaves so few columns of zeros, or fewer: what is less likely is noise


class KnownDropout(nn.Module):
    """Dropout whose draw is known: ``factor`` [F] for each unit of one image, however it is shaped; of anything else,
    the identity."""

    def __init__(self, factor: Tensor) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        if x[0].numel() != self.factor.numel():
            return x
        return x * self.factor.to(x).reshape(x.shape[1:])


def one_image(view: ServerView) -> bool:
    """Whether the update is of one image in one step."""
    known = [] if view.images_used is None else [view.images_used]
    known += [] if view.labels is None else [len(view.labels)]
    return (view.steps or 1) == 1 and min(known, default=0) == 1


def _reshapes(node: fx.Node, module: nn.Module) -> bool:
    if node.op == "call_module":
        return isinstance(module.get_submodule(str(node.target)), nn.Flatten | nn.Identity)
    return node.op in ("call_method", "call_function") and getattr(node.target, "__name__", node.target) in _RESHAPES


def dropout_before_linear(module: nn.Module) -> list[tuple[str, str]]:
    """The names of every dropout layer whose output is the input of a linear layer, flattened at most, and of that
    layer, if each is called once. A model that cannot be traced has none.

    >>> layers = nn.Linear(4, 4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4, 2)
    >>> dropout_before_linear(nn.Sequential(*layers))
    [('1', '3')]
    """
    try:
        nodes = list(symbolic_trace(module).graph.nodes)
    except Exception:  # noqa: BLE001 - whatever a stranger's model does when it is traced, it can still be attacked
        return []
    called = [str(node.target) for node in nodes if node.op == "call_module"]
    once = [n for n in nodes if n.op == "call_module" and called.count(str(n.target)) == 1]
    found: list[tuple[str, str]] = []
    for node in once:
        if not isinstance(module.get_submodule(str(node.target)), nn.Linear):
            continue
        before = node.all_input_nodes[0]
        while len(before.all_input_nodes) == 1 and _reshapes(before, module):
            before = before.all_input_nodes[0]
        if before in once and isinstance(module.get_submodule(str(before.target)), nn.Dropout):
            found.append((str(before.target), str(node.target)))
    return found


def factors(gradient: Tensor, arrived: Tensor, p: float) -> Tensor | None:
    """What dropout multiplied every unit by, [F], from dW [K, F] and where it arrived; None where it is no dropout's.

    >>> gradient = torch.tensor([[0.0, 2.0, 0.0], [0.0, -1.0, 0.0]])
    >>> factors(gradient, torch.tensor([[True, True, False]]).expand(2, 3), 0.5).tolist()
    [0.0, 2.0, 1.0]
    """
    from scipy.special import bdtr  # scipy.stats would be a second of importing, in every process of a run

    nonzero = gradient != 0
    told = (arrived & nonzero.any(dim=1, keepdim=True)).any(dim=0)  # by a row that says anything
    kept, units = nonzero.any(dim=0), int(told.sum())
    if not units or bdtr(int((told & ~kept).sum()), units, p) < _LIKELY:
        return None
    return torch.where(told, kept / (1 - p), torch.ones_like(gradient[0]))


def fix_dropout(module: nn.Module, view: ServerView, gradient: Tree) -> None:
    """Put a ``KnownDropout`` in the place of every dropout layer of which the gradient of one image tells the draw."""
    drawing = any(isinstance(layer, nn.Dropout) and 0 < layer.p < 1 for layer in module.modules())
    if not drawing or not one_image(view) or (view.shared is None and not set(view.defenses) <= {"none"}):
        return
    for name, linear in dropout_before_linear(module):
        layer, weight = module.get_submodule(name), gradient.get(f"{linear}.weight")
        if not isinstance(layer, nn.Dropout) or not 0 < layer.p < 1 or weight is None:
            continue
        if view.weight_decay:  # what is left by rounding where the decayed weights were taken away
            rounded = _ROUNDING * view.params[f"{linear}.weight"].to(weight).abs() / (view.learning_rate or 1.0)
            weight = torch.where(weight.abs() <= rounded, torch.zeros_like(weight), weight)
        arrived = torch.ones_like(weight, dtype=torch.bool) if view.shared is None else view.shared[f"{linear}.weight"]
        factor = factors(weight, arrived, layer.p)
        if factor is not None:
            parent, _, own = name.rpartition(".")
            setattr(module.get_submodule(parent), own, KnownDropout(factor))
