"""A change laid over the last round's weights, on real handlers; what does not fit is refused."""

from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from prunella.client.download import receive_model
from prunella.client.state import ClientStore
from prunella.core.errors import PrunellaError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, apply_mask, full_mask, where
from prunella.privacy.adgp import AlignedPruning, drawn_set
from prunella.strategies.round.locations import digest_of
from prunella.tasks.task import initial
from prunella.wire.records import mask_from_coded, mask_to_coded, to_coded
from tests.client.test_app import TASK, send

PARAMS = initial(TASK, 0)[0]
FULL = full_mask(PARAMS)
SETS = [drawn_set(FULL, AlignedPruning(), rehearsal(n, purpose="x")) for n in range(3)]


def message(round: int, arrays: dict[str, object], locations: Mask | None = None, **config: object) -> RecordDict:
    extra = {} if locations is None else {"locations": mask_to_coded(locations, FULL)}
    return RecordDict({**arrays, **extra, "config": ConfigRecord({"round": round, "importance": [], **config})})  # type: ignore[dict-item]


def whole(params: Tree, known: bool = False) -> dict[str, object]:
    return {"model": to_coded(params, FULL, FULL if known else None)}


def changed(round: int) -> tuple[Tree, RecordDict]:
    """New weights inside the first round's set, and the message that brings them."""
    new = where(SETS[0], {n: t + 0.01 for n, t in PARAMS.items()}, PARAMS)
    change = {"change": to_coded(apply_mask(new, SETS[0]), SETS[0], SETS[0])}
    return new, message(round, change, SETS[1], **{"model-digest": digest_of(new)})


def test_a_change_and_the_whole_give_the_same_answer_and_the_set_that_was_asked_for(tmp_path: Path) -> None:
    first = message(1, whole(PARAMS), SETS[0])
    send(tmp_path / "a", "train", first, defenses="adgp")
    send(tmp_path / "b", "train", first, defenses="adgp")
    new, second = changed(2)
    second["config"]["locations"] = True
    by_change = send(tmp_path / "a", "train", second, defenses="adgp").content
    by_whole = send(tmp_path / "b", "train", message(2, whole(new, True), SETS[1]), defenses="adgp").content
    assert by_change["update"] == by_whole["update"]
    proposal = mask_from_coded(by_change["locations"], FULL, FULL)
    assert 0.39 < sum(int(t.sum()) for t in proposal.values()) / sum(t.numel() for t in proposal.values()) < 0.41
    assert "locations" not in by_whole.keys()  # nobody asked


def test_a_change_comes_in_the_order_of_the_model_which_draws_depend_on(tmp_path: Path) -> None:
    like = {"w": torch.zeros(10, 10), "b": torch.zeros(10)}  # a file orders them by name
    inside = drawn_set(full_mask(like), AlignedPruning(), rehearsal(0, purpose="x"))
    store = ClientStore(tmp_path, "run")
    store.save_mask(full_mask(like))
    store.save_model(like, inside)
    told = ConfigRecord({"model-digest": digest_of(like)})
    change = RecordDict({"change": to_coded(like, inside, inside), "config": told})
    params, mask = receive_model(store, change, like)
    assert list(params) == list(mask) == list(like)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("nothing kept", "no model to apply it to"),
        ("digest", "not the one that the server has"),
        ("mask", "come out|reference|mask"),
    ],
)
def test_a_change_that_cannot_be_right_is_refused(tmp_path: Path, fault: str, words: str) -> None:
    if fault != "nothing kept":
        send(tmp_path, "train", message(1, whole(PARAMS), SETS[0]), defenses="adgp")
    _, second = changed(2)
    if fault == "digest":
        second["config"]["model-digest"] = "0"
    if fault == "mask":  # coded over another set than this client had
        new = {n: t + 0.01 for n, t in PARAMS.items()}
        second["change"] = to_coded(apply_mask(new, SETS[2]), SETS[2], SETS[2])
    with pytest.raises(PrunellaError, match=words):
        send(tmp_path, "train", second, defenses="adgp")


def test_a_round_without_a_set_or_with_the_last_one_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrunellaError, match="no location set"):
        send(tmp_path, "train", message(1, whole(PARAMS)), defenses="adgp")
    send(tmp_path, "train", message(1, whole(PARAMS), SETS[0]), defenses="adgp")
    send(tmp_path, "train", message(1, whole(PARAMS, True), SETS[0]), defenses="adgp")  # a server that resumed
    with pytest.raises(PrunellaError, match="again"):
        send(tmp_path, "train", message(2, whole(PARAMS, True), SETS[0]), defenses="adgp")
    zeros = {n: torch.zeros_like(t) for n, t in FULL.items()}
    with pytest.raises(PrunellaError, match="holds 0"):
        send(tmp_path, "train", message(2, whole(PARAMS, True), zeros), defenses="adgp")
