from pathlib import Path

import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor, nn

from prunella.core.errors import PrunellaError
from prunella.strategies.round.numbering import Numbering
from prunella.strategies.round.roster import MAX_CLIENT, Member, Roster, read_hello, sample
from tests.server.test_rounds import build


class HelloGrid:
    """Answers ``query.hello`` from a table; a node without a line answers with an error. ``slow`` nodes say nothing."""

    def __init__(self, table: dict[int, dict[str, object]], online: list[int]) -> None:
        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.table, self.online = table, online
        self.slow: set[int] = set()
        self.code, self.reason = 2, "no"
        self.asked: list[Message] = []

    def get_node_ids(self) -> list[int]:
        return self.online

    def push_messages(self, messages):
        self.asked += messages
        return [self._id(message) for message in messages]

    def pull_messages(self, ids):
        return [self._answer(m) for m in self.asked if self._id(m) in ids and m.metadata.dst_node_id not in self.slow]

    def _id(self, message):
        message.metadata.__dict__["_message_id"] = f"question {self.asked.index(message)}"
        return message.metadata.message_id

    def _answer(self, message):
        node = message.metadata.dst_node_id
        if node in self.table:
            return Message(RecordDict({"hello": ConfigRecord(self.table[node])}), reply_to=message)
        return Message(Error(code=self.code, reason=self.reason), reply_to=message)


def test_members_are_ordered_by_client_and_asked_once() -> None:
    grid = HelloGrid({9: {"client": 0, "audit": "scores"}, 4: {"client": 1, "audit": "deny"}}, [4, 9])
    roster = Roster()
    assert roster.refresh(grid) == [Member(0, 9, "scores"), Member(1, 4, "deny")]
    roster.refresh(grid)
    assert len(grid.asked) == 2
    grid.online = [4]
    assert roster.refresh(grid) == [Member(1, 4, "deny")]


def test_a_node_that_errs_is_asked_again_and_is_no_member_until_then() -> None:
    grid = HelloGrid({}, [4])
    roster = Roster()
    assert roster.refresh(grid) == []
    grid.table[4] = {"client": 3, "audit": "pictures"}
    assert roster.refresh(grid) == [Member(3, 4, "pictures")]


def test_an_answer_that_is_late_counts_and_nobody_is_asked_twice() -> None:
    """Fifty that start on one machine need a minute: asked anew every time the server had stopped waiting, they were
    late each time, and a run of fifty never began."""
    grid = HelloGrid({node: {"client": node} for node in range(50)}, list(range(50)))
    grid.slow = set(range(4, 50))
    roster = Roster()
    assert len(roster.refresh(grid, timeout=0.1)) == 4
    assert len(roster.refresh(grid)) == 4  # a round waits for nobody it has waited for
    grid.slow = set()
    assert [member.client for member in roster.refresh(grid)] == list(range(50)) and len(grid.asked) == 50


def test_so_many_are_asked_at_once_and_silent_ones_hold_nobody_up_for_long(monkeypatch) -> None:  # noqa: ANN001
    """Flower's simulation engine hands out nothing while a thousand are open; a full machine answers one a second."""
    nodes = list(range(300))
    grid = HelloGrid({node: {"client": node} for node in nodes}, nodes)
    open_at_once: list[int] = []
    pull = grid.pull_messages
    monkeypatch.setattr(grid, "pull_messages", lambda ids: [open_at_once.append(len(ids)), *pull(ids)][1:])
    assert [member.client for member in Roster().refresh(grid)] == nodes
    assert max(open_at_once) == 64 and len(grid.asked) == 300

    monkeypatch.setattr("prunella.strategies.round.roster.HELLO_SECONDS", 0.3)
    monkeypatch.setattr(Roster.refresh, "__defaults__", (0.3,))
    grid.asked, grid.slow = [], set(range(100))
    roster = Roster()
    assert roster.refresh(grid, timeout=0.1) == []  # the first say nothing
    assert len(roster.wait_for(grid, 200, timeout=60.0)) == 200


def test_a_question_that_was_lost_is_asked_again_and_stands_for_longer(monkeypatch) -> None:  # noqa: ANN001
    monkeypatch.setattr("prunella.strategies.round.roster.HELLO_LIFE", 0.2)
    grid = HelloGrid({4: {"client": 0}}, [4])
    grid.slow = {4}
    roster = Roster()
    assert roster.refresh(grid, timeout=0.3) == [] and roster.refresh(grid, timeout=0.3) == []
    assert [message.metadata.ttl for message in grid.asked] == [0.2, 0.4]
    grid.slow = set()
    assert [member.client for member in roster.wait_for(grid, 1, timeout=5.0)] == [0]


@pytest.mark.parametrize("consent", [None, "yes", 1, "PICTURES"])
def test_anything_but_a_known_word_is_no_consent(consent: object) -> None:
    grid = HelloGrid({4: {"client": 0, **({"audit": consent} if consent is not None else {})}}, [4])
    assert Roster().refresh(grid)[0].consent == "deny"


def test_too_few_clients_is_an_error_that_counts_them() -> None:
    told: list[tuple[int, int]] = []
    with pytest.raises(PrunellaError, match="1 of 3 clients"):
        Roster().wait_for(HelloGrid({4: {"client": 0}}, [4, 9]), 3, 0.1, lambda *numbers: told.append(numbers))
    assert told == [(1, 1)], "a client, and one that said no"


def test_who_refuses_the_run_is_named_once_and_not_waited_for(monkeypatch, caplog) -> None:  # noqa: ANN001
    """Its words are a stranger's: printable, few, and without Flower's frame."""
    reason = "<class 'prunella.core.errors.ConfigError'>:<'only with dgp\x1b[31m\n" + "x" * 999 + "'>"
    monkeypatch.setattr("prunella.strategies.round.roster.REFUSED_SECONDS", 0.3)
    grid = HelloGrid({4: {"client": 0}}, [4, 9])
    grid.reason = reason
    roster = Roster()
    with (
        caplog.at_level("WARNING", "flwr"),
        pytest.raises(PrunellaError, match="1 said no to this run: only with dgp") as error,
    ):
        roster.wait_for(grid, 2, timeout=60.0)
    assert roster.refusals[9].startswith("only with dgp[31m xxx") and len(roster.refusals[9]) == 300
    assert "came within 0 s" in str(error.value) and "\x1b" not in str(error.value)
    grid.table[9] = {"client": 1}
    roster._unanswered.clear()
    assert [member.client for member in roster.wait_for(grid, 2, timeout=60.0)] == [0, 1] and not roster.refusals


def test_the_others_go_on_without_who_refuses_if_they_are_enough() -> None:
    """`submit --supernodes 3` failed after a minute where one site said no, whatever min-clients was."""
    grid = HelloGrid({4: {"client": 0}, 5: {"client": 1}}, [4, 5, 9])
    grid.reason = "<class 'prunella.core.errors.ConfigError'>:<'only with dgp'>"
    roster = Roster()
    roster.classes = ("cats", "dogs")
    assert [member.client for member in roster.wait_for(grid, 3, timeout=0.1, least=2)] == [0, 1]
    assert roster.refused() == "1 said no to this run: only with dgp"
    assert grid.asked[0].content["hello"]["classes"] == ["cats", "dogs"]
    for count, least in ((4, 2), (3, 3)):  # one more may be on the way; two are too few
        with pytest.raises(PrunellaError, match=f"2 of {count} clients"):
            roster.wait_for(grid, count, timeout=0.1, least=least)


def test_a_client_app_that_crashes_is_no_refusal() -> None:
    grid = HelloGrid({}, [4])
    grid.code = 8
    roster = Roster()
    assert roster.refresh(grid) == [] and not roster.refusals


def test_sampling_is_by_seed_and_round_whatever_the_node_ids() -> None:
    first = [Member(client, 1000 - client) for client in range(20)]
    again = [Member(client, 7 * client + 1) for client in range(20)]
    picks = [[m.client for m in sample(first, 6, seed=5, round=r)] for r in range(6)]
    assert picks == [[m.client for m in sample(again, 6, seed=5, round=r)] for r in range(6)]
    assert all(len(p) == 6 and p == sorted(p) for p in picks)
    assert len({tuple(p) for p in picks}) > 1
    assert len(sample(first, 2, seed=0, round=1)) == 2


def test_hello_without_a_client_number_falls_back_to_the_node() -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    ask = Message(RecordDict(), dst_node_id=77, message_type="query.hello")
    assert read_hello(Message(RecordDict(), reply_to=ask), 77) == Member(77, 77, "deny")


@pytest.mark.parametrize("client", [True, -1, 1.0, "0", 2**63, 10**400, MAX_CLIENT + 1, [0]], ids=str)
def test_an_odd_client_number_is_none(client: object) -> None:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    reply = Message(RecordDict(), reply_to=Message(RecordDict(), dst_node_id=77, message_type="query.hello"))
    reply.content["hello"] = record = ConfigRecord()
    record._data = {"client": client, "audit": ["pictures"]}
    assert read_hello(reply, 77) == Member(77, 77, "deny")


def test_a_second_live_node_does_not_get_a_number_and_the_first_not_back_what_it_left(caplog) -> None:  # noqa: ANN001
    """Without keys: ids change at every start, so the number of a node that went away is free."""
    grid = HelloGrid({9: {"client": 0, "audit": "pictures"}, 4: {"client": 0}}, [9])
    roster = Roster()
    assert [m.node for m in roster.refresh(grid)] == [9]
    grid.online = [4, 9]
    with caplog.at_level("WARNING", "flwr"):
        assert [m.node for m in roster.refresh(grid)] == [9]
    assert "client 0" in roster.refused() and "client 0" in caplog.text
    grid.online = [4]
    roster._unanswered.clear()
    assert [m.node for m in roster.refresh(grid)] == [4] and roster.find(0) == Member(0, 4, "deny")
    assert roster.refused() == ""
    grid.online = [4, 9]
    assert [m.node for m in roster.refresh(grid)] == [4], "there were two clients 0 in a round"
    assert roster.find(0) == Member(0, 4, "deny"), "and an audit was sent to the one that had gone"


def test_with_registered_keys_a_number_stays_its_nodes_over_absence_and_restart(tmp_path: Path) -> None:
    grid = HelloGrid({9: {"client": 0}, 4: {"client": 0}, 5: {"client": 1}}, [5, 9])
    roster = Roster()
    roster.numbering = Numbering(tmp_path / "numbers.json")
    assert [m.node for m in roster.refresh(grid)] == [9, 5]
    grid.online = [4, 5]  # the client 0 is away, which is when somebody else says it is him
    assert [m.node for m in roster.refresh(grid)] == [5]
    restarted = Roster()
    restarted.numbering = Numbering(tmp_path / "numbers.json")
    with pytest.raises(PrunellaError, match=r"1 of 2 clients .* client 0 is another node's"):
        restarted.wait_for(grid, 2, timeout=0.1)
    grid.online = [4, 5, 9]
    assert [m.node for m in restarted.refresh(grid)] == [9, 5]
    grid.table[5] = {"client": 2}
    renamed = Roster()
    renamed.numbering = Numbering(tmp_path / "numbers.json")
    assert [m.node for m in renamed.refresh(grid)] == [9]


def test_who_is_left_out_for_a_number_does_not_make_a_run_start_with_fewer() -> None:
    """A refusal of the run does (`least`); saying another's number must not count as one."""
    grid = HelloGrid({4: {"client": 0}, 5: {"client": 1}, 9: {"client": 0}}, [4, 5, 9])
    with pytest.raises(PrunellaError, match="2 of 3 clients"):
        Roster().wait_for(grid, 3, timeout=0.1, least=2)


class Branching(nn.Sequential):
    """A model whose graph depends on its input."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = super().forward(x if bool(x.sum() > 0) else -x)
        return found


def branching(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return Branching(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 4), nn.ReLU(), nn.Linear(4, classes))


SUMMED = {"aggregation": "secure-sum", "min_clients": 3}


@pytest.mark.parametrize(
    ("run", "why"),
    [
        ({"model": f"{__name__}:branching"}, "no sub-model of a width: this network's structure cannot be followed"),
        ({"model": "resnet10"}, "no model with batch norm"),
        *(({"strategy": name}, "share one mask") for name in ("feddst", "lotteryfl", "sparsyfed", "fed-ltp-iterative")),
        ({"strategy": "random", "defenses": "adgp"}, "share one mask"),
        ({"strategy": "random", "defenses": "none", **SUMMED}, "share one mask"),
    ],
)
def test_a_width_that_has_no_place_in_the_run_is_not_let_in_on_the_clients_word(
    run: dict[str, object], why: str, tmp_path: Path
) -> None:
    """Its own release would have refused; one that says a width all the same ended the run, and nobody knew who."""
    roster = build(tmp_path, **run)[0].strategy.roster
    grid = HelloGrid({4: {"client": 0, "width": 0.5}, 5: {"client": 1, "width": 1.0}}, [4, 5])
    assert roster.refresh(grid) == [Member(1, 5)]
    assert why in roster.refusals[4] and "width=1" in roster.refusals[4] and 5 not in roster.refusals
    grid.table[4]["width"] = 1.0
    roster._unanswered.clear()
    assert [member.client for member in roster.refresh(grid)] == [0, 1] and not roster.refusals


def test_a_width_that_has_a_place_is_let_in(tmp_path: Path) -> None:
    roster = build(tmp_path, strategy="random")[0].strategy.roster
    assert roster.refresh(HelloGrid({4: {"client": 0, "width": 0.5}}, [4])) == [Member(0, 4, "deny", 0.5)]
