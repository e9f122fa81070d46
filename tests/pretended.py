"""A CUDA device that is not there, for tests: tensors that say they lie on it, and have values all the same.

Within ``Pretended()`` whatever is moved or made on CUDA is a ``Placed``, and an operation between a ``Placed`` and a
tensor of the CPU raises as it would on a GPU. Values are computed on the CPU, so that attacks may branch on them and
learn from them, which fake tensors (the fixture ``fake``) cannot carry.

What passes on a GPU passes here: a number (0-d) of the CPU meets any tensor, and a CPU tensor may index one on CUDA.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

CUDA = torch.device("cuda", 0)
_ATEN = torch.ops.aten
_MOVES = (_ATEN._to_copy.default, _ATEN.copy_.default, _ATEN.copy.default)
_INDEXED = (_ATEN.index.Tensor, _ATEN.index_put_.default, _ATEN.index_put.default, _ATEN._index_put_impl_.default)


class DeviceError(AssertionError):
    """PyTorch's is a RuntimeError, which a portfolio takes for an attack that does not fit."""


class Placed(Tensor):
    """A tensor on CUDA, whose values are those of ``held`` on the CPU."""

    held: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> "Placed":
        # To PyTorch's own code it lies on "lazy", for which autograd asks no driver.
        shell: Placed = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device="lazy"
        )
        shell.held = held
        return shell

    @property
    def device(self) -> torch.device:
        return CUDA

    def __repr__(self, **given: Any) -> str:
        return f"{self.held} on {CUDA}"

    def numpy(self, **given: Any) -> Any:
        raise DeviceError(f"a tensor on {CUDA} has no numpy array")

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {})


class Pretended(TorchDispatchMode):
    """PyTorch with a CUDA device."""

    def __enter__(self) -> "Pretended":
        # A list, as an index or in torch.tensor, becomes a tensor on the CPU that is moved then, which is seen here.
        torch._C._set_only_lift_cpu_tensors(True)
        super().__enter__()
        return self

    def __exit__(self, *given: Any) -> None:
        super().__exit__(*given)
        torch._C._set_only_lift_cpu_tensors(False)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {})


def at_home(value: Any) -> Any:
    if isinstance(value, Placed):
        return value.held
    return type(value)(map(at_home, value)) if type(value) in (list, tuple) else value


def carried_out(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Without PyTorch's trees but for odd results: this is most of what a test within ``Pretended()`` computes."""
    leaves = [*args, *kwargs.values()]
    for leaf in leaves:  # which grows
        if type(leaf) in (list, tuple):
            leaves.extend(leaf)
    placed = [leaf for leaf in leaves if isinstance(leaf, Placed)]
    there = bool(placed) if kwargs.get("device") is None else torch.device(kwargs["device"]).type in ("cuda", "lazy")
    if func == _ATEN.copy_.default:
        there = isinstance(args[0], Placed)
    elif placed and func not in _MOVES:
        met = [*args[:1], *args[2:3]] if func in _INDEXED and isinstance(args[0], Placed) else leaves
        if any(isinstance(each, Tensor) and not isinstance(each, Placed) and each.dim() for each in met):
            raise DeviceError(f"{func} of tensors on more than one device, {CUDA} and cpu")
    if there and any(isinstance(leaf, torch.Generator) for leaf in leaves):  # all generators here are of the CPU
        raise DeviceError(f"{func} on {CUDA} with a generator of the cpu")
    if there and kwargs.get("device") is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    found = func(*map(at_home, args), **{name: at_home(value) for name, value in kwargs.items()})
    if not there:
        return found
    known = {id(each.held): each for each in placed}  # an operation in place gives the tensor itself

    def there_too(leaf: Any) -> Any:
        return leaf if not isinstance(leaf, Tensor) else known[id(leaf)] if id(leaf) in known else Placed(leaf)

    return there_too(found) if isinstance(found, Tensor) else tree_map(there_too, found)
