"""Which federation to run next, and what follows from those that were run.

A proposal is worth as much as the worst of its audits: public images in the worst case, one image in one step, and
what its rounds gave away. Candidates stand in tiers, the best first:

promised   a proven ε of at most ``LARGEST_EPSILON`` that every ledger kept to, and nothing was rebuilt; traces are what
           an ε may let through
clear      no ε; nothing was rebuilt, by an attack that works without the defense and explains the updates
open       no ε; nothing was rebuilt, but the attack does not explain the updates: one that does may rebuild
traces     something came through
unknown    a control or an audit failed, in whatever round: nothing is known
rebuilt    an image was rebuilt

One proposal dominates another that is in no better tier, leaks and spends no less and is no more accurate. What is
dominated is dropped, and comes back when what beat it turns out to leak.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from prunella.attacks.score.level import ORDER, Level
from prunella.benchmarks.advise.proposals import NONE, Proposal, Question, neighbours, shortlist
from prunella.benchmarks.engine.cells import Row
from prunella.benchmarks.engine.rules import interval
from prunella.server.report.state import LARGEST_EPSILON

Tier = Literal["promised", "clear", "open", "traces", "unknown", "rebuilt"]
TIERS: tuple[Tier, ...] = ("promised", "clear", "open", "traces", "unknown", "rebuilt")
SAFE: tuple[Tier, ...] = ("promised", "clear", "open")  # nothing was rebuilt
PAIRS, SEEDS = 2, 5  # federations of a contender: before neighbours are tried, and in the end
SETTLED = 3  # federations that a recommendation should rest on


@dataclass(frozen=True)
class Standing:
    """A proposal with the federations of its first seeds."""

    proposal: Proposal
    rows: tuple[Row, ...]

    @property
    def trained(self) -> bool:
        """Whether every federation gave a model that learned."""
        return all("failed" not in row and not row["doubt"] for row in self.rows)

    @property
    def trouble(self) -> str:
        """Why there is no model, or "" where there is."""
        return next((row.get("failed") or row["doubt"] for row in self.rows if row.get("failed") or row["doubt"]), "")

    def values(self, key: str) -> list[float]:
        return [float(row[key]) for row in self.rows if row.get(key) is not None]

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.values("accuracy")) if self.values("accuracy") else 0.0

    @property
    def psnr(self) -> float | None:
        """Mean PSNR in dB of the worst case, where it was judged."""
        found = [row["worst"].get("psnr") for row in self.rows if "worst" in row]
        known = [float(each) for each in found if each is not None]
        return statistics.fmean(known) if known else None

    @property
    def leak(self) -> float:
        """How far above its floor the worst case is in the mean, in dB, 0 below it."""
        cases = [row["worst"] for row in self.rows if row.get("worst", {}).get("psnr") is not None]
        known = [max(0.0, case["psnr"] - (case["floor"] or 0.0)) for case in cases]
        return statistics.fmean(known) if known else math.inf

    def share(self, level: Level) -> tuple[int, int]:
        """How many federations had at least this level in their worst case or rounds, and how many were judged: what
        came back in rounds counts also where the worst case was not judged."""
        pairs = [
            (ORDER.index(row["worst"]["level"]), ORDER.index(row["rounds"])) for row in self.rows if "worst" in row
        ]
        judged = [max(pair) for pair in pairs if pair[0] > ORDER.index("unknown") or pair[1] > ORDER.index("baseline")]
        return sum(each >= ORDER.index(level) for each in judged), len(judged)

    @property
    def members(self) -> bool:
        """Whether examples that were trained on were told from others in any federation."""
        return any(row.get("members") for row in self.rows)

    @property
    def tier(self) -> Tier:
        if self.share("rebuilt")[0]:
            return "rebuilt"
        if math.isfinite(self.epsilon):
            return "promised"
        if self.share("traces")[0] or self.members:
            return "traces"
        if self.share("baseline")[1] < len(self.rows):
            return "unknown"
        return "clear" if all(row["worst"].get("explained") for row in self.rows) else "open"

    @property
    def epsilon(self) -> float:
        """What its noise was made for or, of a chain of the user's own, what was spent here; infinite without one,
        where a site has none or spent more, and above ``LARGEST_EPSILON``."""
        spent = self.values("epsilon")
        if len(spent) < len(self.rows) or not spent:
            return math.inf
        made_for = self.proposal.epsilon
        found = max(spent) if made_for is None else made_for if max(spent) <= made_for else math.inf
        return found if found <= LARGEST_EPSILON else math.inf

    @property
    def rank(self) -> tuple[int, float, float, float]:
        """The better, the smaller: tier, ε, leak, and then accuracy."""
        return TIERS.index(self.tier), self.epsilon, self.leak, -self.accuracy


Standings = Mapping[Proposal, Standing]


def dominates(one: Standing, other: Standing) -> bool:
    """Whether nothing speaks for ``other``."""
    mine, yours = (
        (TIERS.index(each.tier), each.epsilon, -each.accuracy, each.leak if each.tier not in SAFE else 0.0)
        for each in (one, other)
    )
    return mine != yours and all(a <= b for a, b in zip(mine, yours, strict=True))


def front(found: Iterable[Standing]) -> list[Standing]:
    """Those that no other dominates, of all that learned, the best tier first."""
    learned = [each for each in found if each.trained]
    kept = [each for each in learned if not any(dominates(other, each) for other in learned)]
    return sorted(kept, key=lambda each: each.rank)


class Advice(NamedTuple):
    """``chosen`` loses at most what may go against ``reference``, the most accurate without a defense; ``safest`` is
    what accuracy would have to go for, where that is in a better tier than ``chosen``; ``defended``, whether any
    defense was tried."""

    reference: Standing
    chosen: Standing
    safest: Standing | None
    defended: bool

    @property
    def protects(self) -> bool:
        """Whether nothing came back of what fits the limit."""
        return self.chosen.tier in SAFE

    @property
    def recommended(self) -> Standing:
        """What fits the limit or, where that does not protect, what does; without ``answered`` the least bad."""
        return self.chosen if self.protects or self.safest is None else self.safest

    @property
    def answered(self) -> bool:
        """Whether there is anything to recommend."""
        return self.recommended.tier in SAFE


def lost(one: Standing, reference: Standing) -> float:
    """Points of accuracy, in percent, against the same seeds of ``reference``."""
    return statistics.fmean(differences(one, reference))


def differences(one: Standing, reference: Standing) -> list[float]:
    """``lost`` by seed."""
    pairs = zip(reference.values("accuracy"), one.values("accuracy"), strict=False)
    return [100 * (there - here) for there, here in pairs]


def lost_interval(one: Standing, reference: Standing) -> tuple[float, float] | None:
    """Its 95 % interval by Student's t, None of one seed."""
    found = differences(one, reference)
    return interval(found) if len(found) > 1 else None


def advise(found: Iterable[Standing], may_lose: float) -> Advice | None:
    """What follows, where ``may_lose`` points of accuracy may go; None where nothing without a defense learned."""
    every = list(found)
    learned = [each for each in every if each.trained]
    plain = [each for each in learned if each.proposal.chain == NONE]
    if not plain:
        return None
    reference = max(plain, key=lambda each: each.accuracy)
    allowed = [each for each in learned if lost(each, reference) <= may_lose + 1e-9]
    chosen = min(allowed, key=lambda each: each.rank)
    better = [each for each in learned if each.tier in SAFE and TIERS.index(each.tier) < TIERS.index(chosen.tier)]
    safest = min(better, key=lambda each: (TIERS.index(each.tier), -each.accuracy)) if better else None
    return Advice(reference, chosen, safest, any(each.proposal.chain != NONE for each in every))


def hopeful(found: Iterable[Standing]) -> list[Standing]:
    """The front without those of which a picture came back, or nothing is known."""
    return [each for each in front(found) if each.tier not in ("unknown", "rebuilt")]


def contenders(standings: Standings, may_lose: float) -> list[Proposal]:
    """Whose numbers decide: first the recommended one and what it is compared with, then the rest of the front that has
    hope."""
    found, said = hopeful(standings.values()), advise(standings.values(), may_lose)
    first = [said.recommended, said.reference, *([said.safest] if said.safest else [])] if said else []
    return list(dict.fromkeys(each.proposal for each in (*first, *found)))


def next_trial(question: Question, standings: Standings, may_lose: float) -> tuple[Proposal, int] | None:
    """The proposal and the seed that tell most now, None where everything has been tried: every chain once, three seeds
    of what would be recommended and of what it is compared with, a second one of the rest of the front, what is near to
    it, a third seed, every chain at the other pruning rate, more seeds.
    """

    def untried(every: Iterable[Proposal]) -> tuple[Proposal, int] | None:
        return next(((each, 0) for each in every if each not in standings), None)

    def again(seeds: int, of: int | None = None) -> tuple[Proposal, int] | None:
        few = [each for each in contenders(standings, may_lose)[:of] if len(standings[each].rows) < seeds]
        return min(((each, len(standings[each].rows)) for each in few), key=lambda one: one[1], default=None)

    first, *others = question.rates
    near = [each for one in hopeful(standings.values()) for each in neighbours(one.proposal, question)]
    return (
        untried(shortlist(question, first))
        or again(SETTLED, of=2)
        or again(PAIRS)
        or untried(near)
        or again(SETTLED)
        or untried(each for rate in others for each in shortlist(question, rate))
        or again(SEEDS)
    )


def add(standings: Standings, proposal: Proposal, row: Row) -> dict[Proposal, Standing]:
    """With one federation more."""
    before: Sequence[Row] = standings[proposal].rows if proposal in standings else ()
    return {**standings, proposal: Standing(proposal, (*before, row))}
