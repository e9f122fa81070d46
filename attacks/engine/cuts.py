"""Where an image passes through few numbers on its way through a model, and which gradients follow from these.

If all that a model makes of an image goes through a tensor of few values (a *cut*), then whatever is used behind it,
and so its gradient, depends on the image through these values alone. However many of these gradients arrive, they tell
no more than the values. Cuts are found in the graph that autograd keeps of one image of zeros: removing the tensor
parts the image from the logits. So nothing depends on what a model's layers are called or made of: attention, a
parameter of its own in a matrix product, a layer whose weight is made of others. What a skip connection leads around is
no cut.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from prunella.tasks.training import mode

Node = Any  # of autograd's graph


class _Results(TorchFunctionMode):
    """Notes the size of each result of PyTorch's functions, by its node in the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes = dict[Node, int]()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor) and found.grad_fn is not None:
            self.sizes[found.grad_fn] = found.numel()
        return found


def _reached(end: Node, without: Node) -> set[Node]:
    """The nodes that ``end`` was made of, but for those by way of ``without`` only."""
    seen, open_nodes = {without}, [end]
    while open_nodes:
        node = open_nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            open_nodes += [before for before, _ in node.next_functions]
    return seen - {without}


def _leaves(nodes: Iterable[Node]) -> set[int]:
    """The tensors at the beginning of the graph, by identity."""
    return {id(node.variable) for node in nodes if hasattr(node, "variable")}


def _answer(module: nn.Module, x: Tensor, params: Mapping[str, Tensor], results: _Results) -> Tensor:
    """What ``module`` makes of x in evaluation mode, with its graph."""
    with mode(module, False), torch.enable_grad(), results:
        answer: Tensor = functional_call(module, dict(params), (x,))
    return answer


def cuts(module: nn.Module, shape: tuple[int, int, int]) -> list[tuple[int, frozenset[str]]]:
    """Of every cut that is narrower than an image [C, H, W]: how many values it has, and the names of the parameters
    behind it, once each with the fewest values. A model that does not take an image of zeros has none."""
    named = list(module.named_parameters())
    if not named:
        return []
    params = {name: parameter.detach().requires_grad_() for name, parameter in named}
    x = torch.zeros(1, *shape, device=named[0][1].device, requires_grad=True)
    results = _Results()
    try:
        answer = _answer(module, x, params, results)
    except Exception:  # noqa: BLE001 - somebody's own model: what then stands is the plain count
        return []
    least = dict[frozenset[str], int]()
    for node, size in results.sizes.items():
        if size >= x.numel() or node is answer.grad_fn:
            continue
        leaves = _leaves(_reached(answer.grad_fn, node))
        names = frozenset(name for name, parameter in params.items() if id(parameter) in leaves)
        if id(x) not in leaves and names:
            least[names] = min(size, least.get(names, size))
    return sorted(((size, names) for names, size in least.items()), key=lambda cut: -len(cut[1]))
