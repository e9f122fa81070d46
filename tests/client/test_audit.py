from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict

from client.audit import answer, truth
from client.session import Session
from client.state import ANSWERS_PER_ROUND, Memory
from core.records import from_dense, to_dense
from privacy.ledger import Ledger
from tests.local_grid import settings


def session(tmp_path: Path, consent: str | None) -> Session:
    node = {"partition-id": 0, "num-partitions": 4, "state-dir": str(tmp_path), "client-seed": 3}
    if consent:
        node["audit"] = consent
    run = settings(run_dir="/x/run", batch_size=2, local_steps=2)
    made = Session(Context(1, 1, node, RecordDict(), run))
    made.store.save(1, Memory({}, Ledger()))
    return made


def question(x: torch.Tensor, y: torch.Tensor | None = None, round: int = 1) -> RecordDict:
    tree = {"x": x} | ({"y": y} if y is not None else {})
    return RecordDict({"audit": ConfigRecord({"round": round}), "reconstruction": to_dense(tree)})


def outcome(reply: RecordDict) -> str:
    return str(reply["audit"]["outcome"])


@pytest.mark.parametrize("consent", [None, "deny"])
def test_without_consent_nothing_but_the_refusal_leaves(tmp_path: Path, consent: str | None) -> None:
    reply = answer(session(tmp_path, consent), question(torch.rand(4, 1, 8, 8)))
    assert outcome(reply) == "no-consent"
    assert list(reply) == ["audit"]


def test_scores_leave_without_pictures_and_are_those_of_the_true_batch(tmp_path: Path) -> None:
    here = session(tmp_path, "scores")
    private = truth(here, 1)
    perfect = answer(here, question(private.x.flip(0), private.y.flip(0)))
    assert outcome(perfect) == "scored" and "pictures" not in perfect
    assert perfect["scores"]["psnr.mean"] == 100.0 and perfect["scores"]["label_accuracy"] == 1.0
    noise = answer(here, question(torch.rand(4, 1, 8, 8)))
    assert noise["scores"]["psnr.mean"] < 15


def test_pictures_are_the_originals_beside_their_matches(tmp_path: Path) -> None:
    here = session(tmp_path, "pictures")
    private = truth(here, 1)
    reply = answer(here, question(private.x.flip(0)))
    pictures = from_dense(reply["pictures"])
    assert torch.equal(pictures["original"], private.x)
    assert torch.equal(pictures["reconstruction"], private.x)


def test_a_question_is_rationed_and_odd_ones_are_refused(tmp_path: Path) -> None:
    here = session(tmp_path, "scores")
    for _ in range(ANSWERS_PER_ROUND):
        assert outcome(answer(here, question(torch.rand(4, 1, 8, 8)))) == "scored"
    assert outcome(answer(here, question(torch.rand(4, 1, 8, 8)))) == "refused"
    assert outcome(answer(here, question(torch.rand(4, 1, 8, 8), round=2))) == "refused"


def test_the_same_images_under_another_run_name_are_the_same_question(tmp_path: Path) -> None:
    first = session(tmp_path, "scores")
    for _ in range(ANSWERS_PER_ROUND):
        answer(first, question(torch.rand(4, 1, 8, 8)))
    renamed = settings(run_dir="/x/another", batch_size=2, local_steps=2)
    node = {"partition-id": 0, "num-partitions": 4, "state-dir": str(tmp_path), "client-seed": 3, "audit": "scores"}
    again = Session(Context(1, 1, node, RecordDict(), renamed))
    again.store.save(1, Memory({}, Ledger()))
    assert outcome(answer(again, question(torch.rand(4, 1, 8, 8)))) == "refused"


def test_scores_leave_with_three_digits(tmp_path: Path) -> None:
    reply = answer(session(tmp_path, "scores"), question(torch.rand(4, 1, 8, 8)))
    assert all(float(f"{value:.3g}") == value for value in reply["scores"].values())


@pytest.mark.parametrize(
    "x",
    [
        torch.rand(5, 1, 8, 8),
        torch.rand(4, 1, 9, 8),
        torch.rand(0, 1, 8, 8),
        torch.full((1, 1, 8, 8), float("nan")),
        torch.rand(4),
    ],
)
def test_more_images_than_were_used_other_shapes_and_nan_are_refused(tmp_path: Path, x: torch.Tensor) -> None:
    assert outcome(answer(session(tmp_path, "pictures"), question(x))) == "refused"
