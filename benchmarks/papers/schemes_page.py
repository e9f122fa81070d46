"""The table and the picture of ``docs/schemes.md`` from the finished rows that ``benchmarks.papers.schemes --cache``
keeps.

A cell that has not been run is a dash, so that a page of a part of the table says which part. A directory may
hold rows of several experiments: ``--settings`` says which are meant.

    python -m prunella.benchmarks.papers.schemes_page ROWS docs/schemes.md --settings fraction=0.5
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from prunella.benchmarks.papers.schemes import DENSE, Row
from prunella.core.files import write_atomically
from prunella.strategies import STRATEGIES

BEGIN, END = "<!-- rows: prunella.benchmarks.papers.schemes_page -->", "<!-- end of rows -->"
RATES = (0.3, 0.5, 0.7)
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#000000")  # Okabe and Ito
MARKERS = ("o", "s", "^", "v", "D", "P", "X", "<", ">", "p")


def read(folder: Path, wanted: Mapping[str, Any]) -> list[Row]:
    """The rows in a directory whose settings hold what is ``wanted``."""
    rows = [dict(json.loads(path.read_text())) for path in sorted(folder.glob("*.json"))]
    return [row for row in rows if all(row["settings"].get(key) == value for key, value in wanted.items())]


def megabytes(row: Row) -> float:
    return float(row["megabytes_up"] + row["megabytes_down"])


def cell(row: Row | None) -> str:
    """
    >>> cell({"accuracy": 0.91, "megabytes_up": 10.0, "megabytes_down": 20.4, "density": 0.5})
    '0.910 · 30 MB · 0.500'
    """
    return "–" if row is None else f"{row['accuracy']:.3f} · {megabytes(row):.0f} MB · {row['density']:.3f}"


def table(rows: Sequence[Row]) -> str:
    """Markdown: a line a scheme, a column a rate; accuracy, megabytes both ways, share of weights kept at the end."""
    found = {(row["scheme"], row["rate"]): row for row in rows}
    lines = ["| scheme | " + " | ".join(f"rate {rate}" for rate in RATES) + " |", "|---|" + "---|" * len(RATES)]
    dense = cell(found.get((DENSE, 0.0)))
    lines.append(f"| {DENSE}, dense | " + " | ".join([dense] + [""] * (len(RATES) - 1)) + " |")
    for scheme in (name for name in STRATEGIES if name != DENSE):
        lines.append(f"| {scheme} | " + " | ".join(cell(found.get((scheme, rate))) for rate in RATES) + " |")
    return "\n".join(lines)


def picture(rows: Sequence[Row], path: Path) -> None:
    """Accuracy over megabytes, a line a scheme through its rates; told apart by marker as well as by colour."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7.2, 4.4), layout="constrained")
    for place, scheme in enumerate(name for name in STRATEGIES if name != DENSE):
        mine = sorted((row for row in rows if row["scheme"] == scheme), key=lambda row: float(row["rate"]))
        if mine:
            look = {"marker": MARKERS[place % len(MARKERS)], "color": COLOURS[place % len(COLOURS)]}
            axes.plot([megabytes(r) for r in mine], [r["accuracy"] for r in mine], label=scheme, alpha=0.9, **look)
    for row in (row for row in rows if row["scheme"] == DENSE):
        axes.plot(megabytes(row), row["accuracy"], "*", color="#000000", markersize=14, label=f"{DENSE}, dense")
    axes.set_xlabel("megabytes sent, both ways, all rounds")
    axes.set_ylabel("accuracy after the last round")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def renew(text: str, rows: Sequence[Row]) -> str:
    """The page with the table between its marks replaced. Raises ``ValueError`` where it has none."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} … {END}")
    return f"{before}{BEGIN}\n\n{table(rows)}\n\n{END}{after}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("rows", type=Path)
    parser.add_argument("page", type=Path)
    parser.add_argument("--settings", nargs="*", default=[], metavar="NAME=JSON")
    chosen = parser.parse_args()
    wanted = {name: json.loads(value) for name, _, value in (given.partition("=") for given in chosen.settings)}
    rows = read(chosen.rows, wanted)
    text = renew(chosen.page.read_text(), rows)
    write_atomically(chosen.page, lambda path: path.write_text(text), mode=0o644)
    picture(rows, chosen.page.with_suffix(".png"))


if __name__ == "__main__":
    main()
