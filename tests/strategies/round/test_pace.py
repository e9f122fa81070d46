"""Every member takes part equally often, whatever the times say; rounds wait as long as those they ask need."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from prunella.benchmarks.engine.inprocess import run_in_process
from prunella.core.config import Run
from prunella.core.errors import ConfigError
from prunella.privacy.accounting import Charge, epsilon
from prunella.strategies import require_summable
from prunella.strategies.round.pace import LEAST, SLACK, SpeedTiers, tiers
from prunella.strategies.round.roster import Member, sample
from prunella.tasks.data import Partition, load_client

MEMBERS = [Member(client, 100 + client) for client in range(11)]
ROUNDS = 6000
RUN = Run(fraction=0.27, speed_tiers=3, round_seconds=300.0)  # 3 of 11, in tiers of 3, 4 and 4


def taking_part(pace: SpeedTiers, rounds: int = ROUNDS) -> list[list[int]]:
    return [[member.client for member in pace.choose(MEMBERS, round)] for round in range(1, rounds + 1)]


def within_chance(counts: Counter[int], share: float, rounds: int) -> bool:
    """Whether every member's count lies within 4.5 standard deviations of a binomial: one of 11 fails once in 10⁴."""
    room = 4.5 * math.sqrt(rounds * share * (1 - share))
    return all(abs(counts[member.client] - rounds * share) < room for member in MEMBERS)


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("known", [0, 5, 11], ids="{} known".format)
def test_every_member_takes_part_equally_often_in_rounds_of_equal_size(count: int, known: int) -> None:
    pace = SpeedTiers(RUN.model_copy(update={"speed_tiers": count}))
    pace.seconds = {client: 2.0**client for client in range(known)}
    rounds = taking_part(pace)
    assert {len(chosen) for chosen in rounds} == {3}
    assert within_chance(Counter(client for chosen in rounds for client in chosen), 3 / 11, ROUNDS)


def test_that_is_not_so_where_tiers_are_drawn_alike_or_the_slow_are_left_out() -> None:
    """The positive control: two ways that look fair or fast, and are seen not to be."""
    found = tiers(MEMBERS, {}, 3)
    alike = Counter(m.client for r in range(ROUNDS) for m in sample(found[r % 3], 3, 0, r))
    without = Counter(m.client for r in range(ROUNDS) for m in sample(MEMBERS[:-1], 3, 0, r))
    assert not within_chance(alike, 3 / 11, ROUNDS) and not within_chance(without, 3 / 11, ROUNDS)


def test_times_that_move_with_what_was_drawn_change_nothing() -> None:
    """A client that claims to be fast after each round it was in, and slow after each it was not, gains nothing."""
    pace, counts = SpeedTiers(RUN), Counter[int]()
    for round in range(1, ROUNDS + 1):
        chosen = pace.choose(MEMBERS, round)
        counts.update(member.client for member in chosen)
        pace.seconds = {m.client: 1.0 if m in chosen else 9.0 + m.client for m in MEMBERS}
    assert within_chance(counts, 3 / 11, ROUNDS)


def test_a_round_asks_clients_of_like_speed() -> None:
    pace = SpeedTiers(RUN)
    pace.seconds = {client: (7.0 * client) % 11 for client in range(10)}  # 10 was never measured
    of_like_speed = [{0, 8, 5}, {2, 7, 4, 1}, {9, 6, 3, 10}]
    found = taking_part(pace, 50)
    assert all(any(set(chosen) <= tier for tier in of_like_speed) for chosen in found)
    assert all(any(set(chosen) <= tier for chosen in found) for tier in of_like_speed)


@pytest.mark.parametrize(("fraction", "count", "waits"), [(0.27, 1, 300.0), (0.55, 3, SLACK + LEAST)])
def test_one_tier_or_no_room_for_two_is_plain_sampling(fraction: float, count: int, waits: float) -> None:
    pace = SpeedTiers(RUN.model_copy(update={"fraction": fraction, "speed_tiers": count}))
    pace.seconds = dict.fromkeys(range(11), 1.0)
    for round in range(1, 20):
        assert pace.choose(MEMBERS, round) == sample(MEMBERS, 3 if count == 1 else 6, RUN.seed, round)
        assert pace.deadline == waits


def test_a_round_waits_as_long_as_those_it_asks_need() -> None:
    pace = SpeedTiers(RUN)
    pace.choose(MEMBERS, 1)
    assert pace.deadline == RUN.round_seconds  # nobody was measured
    pace.seconds = {client: 1.0 + client for client in range(11)}
    waits = set()
    for round in range(1, 50):
        slowest = max(pace.seconds[member.client] for member in pace.choose(MEMBERS, round))
        assert pace.deadline == SLACK * slowest + LEAST
        waits.add(pace.deadline)
    assert len(waits) > 2
    pace.seconds = dict.fromkeys(range(11), 1000.0)
    pace.choose(MEMBERS, 1)
    assert pace.deadline == RUN.round_seconds


def answer(node: int, wrong: bool = False) -> Message:
    TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
    asked = Message(RecordDict(), dst_node_id=node, message_type="train")
    content = Error(code=2, reason="no") if wrong else RecordDict()
    reply = Message(content, reply_to=asked)
    reply.metadata.__dict__["_src_node_id"] = node
    return reply


class Clock:
    """Replies at set times, and the time."""

    def __init__(self) -> None:
        self.now = 50.0

    def __call__(self) -> float:
        return self.now

    def replies(self, at: dict[int, float], wrong: tuple[int, ...] = ()) -> Iterator[Message]:
        begin = self.now
        for client, seconds in at.items():
            self.now = begin + seconds
            yield answer(100 + client, client in wrong)


def listen(pace: SpeedTiers, clock: Clock, at: dict[int, float], wrong: tuple[int, ...] = ()) -> list[int]:
    asked = {member.node: member for member in MEMBERS[:4]}
    replies = pace.timed(clock.replies(at, wrong), asked, lambda reply: reply.metadata.src_node_id)
    return [reply.metadata.src_node_id for reply in replies]


def test_the_seconds_until_a_reply_are_remembered_and_smoothed() -> None:
    clock = Clock()
    pace = SpeedTiers(RUN, clock)
    assert listen(pace, clock, {2: 1.0, 0: 4.0, 3: 8.0, 1: 8.5}) == [102, 100, 103, 101]
    assert pace.seconds == {2: 1.0, 0: 4.0, 3: 8.0, 1: 8.5}
    listen(pace, clock, {2: 3.0, 0: 4.0, 3: 4.0, 1: 8.5})
    assert pace.seconds == {2: 2.0, 0: 4.0, 3: 6.0, 1: 8.5}


def test_who_misses_a_deadline_is_given_a_longer_one_until_it_suffices() -> None:
    clock = Clock()
    pace = SpeedTiers(RUN, clock)
    pace.seconds = dict.fromkeys(range(11), 1.0)
    waits = []
    while pace.deadline < 100.0 or not waits:  # client 3 takes 100 s
        pace.choose(MEMBERS[:4], len(waits))
        pace.deadline = pace._wait(MEMBERS[:4])
        waits.append(pace.deadline)
        listen(pace, clock, {0: 1.0, 1: 1.0, 2: 1.0})
    assert waits == [7.0, 19.0, 43.0, 91.0, 187.0]
    assert pace.seconds[0] == 1.0 and pace.seconds[3] == 187.0


def test_an_error_is_no_measurement_and_no_miss() -> None:
    clock = Clock()
    pace = SpeedTiers(RUN, clock)
    pace.seconds = {0: 6.0}
    listen(pace, clock, {0: 0.1, 1: 0.1, 2: 2.0, 3: 2.0}, wrong=(0, 1))
    assert pace.seconds == {0: 6.0, 2: 2.0, 3: 2.0}


def test_a_masked_sum_is_refused() -> None:
    with pytest.raises(ConfigError, match="speed-tiers=1"):
        require_summable(Run(aggregation="secure-sum", speed_tiers=2), {})


def test_an_account_counts_every_round_a_client_was_asked_in_whole(tmp_path: Path) -> None:
    """Six rounds ask two of six clients. The sampling that an account amplifies by is that of examples alone: asking a
    client in some rounds, of any tier, must not make its ε smaller than that of those rounds in a row."""
    asked = {"rounds": 6, "fraction": 0.34, "speed_tiers": 3, "local_steps": 2, "batch_size": 16}
    made = run_in_process(tmp_path, 6, strategy="fedavg", partition="iid", defenses="dp-sgd", audit_every=0, **asked)
    assert sum(float(line["rounds"]) for line in made.ledgers.values()) == 12
    for client, line in made.ledgers.items():
        examples = len(load_client("digits", Partition("iid", 6), int(client), None))
        alone = Charge("all", noise=1.0, sampling=16 / examples, steps=2 * int(line["rounds"]))
        assert line["epsilon"] == pytest.approx(epsilon([alone], 1e-5, "rdp"))
