"""Tracing beside a thread that calls modules: PyTorch's own tracer takes these calls for its own."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import fx, nn

from prunella.core.tracing import symbolic_trace


class Slow(nn.Module):
    """Traced for as long as the other thread takes for a pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(4, 4), nn.Parameter(torch.ones(4))
        self.meanwhile: Callable[[], None] = lambda: None

    def forward(self, x: Any) -> Any:
        self.meanwhile()
        return self.inner(x) * self.scale


@contextmanager
def asked_within(module: Slow, other: nn.Module) -> Iterator[list[Any]]:
    """What ``other`` answers in another thread while ``module`` is being traced."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(other(torch.ones(1, 4)))
        except BaseException as error:  # noqa: BLE001 - what a thread of its own would die of
            found.append(error)

    def meanwhile() -> None:
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()

    module.meanwhile = meanwhile
    yield found
    module.meanwhile = lambda: None


@pytest.mark.parametrize("trace", [symbolic_trace, fx.symbolic_trace])
def test_another_thread_calls_its_modules_as_ever(trace: Callable[[nn.Module], fx.GraphModule]) -> None:
    module, other = Slow(), nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    with asked_within(module, other) as found:
        graph = trace(module)
    if trace is fx.symbolic_trace:
        assert isinstance(found[0], NameError), "PyTorch mends it: core/tracing.py can go"
    else:
        torch.testing.assert_close(found[0], other(torch.ones(1, 4)))
        torch.testing.assert_close(graph(torch.ones(1, 4)), module(torch.ones(1, 4)))


def test_the_same_module_s_call_is_no_part_of_the_graph() -> None:
    module = Slow()
    with asked_within(module, module.inner) as found:
        graph = symbolic_trace(module)
    assert isinstance(found[0], torch.Tensor)
    assert [str(n.target) for n in graph.graph.nodes if n.op != "call_function"] == ["x", "inner", "scale", "output"]


def test_one_trace_waits_for_another_and_modules_are_whole_afterwards() -> None:
    before = nn.Module.__call__, nn.Module.__getattr__
    graphs: list[fx.GraphModule] = []

    def trace() -> None:
        for _ in range(20):
            graphs.append(symbolic_trace(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))))

    threads = [threading.Thread(target=trace) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(graphs) == 80 and {len(graph.graph.nodes) for graph in graphs} == {5}
    assert (nn.Module.__call__, nn.Module.__getattr__) == before
