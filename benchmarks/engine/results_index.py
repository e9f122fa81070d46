"""The list of what was measured, ``README.md`` of the results, made from the JSON file of every claim.

A claim without a file is listed as not measured yet.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.engine.claim import SIZES, Claim, Size
from prunella.benchmarks.engine.results import from_json, other_version, stem, write
from prunella.core.errors import ConfigError
from prunella.core.files import write_atomically

OLDER = "†"  # beside the verdict on numbers that another version of a measure made
HEAD = f"""# The papers' claims, measured again

Every page has the verdict with its reason, the table with published numbers beside ours, the plot, settings and
seeds; every number stands in the JSON beside it. Rules are the same for every claim, and know the spread over seeds
(`benchmarks/engine/rules.py`): *holds*, every comparison is as the paper says, beyond chance, and by the smallest
effect that the claim declares; *holds in trend*, so is their mean, and none is refuted; *does not hold*, one is refuted
beyond chance; *undecided*, the seeds are too few to say; *not judged*, the positive control of an attack failed, or
a number that the rule needs is missing. What
was left out because its control failed stands first in a verdict as not judged. Where nothing is there, at most 5 % of
a claim's verdicts are wrong: it holds in 2.5 % of measurements, and in 2.5 % any of its comparisons or parts refutes it
(a simulation among the tests, for symmetric noise; the module says what is not covered). Were there nothing behind any
of 30 claims, one or two would be judged wrong. Three seeds seldom refute one of many comparisons: such a claim is
rather *undecided*.

Verdicts are by Student's t over the means of seeds, which is wrong in 5 %. A bootstrap of seeds and images, as in the
brackets of some tables, would be wrong too often. With three seeds its nominal 5 % are 3 to 6 % where seeds differ by
their images only, 17 to 19 % where half of the variance is the seed's and 23 to 25 % where all of it is.

The rules and the smallest effects were changed after most of these numbers were measured, and all were judged again.
{OLDER}: measured by another version of its measure than today's, or nobody wrote down by which.
Sizes are small: another data set, model or length of training than the paper's where the page says so.
`prunella reproduce CLAIM` measures one again, `prunella reproduce --size small --budget 30min` all of them, as far as
that goes.

"""


def found(claim: Claim, folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """The pages and JSON of a claim, one for each size that was measured. Raises ``ConfigError`` for what is none."""
    paths = [folder / f"{stem(claim.name, size)}.json" for size in SIZES]
    return [(path.stem, _read(path)) for path in paths if path.exists()]


def _read(path: Path) -> dict[str, Any]:
    try:
        row = json.loads(path.read_text())
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ConfigError(f"{path} is damaged, or no result of this command: remove it")
    return row


def typical(claims: Iterable[Claim], size: Size, folders: Iterable[Path]) -> dict[str, float]:
    """Seconds of a cell by measure, the mean of a result: of one of this size rather than of another, and of a later
    folder rather than of an earlier one."""
    took = dict[str, float]()
    for folder in folders:
        every = [(claim.experiment.measure.name, row) for claim in claims for _, row in found(claim, folder)]
        for measure, row in sorted(every, key=lambda one: one[1]["size"] == size):
            cells = len(row["settings"]) * len(row["seeds"]) - row.get("missing", 0)
            took[measure] = row["seconds"] / max(1, cells)
    return took


def rows(claim: Claim, folder: Path) -> list[str]:
    """A line of the table for every size measured, or one that says why there is none."""
    measured = found(claim, folder)
    if not measured:
        return [f"| {claim.name} | {claim.where} | {claim.says} | not measured yet |"]
    now = claim.experiment.measure.version
    marks = [OLDER if other_version(row.get("version"), now) else "" for _, row in measured]
    return [
        f"| [{name}]({name}.md) | {claim.where} | {claim.says} | **{row['verdict']}**{mark}: {row['reason']} |"
        for (name, row), mark in zip(measured, marks, strict=True)
    ]


def counts(claims: Sequence[Claim], folder: Path) -> str:
    """How many claims came out how, in words."""
    words = [row["verdict"] for claim in claims for _, row in found(claim, folder)[:1]]
    parts = [f"{word} {words.count(word)}" for word in sorted(set(words), key=lambda w: (-words.count(w), w))]
    return f"{len(words)} of {len(claims)} claims measured" + (f": {', '.join(parts)}" if parts else "") + "."


def index(claims: Iterable[Claim], folder: Path) -> str:
    """The list, Markdown, a table for every paper; a paper's own page is linked where there is one."""
    every = list(claims)
    parts = [HEAD + counts(every, folder)]
    for paper in dict.fromkeys(claim.paper for claim in every):
        page = folder / f"{paper}.md"
        title = f"## {paper}" + (f"\n\n[What held up]({page.name})" if page.exists() else "")
        lines = ["| claim | where | says | verdict |", "|---|---|---|---|"]
        lines += [row for claim in every if claim.paper == paper for row in rows(claim, folder)]
        parts += [title, "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def write_pages(claims: Iterable[Claim], folder: Path) -> list[Path]:
    """Judges what lies in the folder again and rewrites it; nothing is measured. Raises as ``from_json``."""
    every = [from_json(row, claim) for claim in claims for _, row in found(claim, folder)]
    return [path for result in every for path in write(result, folder)]


def must_be_ours(folder: Path) -> None:
    """Raise ``ConfigError`` where the folder has a ``README.md`` that this command did not write."""
    path, first = folder / "README.md", HEAD.splitlines()[0]
    if path.exists() and not path.read_bytes().startswith(first.encode()):
        raise ConfigError(f"{path} is not the list of claims that this command writes: choose another --out")


def write_index(claims: Iterable[Claim], folder: Path) -> Path:
    """``README.md`` of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text, path = index(claims, folder), folder / "README.md"
    write_atomically(path, lambda p: p.write_text(text, encoding="utf-8"), 0o644)
    return path
