"""Which clients a round asks where some are slow: clients of like speed, every one equally often (``speed-tiers``).

TiFL (Chai et al., HPDC 2020, arXiv 2001.09249) sorts clients by their response time into tiers and asks one tier in a
round, so that a fast client is not kept waiting by a slow one. Here the members that are online are sorted by the
seconds they took so far and cut into tiers of nearly equal size. A round draws one member, and then as many members of
that one's tier as any round asks. With N members, n of them in a tier, and K asked, a member takes part with
probability n / N * K / n = K / N, whichever tier it is in: the same as without tiers, in every round, whatever happened
before and however wrong the seconds are. So the expected mean of the sampled updates is that of all members (exactly
where all have equally many examples, since a round weighs its own clients by theirs). Departure from TiFL: it then
shifts the odds to tiers with low accuracy, which is another objective.

A round waits ``SLACK`` times as long as the slowest client it asks took before, ``LEAST`` seconds more, and never
longer than ``round-seconds``. A client that misses this is taken to be as slow as the wait was: it comes into a slower
tier, whose rounds wait longer. One that was never measured counts as the slowest.

No account of privacy uses that a client is asked in some rounds only (``privacy.accounting``: the sampling is that of
examples inside a client), so none depends on the choice. The times stay in memory and are told to nobody.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from flwr.app import Message

from prunella.core.config import Run
from prunella.core.randomness import stream
from prunella.strategies.round.roster import Member, sample, selected

SLACK, LEAST = 2.0, 5.0
LATEST = 0.5  # share of the last answer in what is remembered of a client's times


def tiers(members: Sequence[Member], seconds: Mapping[int, float], count: int) -> list[list[Member]]:
    """The members by ``seconds``, which are by client number, in ``count`` parts whose sizes differ by one at most.

    >>> found = tiers([Member(c, c) for c in range(5)], {0: 9.0, 1: 1.0, 2: 2.0, 4: 1.5}, 2)
    >>> [[member.client for member in tier] for tier in found]
    [[1, 4], [2, 0, 3]]
    """
    ordered = sorted(members, key=lambda member: (seconds.get(member.client, math.inf), member.client))
    ends = [len(ordered) * tier // count for tier in range(count + 1)]
    return [ordered[begin:end] for begin, end in zip(ends, ends[1:], strict=False)]


class SpeedTiers:
    """The times of a run's clients. ``seconds`` are by client number; ``deadline`` is what the round waits at most."""

    def __init__(self, run: Run, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds: dict[int, float] = {}
        self.deadline = run.round_seconds
        self.clock = clock
        self._run = run

    def choose(self, members: Sequence[Member], round: int) -> list[Member]:
        """Who takes part in the round, in client order. Sets ``deadline``."""
        run = self._run
        asked = selected(len(members), run.fraction, run.min_clients)
        count = min(run.speed_tiers, len(members) // max(asked, 1))
        among = members
        if count > 1:
            tier_of = [tier for tier in tiers(members, self.seconds, count) for _ in tier]
            drawn = torch.randint(len(members), (), generator=stream(run.seed, round=round, purpose="tier"))
            among = tier_of[int(drawn)]
        chosen = sample(among, asked, run.seed, round)
        self.deadline = self._wait(chosen)
        return chosen

    def _wait(self, chosen: Sequence[Member]) -> float:
        if self._run.speed_tiers == 1:
            return self._run.round_seconds
        slowest = max((self.seconds.get(member.client, math.inf) for member in chosen), default=math.inf)
        return min(SLACK * slowest + LEAST, self._run.round_seconds)

    def timed(
        self, replies: Iterable[Message], asked: Mapping[int, Member], node_of: Callable[[Message], int]
    ) -> Iterator[Message]:
        """The replies as they come, while the seconds until each are noted; at the end also of those that did not come.
        ``asked`` are by node. An error says nothing about how long the work takes."""
        begin, silent = self.clock(), dict(asked)
        for reply in replies:
            member = silent.pop(node_of(reply), None)
            if member is not None and not reply.has_error():
                self._note(member.client, self.clock() - begin)
            yield reply
        for member in silent.values():
            self.seconds[member.client] = max(self.seconds.get(member.client, 0.0), self.deadline)

    def _note(self, client: int, seconds: float) -> None:
        before = self.seconds.get(client, seconds)
        self.seconds[client] = LATEST * seconds + (1 - LATEST) * before
