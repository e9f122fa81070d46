"""Reading the run store: whole files as plain objects, also while the run is being written."""

import json
from collections.abc import Callable
from pathlib import Path

from prunella.core.metrics import LEDGER_METRICS
from prunella.core.untrusted import MAX_COUNT, figure
from prunella.server.store.schema import AUDIT_LINES, METRIC_LINES, MOST, RUN, StoreError, StoreLine

FIX = "restore it, or remove the run"
NUMBERS: dict[str, tuple[float, float]] = {
    **{"test_examples": (1, MAX_COUNT), "classes": (1, MAX_COUNT), "largest_class": (0, 1)},
    **{"model_parameters": (0, MOST), "rounds": (0, MOST)},
}


def _bytes(path: Path) -> bytes | None:
    """The content of a file, None if it is missing."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error.strerror}): {FIX}") from None


def read_lines(path: Path, fits: Callable[[StoreLine], bool] = lambda line: True) -> list[StoreLine]:
    """The objects of a JSON-lines file, none if it is missing. A torn last line is skipped; another that is no object,
    or does not fit, raises ``StoreError``."""
    pieces = (_bytes(path) or b"").split(b"\n")
    lines: list[StoreLine] = []
    for number, piece in enumerate(pieces, 1):
        if not piece.strip():
            continue
        try:
            line = json.loads(piece)
        except ValueError:
            if number == len(pieces):
                continue
            line = None
        if not isinstance(line, dict) or not fits(line):
            raise StoreError(f"{path}: line {number} is not what a run writes: {FIX}")
        lines.append(line)
    return lines


def _is_run(found: StoreLine) -> bool:
    """Whether what its readers count on is a number, a list or an object where ``run.json`` has it."""
    if not all(isinstance(found.get(key, {}), dict) for key in ("settings", "versions")):
        return False
    told = {**found, "rounds": found.get("settings", {}).get("rounds")}
    numbers = all(told.get(key) is None or figure(told[key], *span) is not None for key, span in NUMBERS.items())
    return numbers and isinstance(found.get("claims") or [], list)


def read_run(run_dir: Path) -> StoreLine:
    """``run.json``, or an empty mapping when it is not there yet."""
    path = run_dir / RUN
    content = _bytes(path)
    try:
        found = {} if content is None else json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not _is_run(found):
        raise StoreError(f"{path} is not a JSON object as a run writes it: {FIX}")
    return found


def _is_number(line: StoreLine) -> bool:
    """Whether a line of ``metrics.jsonl`` has the parts that its readers count on."""
    parts: dict[str, type] = {"round": int, "metric": str, "labels": dict}
    finite = figure(line.get("value"), -MOST, MOST) is not None  # NaN is above no limit: an ε of it would look small
    return finite and all(isinstance(line.get(name), kind) for name, kind in parts.items())


def read_metrics(run_dir: Path) -> list[StoreLine]:
    """The lines of ``metrics.jsonl``. What clients have spent is told when they are asked and when the round is over:
    of one round the last word."""
    lines = read_lines(run_dir / METRIC_LINES, _is_number)
    told = {
        (line["round"], line["metric"], *sorted(line["labels"].items())): number
        for number, line in enumerate(lines)
        if line["metric"] in LEDGER_METRICS
    }
    last = set(told.values())
    return [line for number, line in enumerate(lines) if line["metric"] not in LEDGER_METRICS or number in last]


def read_audits(run_dir: Path) -> list[StoreLine]:
    return read_lines(run_dir / AUDIT_LINES)
