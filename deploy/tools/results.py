"""What came of runs as plain records, for a table of one's own: ``prunella runs --json``, ``compare --json`` and
``--csv``. ``pandas.read_json`` makes a DataFrame of the former.

A record holds numbers where the tables for people hold words; a missing number is None. Bytes are those sent, and what
the same tensors would take dense in float32. ``worst.*`` is the audit that the verdict sums the run up by.
"""

import csv
import io
import json
from collections.abc import Sequence
from functools import reduce
from typing import Any

from prunella.attacks.score.level import value
from prunella.deploy.console.progress import State, fold
from prunella.deploy.runs import UNREADABLE, RunDir, state
from prunella.server.report.evidence import valid_audits
from prunella.server.report.state import run_state
from prunella.server.report.verdict import verdict
from prunella.server.store.read import read_audits, read_metrics, read_run
from prunella.server.store.schema import LOCAL_SETTINGS, StoreError

Record = dict[str, Any]


def record(run: RunDir) -> Record:
    """One run: its settings, its figures and its verdict."""
    about, metrics = read_run(run.path), read_metrics(run.path)
    audits, damaged = valid_audits(read_audits(run.path))
    known, last = run_state(about, metrics, audits), reduce(fold, metrics, State())
    answer, settings = verdict(audits, known, damaged), about.get("settings", {})
    found: Record = {"run": run.id, "status": state(run), "rounds": known.rounds}
    found |= {"accuracy": known.accuracy, "density": last.density, "epsilon": known.epsilon, "delta": known.delta}
    if known.unknown:  # an ε that may be more is none
        found |= {"epsilon": None, "epsilon_at_least": known.epsilon, "epsilon_unknown": known.unknown}
    found |= {"sent_bytes": sum(last.sent.values()) if last.sent else None}
    found |= {"dense_bytes": sum(last.dense.values()) if last.dense else None}
    notes = [*answer.notes, *([str(about["note"])] if about.get("note") else [])]
    found |= {"verdict": answer.badge, "headline": answer.headline, "notes": " ".join(notes)}
    if answer.worst is not None:
        found |= {f"worst.{key}": answer.worst[key] for key in ("kind", "round", "attack", "defense")}
        found |= {f"worst.{metric}": value(answer.worst, metric) for metric in ("psnr", "ssim", "ncc")}
        found["worst.level"] = answer.worst_level
    return found | {f"settings.{key}": settings[key] for key in sorted(settings) if key not in LOCAL_SETTINGS}


def records(runs: Sequence[RunDir]) -> list[Record]:
    """One record for each run. Of one whose files cannot be read, why: the others have theirs all the same."""
    found = []
    for run in runs:
        try:
            found.append(record(run))
        except StoreError as error:
            found.append({"run": run.id, "status": UNREADABLE, "error": str(error)})
    return found


def as_json(found: Sequence[Record]) -> str:
    return json.dumps(list(found), indent=1, allow_nan=False)


def as_csv(found: Sequence[Record]) -> str:
    """
    >>> as_csv([{"run": "a", "accuracy": 0.5}, {"run": "b", "worst.psnr": 9.0}])
    'run,accuracy,worst.psnr\\na,0.5,\\nb,,9.0\\n'
    """
    names = dict.fromkeys(name for each in found for name in each)
    text = io.StringIO()
    table = csv.DictWriter(text, list(names), lineterminator="\n")
    table.writeheader()
    table.writerows(found)
    return text.getvalue()
