"""Which defense for your own model, data and sites: short federations, attacked, compared and answered.

Every federation is kept in ``--cache``: a run that was stopped, or whose budget ended, goes on where it was. The answer
is written anew after each one.

    prunella advise
    prunella advise -c dataset=imagefolder:/data -c model=hospital.net:build --budget 30min
    prunella advise -c rounds=100 --may-lose 5 --supernodes 8
"""

import argparse
import math
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from prunella.benchmarks.advise.page import write
from prunella.benchmarks.advise.proposals import NONE, PRIVATE, Proposal, Question
from prunella.benchmarks.advise.search import SEEDS, Standing, Standings, add, advise, next_trial
from prunella.benchmarks.advise.trial import about, data_digest, overrides, try_out
from prunella.benchmarks.advise.words import command as command_of
from prunella.benchmarks.advise.words import headline, limits, reasons, unanswered, untried
from prunella.benchmarks.engine.cells import Cache, Row, must_be_writable
from prunella.benchmarks.engine.images import cached_client
from prunella.benchmarks.reproduce import EPILOG, INTERRUPTED, USAGE, seconds
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError, PrunellaError
from prunella.core.interrupts import signals_interrupt
from prunella.deploy.runtime import settings as app_settings
from prunella.server.report.units import duration
from prunella.tasks.data import Partition, describe
from prunella.tasks.recommended import settled

VERSION = 2
BUDGET, MAY_LOSE, SITES = "30min", 2.0, 4
SHORT, LONGEST = 10, 30  # rounds of a federation: at least, if the run has as many, and at most
MOST_OF_IT = 0.9
PROBED, FASTER = 3, (1.0, 1 / 3, 3.0)  # rounds in which learning rates are tried, and those, in units of the setting's
BETTER = 0.05  # of accuracy, that another learning rate has to bring before it is taken
PROBE_EPSILON = 4.0
SHOWN_LEVEL = {"rebuilt": "rebuilt", "traces": "in traces", "baseline": "not rebuilt", "unknown": "not judged"}


class Laboratory(NamedTuple):
    """Where federations are kept, who hears of them, and when no more are begun, of ``time.time``."""

    cache: Cache
    say: Callable[[str], object]
    end: float

    def trial(self, asked: dict[str, Any], sites: int, data: str) -> Row:
        """One federation, from the cache where it was run before."""
        return self.cache.get(about(asked, sites, data), lambda: try_out(asked, sites))


def question_of(typed: Sequence[str], sites: int) -> tuple[Question, int]:
    """What is asked about, from settings as they were typed, and its number of classes. Raises ``PrunellaError`` for
    what cannot work."""
    app = app_settings.read_app(app_settings.app_directory())
    known = app_settings.defaults(app)
    given = app_settings.parse(typed, known)
    app_settings.check(app, given, here=True)
    raw = settled({**known, **given})
    run = parse_run({key: value for key, value in raw.items() if "." not in key})
    if run.evaluation != "server":
        raise ConfigError("advice compares accuracies on the server: leave out evaluation=clients")
    seeds = range(SEEDS if run.partition == "dirichlet" else 1)  # a federation has a seed, and so shares, of its own
    examples = min(
        len(cached_client(run.dataset, Partition(run.partition, sites, run.alpha, run.seed + seed), site, None))
        for seed in seeds
        for site in range(sites)
    )
    if not examples:
        raise ConfigError(f"{sites} sites leave one without examples: ask with fewer, or with partition=iid")
    rate, (shape, classes) = float(raw["learning-rate"]), describe(run.dataset, None)
    return Question(given, raw, sites, run.rounds, examples, math.prod(shape), rate, rate), classes


def probed_rounds(question: Question) -> int:
    return min(PROBED, int(question.settings["rounds"]))


def probe(question: Question, lab: Laboratory, data: str, rate: float, private: bool) -> Row:
    """A few rounds at a learning rate, of which nothing is pruned and nothing audited."""
    chain = Proposal(PRIVATE, 0.0, PROBE_EPSILON) if private else Proposal(NONE, 0.0)
    own = {"learning-rate": rate, "rounds": probed_rounds(question), "audit-every": 0, "strategy": "fedavg"}
    return lab.trial({**overrides(question, chain, 0), **own}, question.sites, data)


def training_seconds(question: Question, lab: Laboratory, data: str) -> float:
    """What training every chain once takes, by the rounds that were probed without noise."""
    row = probe(question, lab, data, question.learning_rate, private=False)
    return float(row["seconds"]) / probed_rounds(question) * question.short * len(question.chains)


def learning_rate(question: Question, lab: Laboratory, data: str, private: bool) -> float:
    """The rate to train at: the setting's, unless another one is clearly better in a few rounds."""
    rounds, found = probed_rounds(question), dict[float, float]()
    for factor in FASTER:
        rate = float(f"{question.learning_rate * factor:.3g}")
        row = probe(question, lab, data, rate, private)
        found[rate] = 0.0 if "failed" in row else float(row["accuracy"])
        lab.say(f"learning rate {rate:g}{', with noise' * private}: accuracy {found[rate]:.1%} after {rounds} rounds")
    own = next(iter(found))
    fastest = max(found, key=lambda rate: found[rate])
    if found[fastest] < found[own] + BETTER or "learning-rate" in question.given:
        return own
    lab.say(f"learning rate {fastest:g} from here on{', with noise' * private}")
    return fastest


def rounds_needed(question: Question, lab: Laboratory, data: str, classes: int) -> int:
    """Rounds after which a model without a defense has most of what it gains in ``LONGEST``, or in the whole run."""
    most = min(LONGEST, int(question.settings["rounds"]))
    least = min(SHORT, most)
    if most == least:
        return least
    asked = {**overrides(question, Proposal(NONE, 0.0), 0), "rounds": most, "audit-every": 0, "strategy": "fedavg"}
    row = lab.trial(asked, question.sites, data)
    if "failed" in row:
        return least
    guessing, reached = 1 / classes, max(row["accuracies"])
    enough = guessing + MOST_OF_IT * (reached - guessing)
    found = next(number for number, value in enumerate(row["accuracies"], 1) if value >= enough)
    lab.say(f"without a defense {reached:.1%} within {most} rounds; each federation has {max(least, found)} rounds")
    return max(least, found)


def tuned(question: Question, lab: Laboratory, data: str, short: int, classes: int) -> Question:
    """At learning rates that learn, for as many rounds as it takes; ``short`` rounds where that is not 0."""
    plain = learning_rate(question, lab, data, private=False)
    question = replace(question, learning_rate=plain, private_rate=plain)
    question = replace(question, short=min(short, question.short) or rounds_needed(question, lab, data, classes))
    if any(target is not None for _, target in question.chains):
        question = replace(question, private_rate=learning_rate(question, lab, data, private=True))
    return question


def line(number: int, proposal: Proposal, seed: int, row: Row) -> str:
    """What is said of a finished federation."""
    start = f"{number} {proposal.name}, seed {seed}"
    if "failed" in row:
        return f"{start}: {row['failed']}"
    worst, doubt = row["worst"], f", {row['doubt']}" if row["doubt"] else ""
    decibels = f" at {worst['psnr']:.0f} dB" if worst.get("psnr") is not None else ""
    open_ = " and not explained" if worst["level"] == "baseline" and not worst.get("explained") else ""
    return f"{start}: accuracy {row['accuracy']:.1%}{doubt}, worst case {SHOWN_LEVEL[worst['level']]}{open_}{decibels}"


def search(question: Question, lab: Laboratory, may_lose: float, tell: Callable[[Standings], object]) -> Standings:
    """Federations until the time is over or nothing is left to learn; ``tell`` is called after each that is new."""
    standings: dict[Proposal, Standing] = {}
    data, taken = data_digest(str(question.settings["dataset"])), list[float]()
    chains = len(question.chains)
    lab.say(f"{chains} federations, one for every chain, and then more where they decide")
    training = duration(training_seconds(question, lab, data))
    lab.say(f"training these takes about {training}, and attacking each as a run is takes most of the time besides")
    while (trial := next_trial(question, standings, may_lose)) is not None:
        proposal, seed = trial
        asked = overrides(question, proposal, int(question.settings["seed"]) + seed)
        kept = lab.cache.has(about(asked, question.sites, data))
        if not kept and time.time() + (statistics.fmean(taken) if taken else 0.0) >= lab.end:
            break
        row = lab.trial(asked, question.sites, data)
        taken += [] if kept else [row["seconds"]]
        standings = add(standings, proposal, row)
        count = sum(len(each.rows) for each in standings.values())
        left = "kept from before" if kept else outlook(taken, max(0, chains - len(standings)), lab.end)
        lab.say(line(count, proposal, seed, row) + f"; {left}")
        if not kept:
            tell(standings)
    return standings


def outlook(taken: Sequence[float], untried: int, end: float) -> str:
    """How long the last one took, how long until every chain was tried, and what of the budget is left.

    >>> outlook([10.0, 50.0], 4, math.inf), outlook([10.0], 4, math.inf)
    ('50 s, about 3 min until every chain was tried', '10 s')
    """
    found = f"{taken[-1]:.0f} s"
    if untried and len(taken) > 1:  # the first is without a defense, and has half the audits
        found += f", about {statistics.fmean(taken[1:]) * untried / 60:.0f} min until every chain was tried"
    return found if end == math.inf else f"{found}, {max(0.0, end - time.time()) / 60:.0f} min of the budget left"


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="advise", description=(__doc__ or "").splitlines()[0], epilog=EPILOG)
    parser.add_argument("-c", "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    parser.add_argument("--supernodes", type=int, default=SITES, help="number of sites (4)")
    parser.add_argument("--budget", type=seconds, default=seconds(BUDGET), help="90s, 30min, 2h (30min)")
    parser.add_argument("--may-lose", type=float, default=MAY_LOSE, help="points of accuracy that may go (2)")
    parser.add_argument("--short", type=int, default=0, help="rounds of each federation (as many as it takes to learn)")
    parser.add_argument("--out", type=Path, default=Path("advice"), help="gets the page, the picture and the numbers")
    parser.add_argument(
        "--cache", type=Path, default=Path("runs/advice"), help="finished federations; a second call goes on"
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 2 and one line for what a user can fix, or 130 after Ctrl-C."""
    chosen: Any = parser().parse_args(arguments)
    try:
        if chosen.supernodes < 1 or chosen.short < 0 or not 0 <= chosen.may_lose <= 100:
            raise ConfigError("--supernodes is at least 1, --short at least 0, and --may-lose from 0 to 100")
        must_be_writable(chosen.out, "--out")
        must_be_writable(chosen.cache, "--cache")
        with signals_interrupt():
            answer(chosen)
    except PrunellaError as error:
        print(f"advise: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("advise: stopped; the same command goes on after the last finished federation", file=sys.stderr)
        return INTERRUPTED
    return 0


def answer(chosen: Any) -> None:
    """Search, and say what was found."""
    end = time.time() + chosen.budget
    lab = Laboratory(Cache(chosen.cache, VERSION), lambda text: print(text, file=sys.stderr, flush=True), end)
    question, classes = question_of(chosen.set, chosen.supernodes)
    question = tuned(question, lab, data_digest(str(question.settings["dataset"])), chosen.short, classes)
    asked = [word for each in chosen.set for word in ("-c", each)]
    asked += [
        "--supernodes",
        str(chosen.supernodes),
        "--short",
        str(chosen.short),
        "--may-lose",
        f"{chosen.may_lose:g}",
    ]
    how = shlex.join(["prunella", "advise", *asked])

    def tell(standings: Standings) -> Path:
        said = advise(standings.values(), chosen.may_lose)
        return write(said, list(standings.values()), question, chosen.may_lose, how, chosen.out)

    standings = search(question, lab, chosen.may_lose, tell)
    if not standings:
        raise ConfigError("the budget was over before one federation: give it more time")
    said = advise(standings.values(), chosen.may_lose)
    if said is None:
        print(unanswered(list(standings.values())))
    else:
        left = untried(list(standings.values()), question)
        print("\n".join([headline(said, chosen.may_lose), *left, *reasons(said, question)]))
    if said is not None and said.answered:
        print(f"\n{command_of(said.recommended, question)}\n\nIt does not protect against everything:")
        print("\n".join(f"  {text}" for text in limits(said.recommended, question)))
    print(f"\n{tell(standings)}")


if __name__ == "__main__":
    sys.exit(main())
