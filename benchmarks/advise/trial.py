"""One federation of a proposal, with the audits of a run in its first round and its last: what leaked, what it cost.

Federation, audits and their verdict are those of ``prunella run`` (``server``, ``client``), in one process and without
a network: the clients' updates, public images that are sent as a client sends its own, and one public image in one
step, each behind the proposal's defenses and, as the control that has to succeed, without them.
"""

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import prunella
from prunella.attacks.score.level import WORST, Level, Line, baseline, level, value
from prunella.benchmarks.advise.proposals import Proposal, Question, settings_of
from prunella.benchmarks.engine.cells import Row
from prunella.benchmarks.engine.inprocess import accuracies, as_keywords, epsilons, failures, run_in_process
from prunella.core.errors import PrunellaError
from prunella.core.foreign import digest, is_foreign
from prunella.server.report.evidence import fitted, judged, of_kind, valid_audits, weakness, worst_first
from prunella.server.report.membership import members_found
from prunella.server.report.state import run_state
from prunella.server.report.verdict import verdict
from prunella.server.rounds import Federation
from prunella.strategies.secure_sum.vector import NAME as SECURE_SUM

# Of the audited clients: the data are the user's own, and only scores are kept. What is rebuilt of a masked sum goes to
# all its clients, and is sent to none unless all let their images be seen.
CONSENT, CONSENT_SUMMED = "scores", "pictures"
NAMED = ("model", "defenses", "attack")  # settings that may name somebody's own code


def overrides(question: Question, proposal: Proposal, seed: int) -> dict[str, Any]:
    """The settings of its federation: what was typed, what the proposal sets, and audits at both ends."""
    short = {"rounds": question.short, "audit-every": question.short, "seed": seed}
    return {**question.given, **settings_of(proposal, question), **short}


def about(asked: Mapping[str, Any], sites: int, data: str) -> Row:
    """What the digest of a kept federation is of: its settings, the data and somebody's own code."""
    named = [name for key in NAMED for name in str(asked.get(key, "")).split(",") if is_foreign(name)]
    code = {name: digest(name) for name in named}
    return {"asked": dict(asked), "sites": sites, "data": data, "code": code, "release": prunella.__version__}


def data_digest(dataset: str) -> str:
    """Of the names, sizes and times of a dataset's own files, "" where it has none."""
    _, _, place = dataset.partition(":")
    root = Path(place)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if place and root.is_dir() else []
    known = [(str(path.relative_to(root)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]
    return hashlib.sha256(repr(known).encode()).hexdigest() if known else ""


def try_out(asked: Mapping[str, Any], sites: int) -> Row:
    """A federation's ``outcome``, and how many seconds it took; where no model came of it, why, as ``failed``. One that
    is not audited is evaluated in every round."""
    begin = time.perf_counter()
    every = int(asked["rounds"]) if asked["audit-every"] else 1
    with tempfile.TemporaryDirectory() as folder:
        try:
            own = as_keywords(asked) | {"evaluate_every": every}
            consent = CONSENT_SUMMED if asked.get("aggregation") == SECURE_SUM else CONSENT
            done = run_in_process(Path(folder), sites, consent=consent, **own)
            done.store.finish("completed")
            found = outcome(done)
        except PrunellaError as error:
            found = {"failed": str(error)}
    return {**found, "seconds": time.perf_counter() - begin}


def in_rounds(audits: Sequence[Line], defended: bool) -> Level:
    """What clients' updates, or public images sent in the same way, gave away: of those that found nothing all have to
    show it."""
    asked = of_kind(audits, "client", "control-defended" if defended else "control")
    return max((judged(each, audits) for each in asked), key=WORST.index, default="unknown")


def worst_case(audits: Sequence[Line], defended: bool) -> Row:
    """Of one public image in one step: ``level``, ``psnr`` and ``floor`` in dB, the latter being the most that a
    picture without the update scores, the ``attack``, and whether it ``explained`` the update. One round in which it
    could not be judged is enough to know nothing, unless another found something."""

    def shown(audit: Line) -> Level:
        # What was not explained has a tier of its own, behind what was.
        return level(audit) if weakness(audit, audits) == "not explained" else judged(audit, audits)

    asked = of_kind(audits, "single-defended" if defended else "single")
    worst = max(worst_first(asked, audits), key=lambda each: WORST.index(shown(each)), default=None)
    if worst is None or shown(worst) == "unknown":
        return {"level": "unknown"}
    decibels = {"psnr": value(worst, "psnr"), "floor": baseline(worst, "psnr")}
    by, explained = worst.get("found_by") or worst["attack"], all(map(fitted, asked))
    return {"level": shown(worst), "attack": by, "explained": explained, **decibels}


def outcome(done: Federation) -> Row:
    """What is kept of a federation."""
    audits, damaged = valid_audits(done.store.audits())
    state = run_state(done.store.run(), done.store.metrics(), audits)
    said, spent = verdict(audits, state, damaged), epsilons(done)
    everywhere = bool(spent) and len(spent) == len(done.ledgers)
    worst, rounds = worst_case(audits, state.defended), in_rounds(audits, state.defended)
    if damaged and WORST.index("unknown") > max(WORST.index(worst["level"]), WORST.index(rounds)):
        worst, rounds = {"level": "unknown"}, "unknown"  # a line that cannot be read may be the one that found it
    return {
        "accuracy": list(accuracies(done).values())[-1],
        "accuracies": list(accuracies(done).values()),
        "doubt": state.doubt[1] if state.doubt else "",
        "worst": worst,
        "rounds": rounds,
        "members": members_found(audits),
        "verdict": said.badge,
        "audited": bool(audits),
        "epsilon": max(spent) if everywhere else None,
        "failures": failures(done),
        **{f"megabytes_{way}": done.counters[f"wire_bytes_total|{way}"] / 1e6 for way in ("up", "down")},
    }
