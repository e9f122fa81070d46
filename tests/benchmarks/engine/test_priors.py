"""Priors are learnt once a process and are what the attacks take."""

from pathlib import Path

import pytest

from prunella.attacks import ggl, rog
from prunella.benchmarks.engine import priors
from prunella.core.randomness import stream
from prunella.core.types import PrivateBatch
from prunella.tasks.data import Examples


def tiny(classes: int, train: Examples, folder: Path) -> None:
    """Priors that are learnt in a moment."""
    draw, few = stream(0, purpose="prior"), PrivateBatch(train.x[:64], train.y[:64])
    ggl.save(folder / "ggl.safetensors", ggl.train(few, classes, draw, epochs=1, latent=4, width=16))
    rog.save(folder / "rog.safetensors", rog.train(few.x, draw, epochs=1, width=4))


def test_both_are_learnt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(priors, "learn", tiny)
    priors._learnt.cache_clear()
    files = [Path(priors.prior(name, "digits")) for name in priors.LEARNT]
    assert all(file.exists() for file in files) and files[0].parent == files[1].parent
    monkeypatch.setattr(priors, "learn", lambda *asked: pytest.fail("learnt again"))
    assert priors.prior("rog", "digits") == str(files[1])
    priors._learnt.cache_clear()
