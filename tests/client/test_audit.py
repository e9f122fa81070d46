import io
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Context, RecordDict

from prunella.attacks.score.leakage import Leakage, psnr, score
from prunella.attacks.score.level import ORDER
from prunella.client.audit import ANSWERS_PER_ROUND, MAX_PICTURES, answer, truth
from prunella.client.session import Session
from prunella.client.state import Memory, TrainedRound
from prunella.core.errors import DataError
from prunella.core.types import PrivateBatch, Reconstruction
from prunella.privacy.ledger.ledger import Tally
from prunella.tasks.data import Examples, load_public
from prunella.wire.records import flatten, from_dense, to_dense
from tests.local_grid import settings


def made(tmp_path: Path, consent: str | None, **overrides: object) -> Session:
    node = {"partition-id": 0, "num-partitions": 4, "state-dir": str(tmp_path), "client-seed": 3}
    if consent:
        node["audit"] = consent
    run = settings(**{"run_dir": "/x/run", "batch_size": 2, "local_steps": 2, **overrides})
    return Session(Context(1, 1, node, RecordDict(), run))


def session(tmp_path: Path, consent: str | None, **overrides: object) -> Session:
    """A client that trained in round 1."""
    here = made(tmp_path, consent, **overrides)
    here.accounts.key()  # a round is charged before it is trained
    here.store.save(1, Memory({}, Tally()), TrainedRound(here.request("train", 1).digest, here.trained_under))
    return here


def used(here: Session) -> PrivateBatch:
    return truth(here, here.request("train", 1))


def question(x: torch.Tensor, y: torch.Tensor | None = None) -> RecordDict:
    tree = {"x": x} | ({"y": y} if y is not None else {})
    return RecordDict({"audit": ConfigRecord({"round": 1}), "reconstruction": to_dense(tree)})


def ask(here: Session, content: RecordDict, round: int = 1) -> RecordDict:
    return answer(here, content, round)


def outcome(reply: RecordDict) -> str:
    return str(reply["audit"]["outcome"])


@pytest.mark.parametrize("consent", [None, "deny"])
def test_without_consent_nothing_but_the_refusal_leaves(tmp_path: Path, consent: str | None) -> None:
    reply = ask(session(tmp_path, consent), question(torch.rand(4, 1, 8, 8)))
    assert outcome(reply) == "no-consent"
    assert list(reply) == ["audit"]


def test_scores_are_one_word_and_numbers_those_of_the_true_batch(tmp_path: Path) -> None:
    noise = torch.rand((4, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    here = session(tmp_path / "a", "scores")
    private = used(here)
    told = ask(here, question(private.x.flip(0), private.y.flip(0)))
    assert list(told) == ["audit"] and dict(told["audit"]) == {"outcome": "scored", "level": "rebuilt"}
    assert ask(here, question(noise))["audit"]["level"] == "baseline"
    here = session(tmp_path / "b", "numbers")
    private = used(here)
    perfect = ask(here, question(private.x.flip(0), private.y.flip(0)))
    assert outcome(perfect) == "scored" and "pictures" not in perfect
    assert perfect["scores"]["psnr.mean"] == 100.0 and perfect["scores"]["label_accuracy"] == 1.0
    assert ask(here, question(noise))["scores"]["psnr.mean"] < 15


def test_words_are_all_that_scores_ever_tell(tmp_path: Path) -> None:
    g = torch.Generator().manual_seed(0)
    for number in range(0, 12, 2):
        here = session(tmp_path / str(number), "scores")
        near = used(here).x + torch.rand(4, 1, 8, 8, generator=g) * number / 12
        told = ask(here, question(near))
        assert (
            list(told) == ["audit"] and set(told["audit"]) == {"outcome", "level"} and told["audit"]["level"] in ORDER
        )


def test_pictures_are_the_originals_beside_their_matches(tmp_path: Path) -> None:
    here = session(tmp_path, "pictures")
    private = used(here)
    reply = ask(here, question(private.x.flip(0)))
    pictures = from_dense(reply["pictures"])
    assert torch.equal(pictures["original"], private.x)
    assert torch.equal(pictures["reconstruction"], private.x)


def test_of_many_images_the_best_rebuilt_are_sent(tmp_path: Path) -> None:
    """The report's verdict is about the worst leak, and its pictures show it."""
    here = session(tmp_path, "pictures", local_steps=10)
    private = used(here)
    assert len(private.x) == 20 > MAX_PICTURES
    noise = torch.linspace(0.5, 0.0, 20)[:, None, None, None] * torch.ones_like(private.x)
    guesses = private.x * (1 - noise)
    reply = ask(here, question(guesses))
    sent = from_dense(reply["pictures"])
    assert len(sent["original"]) == MAX_PICTURES
    told, all_of_them = psnr(sent["original"], sent["reconstruction"]), psnr(private.x, guesses)
    assert told == sorted(told, reverse=True) == pytest.approx(sorted(all_of_them, reverse=True)[:MAX_PICTURES])
    best = told[0]
    assert best == pytest.approx(reply["scores"]["psnr.worst"], rel=1e-4) and best > 60


@pytest.mark.parametrize("consent", ["scores", "numbers", "pictures"])
def test_a_question_is_rationed_and_odd_ones_are_refused(tmp_path: Path, consent: str) -> None:
    here = session(tmp_path, consent)
    for _ in range(ANSWERS_PER_ROUND):
        assert outcome(ask(here, question(torch.rand(4, 1, 8, 8)))) == "scored"
    assert outcome(ask(here, question(torch.rand(4, 1, 8, 8)))) == "refused"
    assert outcome(ask(here, question(torch.rand(4, 1, 8, 8)), round=2)) == "refused"


def test_answers_are_rationed_over_runs_rounds_and_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.client.audit.AUDITS", 5)
    told = [
        outcome(ask(session(tmp_path, "scores", run_dir=f"/x/{n}", batch_size=2 + n), question(torch.rand(2, 1, 8, 8))))
        for n in range(8)
    ]
    assert told == ["scored"] * 5 + ["refused"] * 3


def test_numbers_stand_beside_images_that_are_anybody_s(tmp_path: Path) -> None:
    here = session(tmp_path, "numbers")
    private = used(here)
    asked = Reconstruction(private.x.flip(0) * 0.8, private.y, 0.0, 1)  # which images these are, the settings decide
    told = ask(here, question(asked.x, asked.y))["scores"]
    mine = score(asked, private, gallery=load_public("digits", None))
    assert {**told} == {k: float(f"{v:.3g}") for k, v in flatten(mine.to_dict()).items()}
    assert told["recognition.hits"] == 4 and told["psnr.blind"] < told["psnr.worst"]


@pytest.mark.parametrize("missing", [None, DataError("no test examples here")])
def test_own_images_decide_the_word_and_leave_no_mark_on_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Exception | None
) -> None:
    """A client of its own data, or without the public part of it: its other images are nobody's business."""

    def none_here(*_: object) -> None:
        if missing is not None:
            raise missing

    monkeypatch.setattr("prunella.client.audit.load_public", none_here)
    replies, galleries = [], []

    def noted(*given: object, gallery: Examples | None = None) -> Leakage:
        galleries.append(gallery)
        return score(*given, gallery=gallery)

    monkeypatch.setattr("prunella.attacks.score.leakage.score", noted)
    foreign = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    for name in ("a", "b"):
        here = session(tmp_path / name, "numbers")
        if name == "b":
            batch = {tuple(x.flatten().tolist()) for x in used(here).x}
            kept = torch.tensor([tuple(x.flatten().tolist()) in batch for x in here.data.all.x])
            here.data.all.x[~kept] = 0.5
        galleries.clear()
        replies.append(dict(ask(here, question(foreign))["scores"]))
        assert galleries[0] is here.data.all and galleries[1] is None
    assert replies[0] == replies[1] and not [name for name in replies[0] if "blind" in name or "recognition" in name]


def test_a_single_image_is_judged_beside_others(tmp_path: Path) -> None:
    levels = []
    for seed in range(5):
        here = session(tmp_path / str(seed), "scores", batch_size=1, local_steps=1)
        noise = torch.rand(1, 1, 8, 8, generator=torch.Generator().manual_seed(seed))
        levels.append(ask(here, question(noise))["audit"]["level"])
    assert levels.count("baseline") >= 4  # of a hundred noises one is nearer than all look-alikes
    assert ask(here, question(0.5 - 0.2 * used(here).x))["audit"]["level"] == "rebuilt"


def test_when_the_numbers_are_used_up_the_word_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.client.audit.NUMBERS", 4)
    told = []
    for n in range(6):
        reply = ask(session(tmp_path, "numbers", run_dir=f"/x/{n}", batch_size=2 + n), question(torch.rand(2, 1, 8, 8)))
        told.append("scores" in reply)
        assert outcome(reply) == "scored"
    assert told == [True] * 4 + [False] * 2


def test_an_audit_under_other_settings_than_the_round_was_trained_with_is_refused(tmp_path: Path) -> None:
    session(tmp_path, "pictures")
    for changed in ({"batch_size": 1}, {"seed": 4}, {"local_steps": 1}, {"defenses": "none"}):
        assert outcome(ask(made(tmp_path, "pictures", **changed), question(torch.rand(1, 1, 8, 8)))) == "refused"
    assert outcome(ask(made(tmp_path, "pictures"), question(torch.rand(1, 1, 8, 8)))) == "scored"


def test_numbers_leave_with_three_digits(tmp_path: Path) -> None:
    reply = ask(session(tmp_path, "numbers"), question(torch.rand(4, 1, 8, 8)))
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
    assert outcome(ask(session(tmp_path, "pictures"), question(x))) == "refused"


@pytest.mark.parametrize(
    "y",
    [
        torch.tensor([0, 1, 2, 4 * 10**8]),
        torch.tensor([0, 1, 2, 10]),
        torch.tensor([0, 1, 2, -1]),
        torch.tensor([0.0, 1.0, 2.0, 3.0]),
        torch.tensor(3),
        torch.tensor([[0], [1], [2], [3]]),
    ],
)
def test_labels_that_are_no_classes_are_refused_before_they_are_scored(
    tmp_path: Path, y: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prunella.attacks.score.leakage.score", lambda *_: pytest.fail("scored"))
    assert outcome(ask(session(tmp_path, "scores"), question(torch.rand(4, 1, 8, 8), y))) == "refused"


@pytest.mark.parametrize("spoil", ["size", "bytes", "type"])
def test_a_reconstruction_that_cannot_be_read_is_refused(tmp_path: Path, spoil: str) -> None:
    """Among others one whose header announces a terabyte."""
    asked = question(torch.rand(4, 1, 8, 8))
    array = asked.array_records["reconstruction"]["x"]
    header = io.BytesIO()
    shape = {"shape": (2**36, 1, 8, 8), "fortran_order": False, "descr": "<f4"}
    np.lib.format.write_array_header_1_0(header, shape)
    array.data = {"size": header.getvalue() + bytes(64), "bytes": b"PK", "type": array.data}[spoil]
    array.stype = "other" if spoil == "type" else array.stype
    assert outcome(ask(session(tmp_path, "scores"), asked)) == "refused"
