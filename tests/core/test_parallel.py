import threading
import time

import pytest
import torch

from prunella.core import parallel
from prunella.core.parallel import MOST, each, threads


@pytest.mark.parametrize("workers", [1, 3])
def test_results_keep_the_order_and_the_first_error_is_raised(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    monkeypatch.setattr(parallel, "threads", lambda: workers)
    assert each(lambda x: x * x, list(range(20))) == [x * x for x in range(20)]
    with pytest.raises(ZeroDivisionError):
        each(lambda x: 1 / x, [1, 0, 2])
    assert each(len, []) == []


def test_after_an_error_nothing_more_is_begun_and_all_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "threads", lambda: 3)
    begun: set[int] = set()

    def work(x: int) -> None:
        begun.add(x)
        if x == 5:
            raise LookupError(x)
        time.sleep(0.001)

    with pytest.raises(LookupError, match="5"):
        each(work, range(1000))
    assert begun >= set(range(6)) and len(begun) < 20


def test_threads_are_several_and_gone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "threads", lambda: 2)
    before, barrier = threading.active_count(), threading.Barrier(2, timeout=20)
    each(lambda _: barrier.wait(), [0, 1])  # passes only if two run at once
    assert threading.active_count() == before


def test_as_many_as_torch_and_few() -> None:
    assert threads() == min(MOST, torch.get_num_threads())
