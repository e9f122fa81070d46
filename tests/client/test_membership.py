"""The client's half of the membership question, by real messages: a round that is audited, then the question."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from flwr.app import ConfigRecord, Message, RecordDict

from prunella.attacks.score.membership import STEP, Separation, Word, compare
from prunella.client.audit import ANSWERS_PER_ROUND, truth
from prunella.client.membership import MOST
from prunella.core.trees import full_mask
from prunella.tasks.data import Examples, Partition, load_client
from prunella.tasks.task import initial
from prunella.wire.records import to_coded, to_dense
from tests.client.test_app import TASK, send
from tests.client.test_audit import made

RUN = {"rounds": 1, "audit_every": 1, "defenses": "none", "local_steps": 8, "batch_size": 16}


def trained(tmp_path: Path, consent: str | None = "pictures", round: int = 1, **overrides: Any) -> dict[str, Any]:
    """The node configuration of a client that has trained in an audited round."""
    node = {"audit": consent}
    params, _ = initial(TASK, 0)
    content = {"model": to_coded(params, full_mask(params)), "config": ConfigRecord({"round": round, "importance": []})}
    reply = send(tmp_path, "train", RecordDict(content), node, **{**RUN, **overrides})
    assert reply.has_content(), reply.error
    return node


def ask(tmp_path: Path, node: dict[str, Any], content: RecordDict | None = None, **overrides: Any) -> Message:
    content = content or RecordDict({"audit": ConfigRecord({"round": 1})})
    return send(tmp_path, "query.membership", content, node, **{**RUN, **overrides})


def outcome(reply: Message) -> str:
    return str(reply.content["audit"]["outcome"])


def test_numbers_are_rates_of_groups_and_nothing_else(tmp_path: Path) -> None:
    reply = ask(tmp_path, trained(tmp_path)).content
    assert set(reply) == {"audit", "membership"} and set(reply["audit"]) == {"outcome", "word"}
    told = dict(reply["membership"])
    assert {name.partition(".")[0] for name in told} == {"local", "drop", "alignment"}
    assert {name.partition(".")[2] for name in told} == {"members", "outsiders", "auc", "loose"}
    for score in ("local", "drop", "alignment"):
        assert told[f"{score}.members"] == 128 and told[f"{score}.loose"] % STEP == 0
        assert round(told[f"{score}.auc"], 2) == told[f"{score}.auc"]


def test_members_are_the_examples_of_the_kept_rounds_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two audited rounds: what ``client.audit`` takes for their truth."""
    found: list[torch.Tensor] = []

    def noted(*_: Any) -> dict[str, torch.Tensor]:
        found.append(_[3])
        return {"drop": torch.arange(float(len(_[4])))}

    monkeypatch.setattr("prunella.attacks.membership.candidate_scores", noted)
    run = {"rounds": 2, "local_steps": 3}
    node = trained(tmp_path, **run)
    trained(tmp_path, round=2, **run)
    sizes = ask(tmp_path, node, **run).content["membership"]
    here = made(tmp_path, "pictures", **{**RUN, **run, "seed": 0, "run_dir": "/x/run"})
    here.node = replace(here.node, seed=1)  # the seed that ``send`` gives its client
    used = torch.cat([truth(here, here.trained(t.request)).x for t in map(here.store.trained, (1, 2)) if t])
    members = {x.numpy().tobytes() for x in found[0][: int(sizes["drop.members"])]}
    assert members == {x.numpy().tobytes() for x in used} and 48 < len(members) <= 96


def test_a_client_that_learned_its_examples_by_heart_says_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels drawn at random: only by heart can they be known."""

    def scrambled(*asked: Any) -> Examples:
        data = load_client(*asked)
        return Examples(data.x, torch.randint(10, (len(data),), generator=torch.Generator().manual_seed(0)), data.raw)

    run = {"local_steps": 250, "batch_size": 64, "evaluation": "clients"}
    monkeypatch.setattr("prunella.client.session.load_client", scrambled)
    reply = ask(tmp_path, trained(tmp_path, **run), **run).content
    assert reply["audit"]["word"] == "found" and reply["membership"]["local.auc"] > 0.7
    assert reply["membership"]["model.auc"] < 0.65, "the weights came untrained"


@pytest.mark.parametrize("consent", [None, "deny"])
def test_without_consent_nothing_is_kept_and_nothing_leaves(tmp_path: Path, consent: str | None) -> None:
    reply = ask(tmp_path, trained(tmp_path, consent))
    assert dict(reply.content["audit"]) == {"outcome": "no-consent"} and list(reply.content) == ["audit"]
    assert not list(tmp_path.rglob("seen-*"))


@pytest.mark.parametrize(("defenses", "kept"), [("dgp", True), ("none", False)])
def test_the_round_that_is_audited_for_its_squares_is_kept(tmp_path: Path, defenses: str, kept: bool) -> None:
    asked = {"strategy": "prunefl", "prunefl__adjust_interval": 2, "rounds": 9, "audit_every": 9, "defenses": defenses}
    trained(tmp_path, round=2, **asked)
    assert bool(list(tmp_path.rglob("seen-*"))) is kept


def test_scores_tell_one_word(tmp_path: Path) -> None:
    reply = ask(tmp_path, trained(tmp_path, "scores")).content
    assert list(reply) == ["audit"] and reply["audit"]["word"] in get_args(Word)


def test_numbers_are_rationed_and_the_word_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("prunella.client.membership.NUMBERS", 2)
    monkeypatch.setattr("prunella.client.membership.AUDITS", 4)
    told = []
    for seed in range(6):
        own = {"seed": seed, "run_dir": f"/x/{seed}", "partition": "iid"}
        reply = ask(tmp_path, trained(tmp_path, "numbers", **own), **own)
        told.append((outcome(reply), "membership" in reply.content))
    assert told == [("scored", True)] * 2 + [("scored", False)] * 2 + [("refused", False)] * 2


def test_repeated_questions_get_one_answer_twice_and_then_none(tmp_path: Path) -> None:
    node = trained(tmp_path)
    replies = [ask(tmp_path, node) for _ in range(ANSWERS_PER_ROUND + 1)]
    assert [outcome(reply) for reply in replies] == ["scored"] * ANSWERS_PER_ROUND + ["refused"]
    assert dict(replies[0].content["membership"]) == dict(replies[1].content["membership"])


def test_a_server_chooses_neither_candidates_nor_a_model_nor_rounds(tmp_path: Path) -> None:
    node = trained(tmp_path)
    params, _ = initial(TASK, 5)
    chosen = {"x": torch.rand(1, 1, 8, 8), "y": torch.zeros(1, dtype=torch.int64)}
    audit = ConfigRecord({"round": 7, "client": 1})
    content = RecordDict({"audit": audit, "candidates": to_dense(chosen), "model": to_dense(params)})
    plain, asked = ask(tmp_path, node).content, ask(tmp_path, node, content).content
    assert dict(plain["membership"]) == dict(asked["membership"]) and dict(plain["audit"]) == dict(asked["audit"])


def test_weights_that_mark_one_example_say_nothing_of_whether_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The best mark that weights could make: one image scores 1, all others 0. The client holds it, or another."""
    run = {"local_steps": 5, "batch_size": 64}
    data = load_client("digits", Partition("iid", 4), 0, None)
    star, hits = data.x[0].clone(), []

    def marks(module: Any, classes: int, rounds: Any, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"drop": (x == star).flatten(1).all(dim=1).float()}

    def counted(*sides: torch.Tensor) -> Separation:
        hits.append(compare(*sides).loose)
        return compare(*sides)

    monkeypatch.setattr("prunella.attacks.membership.candidate_scores", marks)
    monkeypatch.setattr("prunella.attacks.score.membership.compare", counted)
    replies = []
    for name, held in (("with", data), ("without", Examples(data.x.roll(1, 0) * 0 + 0.5, data.y, data.raw))):
        monkeypatch.setattr("prunella.client.session.load_client", lambda *_, held=held: held)
        replies.append(ask(tmp_path / name, trained(tmp_path / name, **run), **run).content)
    assert hits == [1, 0], "the figures themselves would tell"
    one, other = ({**reply["audit"], **reply["membership"]} for reply in replies)
    assert one == other and one["word"] == "not-found"


def test_too_few_examples_and_rounds_that_use_them_all_are_not_judged(tmp_path: Path) -> None:
    few = {"local_steps": 1, "batch_size": 8}
    assert ask(tmp_path / "a", trained(tmp_path / "a", **few), **few).content["audit"]["word"] == "unresolved"
    every = {"local_steps": 8, "batch_size": 64}
    reply = ask(tmp_path / "b", trained(tmp_path / "b", **every), **every).content
    assert reply["audit"]["word"] == "unresolved" and not dict(reply["membership"])
    held = {**every, "evaluation": "clients"}
    reply = ask(tmp_path / "c", trained(tmp_path / "c", **held), **held).content
    assert reply["audit"]["word"] == "not-found" and reply["membership"]["model.outsiders"] > 60


def test_rounds_of_other_settings_and_a_run_without_the_question_are_refused(tmp_path: Path) -> None:
    node = trained(tmp_path)
    assert outcome(ask(tmp_path, node, batch_size=8)) == "refused"
    assert outcome(ask(tmp_path, node, membership=False)) == "refused"
    off = {"membership": False}
    trained(tmp_path / "off", **off)
    assert not list((tmp_path / "off").rglob("seen-*")) and MOST * 0.001 >= 1
    trained(tmp_path / "between", round=2, rounds=9, audit_every=5)
    assert not list((tmp_path / "between").rglob("seen-*"))
