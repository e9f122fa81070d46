"""The guard on real handlers: what leaves is noised or nothing, and only the error says that it was withheld."""

from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.client.state import ClientStore
from prunella.core.errors import DefenseError
from prunella.strategies.round.replies import read_importance
from prunella.tasks.task import initial
from prunella.tasks.training import loss_and_gradient
from tests.client.test_app import TASK, model, send
from tests.client.test_charging import update_of
from tests.client.test_session import session

ONE: dict[str, Any] = {"local_steps": 1, "batch_size": 1, "leakage-guard.iterations": 40}


def unguarded(home: Path) -> torch.Tensor:
    """The update of the round that the client in ``home`` trained, from the same batch and with no defense."""
    here = session(home, {"partition-id": 0, "client-seed": 1}, defenses="none", **ONE)
    trained = here.store.trained(1)
    assert trained is not None
    batch = next(here.batches(here.trained(trained.request)))
    params, _ = initial(TASK, 0)
    _, gradient, _ = loss_and_gradient(TASK.build(), params, {}, batch.x, batch.y)
    return torch.cat([-0.25 * t.flatten() for t in gradient.values()])


def test_a_guarded_update_is_noised_and_says_nothing_more(tmp_path: Path) -> None:
    plain = send(tmp_path / "a", "train", model(), defenses="none", **ONE).content
    # Long enough to be far above the limit, whatever is drawn: draws follow from all settings, new ones too.
    some = ONE | {
        "leakage-guard.iterations": 150,
        "leakage-guard.psnr": 20.0,
        "leakage-guard.ssim": 0.999,
        "leakage-guard.ncc": 0.999,
    }
    guarded = send(tmp_path / "b", "train", model(), defenses="leakage-guard", **some).content
    assert set(plain) == set(guarded) and set(guarded["metrics"]) == {"num-examples"} < set(plain["metrics"])
    assert guarded["provenance"]["applied"] == ["leakage-guard"]
    one, two = unguarded(tmp_path / "b"), update_of(guarded)
    assert not torch.allclose(one, two, atol=1e-6) and torch.corrcoef(torch.stack([one, two]))[0, 1] > 0.1
    assert "score" not in str(guarded["ledger"]) and "psnr" not in str(guarded["ledger"])
    kept = ClientStore(tmp_path / "b", "run").load(2).state["leakage-guard"]["level"]["level"]
    assert int(kept) == 4  # whoever does not look next time gets the most noise


def test_a_threshold_nothing_meets_lets_everything_through(tmp_path: Path) -> None:
    high = {"leakage-guard.psnr": 101.0, "leakage-guard.ssim": 1.0, "leakage-guard.ncc": 1.0}
    long = ONE | high | {"leakage-guard.iterations": 150}  # until no other images explain the update
    guarded = send(tmp_path, "train", model(), defenses="leakage-guard", **long).content
    assert torch.allclose(update_of(guarded), unguarded(tmp_path), atol=1e-6)


def test_a_withheld_update_leaves_no_reply_and_no_state(tmp_path: Path) -> None:
    with pytest.raises(DefenseError, match="^leakage-guard: this update is withheld$"):
        send(tmp_path, "train", model(), defenses="leakage-guard", **ONE, **{"leakage-guard.psnr": 0.01})
    assert not list(tmp_path.rglob("round-*"))


def test_squared_gradients_that_no_noise_covers_stay_here(tmp_path: Path) -> None:
    """Of pruned weights, too: one step's squares alone name the image."""
    for defenses, some in (("leakage-guard", False), ("none", True)):
        asked = model(4, ["0.0.weight"], keep=0.5)
        content = send(tmp_path / defenses, "train", asked, defenses=defenses, strategy="prunefl", **ONE).content
        params, _ = initial(TASK, 0)
        squares = read_importance(content["importance"], {"0.0.weight": params["0.0.weight"]})
        assert bool(squares["0.0.weight"].any()) == some
