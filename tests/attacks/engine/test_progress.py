import pytest
import torch

from prunella.attacks.engine.inversion import Inversion
from prunella.attacks.engine.progress import Progress
from prunella.core.errors import AttackError
from prunella.core.types import Reconstruction


def snapshot(objective: float, iteration: int) -> Reconstruction:
    return Reconstruction(torch.zeros(1), None, objective, iteration)


def test_stops_when_patience_runs_out_or_the_fit_is_good() -> None:
    progress = Progress(Inversion(patience=2, tolerance=0.1), snapshot)
    assert [progress.stop(value, i) for i, value in enumerate([1.0, 0.9999, 0.9998])] == [False, False, True]
    assert progress.best.objective == 0.9998 and progress.best.iterations == 2
    assert Progress(Inversion(tolerance=0.1), snapshot).stop(0.1, 0)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(AttackError, match="not finite"):
            Progress(Inversion(), snapshot).stop(bad, 0)


def test_patience_is_used_up_in_steps_and_an_improvement_restores_it() -> None:
    progress = Progress(Inversion(patience=40), snapshot, step=20)
    assert [progress.stop(value, 0) for value in (1.0, 1.0, 0.5, 0.5, 0.6)] == [False, False, False, False, True]
    assert progress.best.objective == 0.5
