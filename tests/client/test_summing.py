"""The stages of a masked sum at a client: each once, in order, one set of survivors for a round. Real handlers."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from flwr.app import ConfigRecord, RecordDict

from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, DefenseError, PrunellaError, WireError
from prunella.strategies.secure_sum import letters as wire
from prunella.strategies.secure_sum import participant
from prunella.strategies.secure_sum.exchange import about, model_of
from prunella.strategies.secure_sum.fixed_point import decode, reduced, unpack
from prunella.strategies.secure_sum.participant import COMMITMENT, Secrets
from prunella.strategies.secure_sum.party import Advert, Party
from prunella.strategies.secure_sum.vector import SecureSum, form_of
from prunella.tasks.task import initial
from prunella.wire.records import from_coded, from_dense, to_dense
from tests.client.test_app import TASK, model, send
from tests.local_grid import settings

RUN = {"strategy": "fedavg", "defenses": "none", "aggregation": "secure-sum", "audit_every": 0, "min_clients": 3}
OTHERS = (1, 2, 3)


class Server:
    """A server, and the three other clients, which it plays itself."""

    def __init__(self, state: Path, round: int = 1, node: dict[str, Any] | None = None, **overrides: object) -> None:
        self.state, self.round, self.node, self.overrides = state, round, node, {**RUN, **overrides}
        raw = settings(**{"run_dir": "/x/run", **self.overrides})
        run = parse_run({k: v for k, v in raw.items() if "." not in k})
        self.about = about(run, raw, run.name(0), round)
        made = {c: participant.fresh(self.about, c, None) for c in OTHERS}
        self.own: dict[int, Secrets] = {c: own for c, (own, _) in made.items()}
        self.adverts: dict[int, Advert] = {c: advert for c, (_, advert) in made.items()}

    def ask(self, kind: str, **record: object) -> ConfigRecord:
        content = RecordDict({"sum": ConfigRecord({"round": self.round, **record})})  # type: ignore[arg-type]
        return send(self.state, kind, content, self.node, **self.overrides).content.config_records["sum"]

    def keys(self) -> None:
        (self.adverts[0],) = wire.read_adverts(self.ask("train.keys"))
        self.party = Party(self.about, tuple(self.adverts[c] for c in sorted(self.adverts)))

    def letters(self) -> None:
        sealed = wire.read_mapping(self.ask("train.letters", **wire.write_adverts(self.party.adverts)))
        sent = {c: participant.share(self.own[c], self.party, c) for c in OTHERS}
        self.to_client = {0: sealed[0]} | {c: sent[c][0] for c in OTHERS}

    def train(self) -> bytes:
        content = model(self.round)
        content["sum"] = wire.write_parts(self.to_client)
        params, mask = from_coded(content["model"], initial(TASK, 0)[0])  # type: ignore[arg-type]
        self.model = model_of(params, mask, {})
        self.answer = send(self.state, "train", content, self.node, **self.overrides).content
        self.attested = wire.read_bytes(wire.record_of(self.answer), "model")
        return wire.unpack_masked(self.answer)

    def reply(self) -> tuple[RecordDict, bytes]:
        """All that leaves in the place of an update, and the masked words of it."""
        words = self.train()
        return self.answer, words

    def vote(self, survivors: set[int], words: bytes = b"w" * COMMITMENT) -> bytes:
        """``words`` is what names those of client 2."""
        named = dict.fromkeys(OTHERS, b"w" * COMMITMENT) | {2: words}
        attested = {c: participant.attest(self.own[c], self.party, self.model, named[c]) for c in OTHERS}
        attested |= {0: self.attested}
        found = self.ask("train.vote", **wire.write_parts({c: attested[c] for c in survivors}))["vote"]
        assert isinstance(found, bytes)
        return found

    def until_sent(self) -> "Server":
        self.keys()
        self.letters()
        self.train()
        return self


def test_a_stage_comes_after_the_one_before_and_once(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.keys()
    for early in ("train.vote", "train.reveal"):
        with pytest.raises(DefenseError, match="not the next stage"):
            server.ask(early, **wire.write_parts({}))
    server.letters()
    with pytest.raises(DefenseError, match="not the next stage"):
        server.letters()
    server.train()
    with pytest.raises(DefenseError, match="not the next stage"):
        server.train()  # two updates under one set of masks would tell their difference


def test_letters_of_another_round_are_not_the_next_stage(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.keys()
    server.round = 2
    with pytest.raises(DefenseError, match="not the next stage"):
        server.letters()


def test_a_message_to_train_without_a_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DefenseError):
        send(tmp_path, "train", model(), **RUN)
    with pytest.raises(ConfigError, match="secure-sum"):
        send(
            tmp_path,
            "train.keys",
            RecordDict({"sum": ConfigRecord({"round": 1})}),
            **(RUN | {"aggregation": "holders"}),
        )


def test_nothing_is_revealed_without_votes_of_others_and_then_never_again(tmp_path: Path) -> None:
    server = Server(tmp_path).until_sent()
    own = server.vote({0, 1, 2, 3})
    with pytest.raises(DefenseError, match="nothing is revealed"):
        server.ask("train.reveal", **wire.write_parts({0: own}))
    with pytest.raises(DefenseError, match="not the next stage"):  # the secrets are gone
        server.ask("train.reveal", **wire.write_parts({0: own}))


def test_a_round_is_opened_for_one_set_of_survivors_whoever_asks_again(tmp_path: Path) -> None:
    Server(tmp_path).until_sent().vote({0, 1, 2, 3})
    with pytest.raises(DefenseError, match="opens no second one"):
        Server(tmp_path).until_sent().vote({0, 1, 2})
    assert Server(tmp_path).until_sent().vote({0, 1, 2, 3}), "a server that resumes repeats the round as it was"
    with pytest.raises(DefenseError, match="opens no second one"):
        Server(tmp_path).until_sent().vote({0, 1, 2, 3}, b"x" * COMMITMENT)
    assert Server(tmp_path, round=2).until_sent().vote({0, 1, 2})


def test_a_client_whose_answer_changed_is_in_no_second_sum_of_its_round(tmp_path: Path) -> None:
    """Its defense remembers a round that the server showed it alone; the rest of the sums is equal, so their difference
    is this client's two updates. It is refused here, and by every other client by what names the words."""
    first = Server(tmp_path, round=2, defenses="priprune").until_sent()
    first.vote({0, 1, 2, 3})
    again = Server(tmp_path, round=2, defenses="priprune").until_sent()
    assert again.attested[:COMMITMENT] == first.attested[:COMMITMENT], "the same words have one name"
    Server(tmp_path, round=1, defenses="priprune").until_sent()
    moved = Server(tmp_path, round=2, defenses="priprune").until_sent()
    assert moved.attested[:COMMITMENT] != first.attested[:COMMITMENT]
    with pytest.raises(DefenseError, match="opens no second one"):
        moved.vote({0, 1, 2, 3})


def test_a_failure_has_another_name_in_every_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two equal ones would say that the same words, those of a failure, stand under both."""
    monkeypatch.setattr("prunella.client.app.after_training", Mock(side_effect=RuntimeError("a value: 7")))
    names = {Server(tmp_path, round=round).until_sent().attested[:COMMITMENT] for round in (1, 2, 3)}
    assert len(names) == 3


def test_an_update_goes_to_the_sum_of_the_same_clients_or_to_none(tmp_path: Path) -> None:
    """Also where this client was not asked to vote, and so has voted for nothing."""
    Server(tmp_path).until_sent()
    Server(tmp_path, run_dir="/x/again").until_sent()
    other = Server(tmp_path, run_dir="/x/other")
    other.adverts.pop(3)
    other.keys()
    other.party = Party(other.about, tuple(other.adverts[c] for c in (0, 1, 2)))
    sealed = wire.read_mapping(other.ask("train.letters", **wire.write_adverts(other.party.adverts)))
    other.to_client = {0: sealed[0]} | {c: participant.share(other.own[c], other.party, c)[0] for c in (1, 2)}
    with pytest.raises(DefenseError, match="opens no second one"):
        other.train()


def test_an_owner_is_in_no_sum_without_those_it_names(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no sum without client 7"):
        Server(tmp_path, node={"sum-with": "1, 7"}).until_sent()
    with pytest.raises(DefenseError, match="opens no sum without"):
        Server(tmp_path, node={"sum-with": "1, 3"}).until_sent().vote({0, 1, 2})
    assert Server(tmp_path, round=2, node={"sum-with": "1, 3"}).until_sent().vote({0, 1, 3})


def scoring(server: Server, images: int) -> RecordDict:
    """What the client answers to so many rebuilt images of a sum."""
    x = torch.rand(images, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    tree = {"x": x, "y": torch.zeros(images, dtype=torch.int64)}
    content = RecordDict({"audit": ConfigRecord({"round": 1}), "reconstruction": to_dense(tree)})
    return send(server.state, "query.audit", content, server.node, **server.overrides).content


AUDITED = {"audit_every": 1, "local_steps": 1, "batch_size": 2}


def test_what_is_rebuilt_of_a_sum_is_scored_without_labels_by_a_client_that_voted_for_it(tmp_path: Path) -> None:
    """Three clients with steps of two images: a reconstruction has six, of which two are this client's."""
    server = Server(tmp_path, node={"audit": "pictures"}, **AUDITED).until_sent()
    assert scoring(server, 6)["audit"]["outcome"] == "refused", "it has voted to open none"
    server.vote({0, 1, 2})
    told = scoring(server, 6)
    assert told["audit"]["outcome"] == "scored" and told["scores"]["images"] == 2
    assert "label_accuracy" not in told["scores"] and len(from_dense(told["pictures"])["original"]) == 2


def test_more_pictures_than_a_sum_has_are_refused(tmp_path: Path) -> None:
    server = Server(tmp_path, node={"audit": "numbers"}, **AUDITED).until_sent()
    server.vote({0, 1, 2})
    assert scoring(server, 7)["audit"]["outcome"] == "refused"


def test_no_update_is_kept_for_a_membership_question_that_only_its_sum_could_answer(tmp_path: Path) -> None:
    Server(tmp_path / "sum", node={"audit": "numbers"}, **AUDITED).until_sent()
    assert not list((tmp_path / "sum").rglob("seen-*"))
    alone = {**RUN, **AUDITED, "aggregation": "holders"}
    send(tmp_path / "alone", "train", model(), {"audit": "numbers"}, **alone)
    assert list((tmp_path / "alone").rglob("seen-*"))


def test_the_same_update_is_opened_once_whatever_the_run_is_called(tmp_path: Path) -> None:
    Server(tmp_path).until_sent().vote({0, 1, 2, 3})
    other = Server(tmp_path, run_dir="/x/other").until_sent()
    with pytest.raises(DefenseError, match="opens no second one"):
        other.vote({0, 1, 2})


def test_fewer_survivors_than_the_owner_s_least_are_no_sum(tmp_path: Path) -> None:
    server = Server(tmp_path).until_sent()
    with pytest.raises(DefenseError, match="sum-least"):
        server.vote({0, 1})


def test_the_secrets_are_for_the_owner_s_eyes_and_gone_in_the_end(tmp_path: Path) -> None:
    server = Server(tmp_path).until_sent()
    (file,) = tmp_path.rglob("sum.json")
    assert file.stat().st_mode & 0o777 == 0o600
    server.vote({0, 1, 2, 3})
    with pytest.raises(DefenseError):
        server.ask("train.reveal", **wire.write_parts({}))
    assert not file.exists()


def test_two_sums_of_one_round_have_one_update_under_other_masks(tmp_path: Path) -> None:
    """A resumed server gets the same update again, under fresh masks."""
    form, found = form_of(SecureSum(), 4), []
    for _ in range(2):
        server = Server(tmp_path)
        server.keys()
        server.letters()
        data = server.train()
        words = unpack(data, form)
        secret = Secrets(*(bytes.fromhex(_saved(tmp_path)[name]) for name in ("letters", "masks", "voice", "own")))
        words = words - participant.own_mask(secret.own, server.party, 0, len(words), form)
        for peer in OTHERS:
            words = words - participant.pair_mask(secret.masks, server.party, 0, peer, len(words), form)
        found.append((data, decode(reduced(words, form), form).tolist()))
    assert found[0][0] != found[1][0] and found[0][1] == found[1][1]
    assert found[0][1][0] > 0, "the first word is the example count"


def _saved(folder: Path) -> dict[str, str]:
    import json

    (file,) = folder.rglob("sum.json")
    own: dict[str, str] = json.loads(file.read_text())["own"]
    return own


@pytest.mark.parametrize("threshold", ["range", "overflow", "guard", "failure"])
def test_a_client_of_a_sum_answers_whatever_its_update_is(
    threshold: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal beside a threshold that the server chose would tell this client's own values, bit by bit. So its answer
    has the records of any other, it goes on, and what went wrong is in its own log."""
    given: dict[str, dict[str, Any]] = {"range": {"secure_sum__range": 1e-4}, "overflow": {"learning_rate": 1e38}}
    whole = Server(tmp_path / "whole")
    with monkeypatch.context() as patch:
        if threshold in ("guard", "failure"):
            error = DefenseError("stays") if threshold == "guard" else RuntimeError("a value: 7")
            patch.setattr("prunella.client.app.after_training", Mock(side_effect=error))
        server = Server(tmp_path / "odd", **given.get(threshold, {}))
        for one in (whole, server):
            one.keys()
            one.letters()
        (told, words), (other, others) = server.reply(), whole.reply()
    assert len(words) == len(others) or threshold == "range"
    for name in ("provenance", "ledger", "sum"):
        assert told.config_records[name].keys() == other.config_records[name].keys()
    assert told.config_records["provenance"] == other.config_records["provenance"]
    assert told.config_records["ledger"] == other.config_records["ledger"]
    assert server.vote({0, 1, 2, 3})
    assert Server(tmp_path / "odd", round=2).until_sent().vote({0, 1, 2, 3}), "the next round is as any other"


@pytest.mark.parametrize(
    "overrides",
    [
        {"strategy": "prunefl"},
        {"strategy": "feddst"},
        {"strategy": "fed-ltp-iterative"},
        {"defenses": "adgp"},
        {"robust": "median"},
        {"values": "int8"},
        {"evaluation": "clients"},
        {"min_clients": 2},
    ],
)
def test_a_run_in_which_something_of_one_client_would_leave_is_refused(
    tmp_path: Path, overrides: dict[str, object]
) -> None:
    with pytest.raises(ConfigError, match="one sum and nothing of a client: set"):
        Server(tmp_path, **overrides).keys()


def test_an_owner_can_require_masked_sums(tmp_path: Path) -> None:
    node = {"require": "aggregation=secure-sum"}
    with pytest.raises(ConfigError, match="aggregation=secure-sum"):
        send(tmp_path, "train", model(), node, strategy="fedavg", defenses="none")
    server = Server(tmp_path)
    content = RecordDict({"sum": ConfigRecord({"round": 1})})
    assert send(tmp_path, "train.keys", content, node, **server.overrides).content.config_records["sum"]


def test_another_client_s_nonsense_is_no_letter(tmp_path: Path) -> None:
    server = Server(tmp_path)
    server.keys()
    server.letters()
    server.to_client[2] = b"nonsense"
    with pytest.raises(WireError):
        server.train()
    assert issubclass(WireError, PrunellaError)
