"""``torch.fx``'s symbolic tracing beside other threads.

While it traces, PyTorch's tracer puts itself in place of ``__call__`` and ``__getattr__`` of every module of the
process. A forward pass that another thread makes meanwhile, such as the server's evaluation, was then taken for a part
of what is traced: an error, or, of the same module, a graph and a result that are wrong. Here other threads pass, and
one trace waits for another.

>>> [node.op for node in symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())).graph.nodes]
['placeholder', 'call_module', 'call_module', 'output']
"""

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn

_ONE = threading.RLock()


class _OfThisThread(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        if threading.get_ident() != self._thread:
            return attr_val
        return super().getattr(attr, attr_val, parameter_proxy_cache)


def symbolic_trace(module: nn.Module) -> fx.GraphModule:
    """As ``torch.fx.symbolic_trace``, whose errors it raises."""
    with _ONE:
        tracer = _OfThisThread()
        graph = tracer.trace(module)
    return fx.GraphModule(tracer.root, graph, type(module).__name__)
