"""What clients have spent is known of those too that were asked before the first round alone."""

import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from prunella.client.charging import CHARGED
from prunella.privacy.ledger.spending import UNHEARD, Line, asked, unknown
from prunella.server.questions import note_answer, note_first
from tests.server.test_rounds import final, go
from tests.strategies.secure_sum.federated import client_of
from tests.strategies.secure_sum.federated import go as go_routed


@dataclass
class Kept:
    ledgers: dict[str, Line] = field(default_factory=dict)


def reply(line: dict[str, float] | None = None, error: str = "") -> Message:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    asked = Message(RecordDict({"config": ConfigRecord({})}), dst_node_id=1, message_type="train.initial")
    if error:
        return Message(Error(2, error), reply_to=asked)
    return Message(RecordDict({} if line is None else {"ledger": ConfigRecord(line)}), reply_to=asked)


def test_the_first_answer_s_line_is_kept_and_one_that_never_came_is_not_nothing() -> None:
    kept = Kept(asked({"2": {"epsilon": 1.0}}, [0, 1, 3]))
    note_first(kept, [(0, reply({"epsilon": 2.0})), (3, reply())])
    assert kept.ledgers == {"0": {"epsilon": 2.0}, "1": {UNHEARD: 1}, "2": {"epsilon": 1.0}}
    assert unknown(kept.ledgers) == 1


@pytest.mark.parametrize(
    ("error", "left"),
    [("past privacy.epsilon-budget", {}), (f"training led to values that are not finite ({CHARGED})", {UNHEARD: 1})],
)
def test_a_refusal_costs_nothing_and_what_failed_after_the_charge_does(error: str, left: Line) -> None:
    kept = Kept(asked({"1": {"channel_nats": 4.0}}, [0]))
    told = f"<class 'prunella.core.errors.DefenseError'>:<\"{error}\">"  # as Flower tells of an exception
    note_first(kept, [(0, reply(error=told))])
    assert kept.ledgers.get("0", {}) == left and unknown(kept.ledgers) == len(left)


@pytest.mark.parametrize("spoilt", [{"epsilon": -1.0}, {"else": 1.0}])
def test_a_line_that_is_none_leaves_the_question_open(spoilt: dict[str, float]) -> None:
    kept = Kept({"0": {UNHEARD: 1}})
    note_answer(kept, 0, reply(spoilt))
    assert kept.ledgers == {"0": {UNHEARD: 1}}


def test_who_made_the_first_mask_alone_is_among_those_that_spent(tmp_path) -> None:
    """Of two clients one is asked in a round, and client 0 makes the first mask, whichever that is."""
    told = {"defenses": "dp-sgd", "strategy": "prunefl", "rate": 0.3, "local_steps": 1, "rounds": 1}
    federation = go(tmp_path, clients=2, fraction=0.5, min_clients=1, seed=1, **told)
    assert [member.client for member in federation.strategy.downlink.asked.values()] == [1]
    lines = final(tmp_path).ledgers
    assert lines["0"]["epsilon"] > 1.0


@pytest.mark.parametrize(("aggregation", "first"), [("holders", "train"), ("secure-sum", "train.keys")])
def test_a_site_whose_account_is_lost_in_a_run_does_not_lower_what_the_run_says(
    tmp_path: Path, aggregation: str, first: str
) -> None:
    """After two rounds of three, so that it has spent as much as before when it has answered one more."""
    lost: list[int] = []

    def route(message: Message) -> Message:
        about = message.content.config_records.get("config", message.content.config_records.get("sum", {}))
        asked = message.metadata.message_type == first and client_of(message) == 2 and about.get("round") == 2
        if asked and not lost:
            lost.append(2)
            shutil.rmtree(tmp_path / "nodes" / "2")
        return message

    told = {"defenses": "dp-sgd", "local_steps": 1, "rounds": 3}
    federation, _ = go_routed(tmp_path, route, clients=3, aggregation=aggregation, **told)
    lines = [json.loads(text) for text in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    worst = [
        each["value"] for each in lines if each["metric"] == "privacy_epsilon" and each["labels"]["stat"] == "worst"
    ]
    assert lost and federation.ledgers["2"]["rounds"] < 3 and worst == sorted(worst)
    assert unknown(federation.ledgers) == 1
