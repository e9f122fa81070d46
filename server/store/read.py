"""Reading the run store: whole files as plain objects, also while the run is being written."""

import json
from pathlib import Path

from prunella.server.store.schema import AUDIT_LINES, METRIC_LINES, RUN, StoreError, StoreLine


def read_lines(path: Path) -> list[StoreLine]:
    """The objects of a JSON-lines file, none if it is missing. A torn last line is skipped; another bad line raises."""
    pieces = path.read_bytes().split(b"\n") if path.exists() else []
    lines: list[StoreLine] = []
    for number, piece in enumerate(pieces, 1):
        try:
            lines += [json.loads(piece)] if piece.strip() else []
        except ValueError:
            if number < len(pieces):
                raise StoreError(f"{path.name}: line {number} is not JSON") from None
    return lines


def read_run(run_dir: Path) -> StoreLine:
    """``run.json``, or an empty mapping when it is not there yet."""
    path = run_dir / RUN
    try:
        return dict(json.loads(path.read_text())) if path.exists() else {}
    except ValueError:
        raise StoreError(f"{path} is not a JSON object") from None


def read_metrics(run_dir: Path) -> list[StoreLine]:
    return read_lines(run_dir / METRIC_LINES)


def read_audits(run_dir: Path) -> list[StoreLine]:
    return read_lines(run_dir / AUDIT_LINES)
