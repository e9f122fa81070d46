"""An advice as files: ``advice.html``, which fetches nothing, its picture, and ``advice.json`` with all numbers."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from prunella.attacks.score.control import PSNR_FLOOR
from prunella.benchmarks.advise.proposals import Question
from prunella.benchmarks.advise.search import TIERS, Advice, Standing, front, lost, lost_interval
from prunella.benchmarks.advise.words import SHOWN, command, headline, limits, reasons, unanswered, untried, worst_case
from prunella.benchmarks.engine.plots import PAPERS
from prunella.benchmarks.scenarios.standing import MOST, WITH_EPSILON, WITHOUT
from prunella.core.files import write_json

HTML, JSON, PICTURE = "advice.html", "advice.json", "advice.svg"
HEADS = ("", "defenses", "rate", "ε", "accuracy", "points lost", "worst case", "what came back", "MB up", "federations")
TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Prunella: which defense?</title>
<style>
body { font: 16px/1.5 system-ui, "DejaVu Sans", "Liberation Sans", Arial, sans-serif; color: #1d2227; margin: 2rem auto;
  max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; line-height: 1.3; } h2 { font-size: 1.1rem; margin-top: 2rem; break-after: avoid; }
.small { color: #555; font-size: .85rem; } pre { background: #f1f3f5; padding: .7rem; white-space: pre-wrap;
  overflow-wrap: anywhere; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .85rem; width: 100%; }
th, td { border-top: 1px solid #ccc; padding: .25rem .5rem; text-align: left; vertical-align: top; }
th { color: #555; font-weight: 500; } tr.best { background: #eaf3ea; } tr { break-inside: avoid; }
svg { max-width: 100%; height: auto; }
</style>
</head>
<body>
<p class="small">prunella advise · {{ about }}</p>
<h1>{{ headline }}</h1>
{% for text in reasons %}<p>{{ text }}</p>
{% endfor %}{% if command %}<pre>{{ command }}</pre>
<h2>What it does not protect against</h2>
<ul>{% for text in limits %}<li>{{ text }}</li>
{% endfor %}</ul>
{% endif %}<h2>Leak against accuracy</h2>
<div class="wide">{{ picture }}</div>
<h2>All that was tried</h2>
<div class="wide"><table>
<thead><tr>{% for head in heads %}<th>{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr{% if row.best %} class="best"{% endif %}>{% for cell in row.cells %}<td>{{ cell }}</td>
{% endfor %}</tr>
{% endfor %}</tbody></table></div>
<p class="small">Every federation was attacked in its first and its last round as a run is: with every attack that
fits, and only where the same attack succeeds on the same images without a defense. The worst case is {{ worst_case }}
of training, which a server may ask for: mean PSNR in dB over the federations, above the most that a
picture scores which needs no update. A chain counts as what its worst federation showed. Points lost are against the
same seeds of {{ reference }}; brackets are 95 % intervals by Student's t over seeds.</p>
<h2>How</h2>
<p class="small">{{ how }}</p>
</body>
</html>
"""


def _number(value: float | None, digits: int = 1) -> str:
    return "" if value is None or not math.isfinite(value) else f"{value:.{digits}f}"


def row(one: Standing, number: int, reference: Standing | None) -> list[str]:
    """A line of the table, in the order of ``HEADS``."""
    asked = one.proposal
    strengths = "".join(f" ({key.rpartition('.')[2]} {value:g})" for key, value in asked.strengths)
    start = [str(number), asked.chain + strengths, f"{asked.rate:g}", f"{one.epsilon:.3g}".replace("inf", "none")]
    if not one.trained:
        return [*start, _number(one.accuracy, 3), "", "", one.trouble, "", str(len(one.rows))]
    ends = None if reference is None else lost_interval(one, reference)
    points = "" if reference is None else f"{lost(one, reference):.1f}"
    points += "" if ends is None else f" [{ends[0]:.1f}, {ends[1]:.1f}]"
    decibels = "" if one.psnr is None else f"{one.psnr:.0f} dB, {one.leak:.0f} above"
    what = SHOWN[one.tier]
    count, judged = one.share("rebuilt" if one.tier == "rebuilt" else "traces")
    if one.tier == "promised":  # an ε holds whatever came back, and says nothing of it
        what = "traces, and an ε" if count else "not judged, but an ε" if judged < len(one.rows) else what
    what = "members" if one.tier == "traces" and not count else what
    what += f", {count} of {judged}" if count else ""
    up = one.values("megabytes_up")
    sent = _number(sum(up) / len(up)) if up else ""
    return [*start, f"{one.accuracy:.3f}", points, decibels, what, sent, str(len(one.rows))]


def in_order(found: Sequence[Standing]) -> list[Standing]:
    """As the table has them: what learned first, the best tier first, the most accurate first."""
    return sorted(found, key=lambda one: (not one.trained, TIERS.index(one.tier), -one.accuracy))


def draw(found: Sequence[Standing], path: Path) -> None:
    """Leak against accuracy; a marker's size is what went up, its colour whether it has an ε, filled where an image was
    rebuilt or nothing is known."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 5.2), layout="constrained")
    axes = figure.subplots()
    shown = [(number, one) for number, one in enumerate(in_order(found), 1) if one.trained and one.psnr is not None]
    kept = front(found)
    for number, one in shown:
        place, private, up = (
            (min(MOST, one.psnr or 0.0), one.accuracy),
            math.isfinite(one.epsilon),
            one.values("megabytes_up"),
        )
        colour = WITH_EPSILON if private else WITHOUT
        face, thick = colour if one.tier in ("rebuilt", "unknown") else "white", 2.5 if one in kept else 1
        size, mark = 110 + 8 * statistics.fmean(up), "D" if private else "o"
        axes.scatter(
            *place, s=size, marker=mark, facecolor=face, edgecolor=colour, linewidth=thick, alpha=0.9, zorder=3
        )
        axes.annotate(str(number), place, ha="center", va="center", fontsize=7, zorder=4)
        axes.plot([], [], " ", label=f"{number} {one.proposal.name}")
    axes.set_title(
        "filled: an image was rebuilt, or nothing is known; diamonds: with an ε; thick: on the front", fontsize=9
    )
    axes.axvline(PSNR_FLOOR, color="grey", linestyle=":", zorder=0)
    axes.annotate(f" {PAPERS}", (PSNR_FLOOR, 0.01), xycoords=("data", "axes fraction"), fontsize=7)
    axes.set_xlabel(f"worst case, PSNR in dB (at most {MOST:.0f}): less leaks less", fontsize=9)
    axes.set_ylabel("accuracy", fontsize=9)
    axes.grid(alpha=0.3)
    if shown:
        axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5), handlelength=0)
    with rc_context({"svg.hashsalt": "advice"}):
        figure.savefig(path, format="svg", metadata={"Date": None})


def as_json(advice: Advice | None, found: Sequence[Standing], question: Question, may_lose: float) -> dict[str, Any]:
    """Everything that the page says, and every federation."""
    every = [
        {
            "name": one.proposal.name,
            "chain": one.proposal.chain,
            "rate": one.proposal.rate,
            "epsilon": one.epsilon if math.isfinite(one.epsilon) else None,
            "strengths": dict(one.proposal.strengths),
            "tier": one.tier if one.trained else "failed",
            "accuracy": one.accuracy,
            "lost": lost(one, advice.reference) if advice and one.trained else None,
            "psnr": one.psnr,
            "leak": one.leak if math.isfinite(one.leak) else None,
            "federations": list(one.rows),
        }
        for one in in_order(found)
    ]
    said: dict[str, Any] = {"headline": unanswered(found), "recommended": None, "command": None}
    if advice is not None:
        chosen = advice.recommended
        said = {
            "headline": headline(advice, may_lose),
            "reasons": [*untried(found, question), *reasons(advice, question)],
            "recommended": chosen.proposal.name if advice.answered else None,
            "tier": chosen.tier,
            "does_not_protect_against": limits(chosen, question) if advice.answered else None,
            "command": command(chosen, question) if advice.answered else None,
            "reference": advice.reference.proposal.name,
        }
    asked = {"settings": dict(question.given), "sites": question.sites, "rounds_tried": question.short}
    return {
        **said,
        "may_lose_points": may_lose,
        "front": [s.proposal.name for s in front(found)],
        **asked,
        "tried": every,
    }


def write(
    advice: Advice | None, found: Sequence[Standing], question: Question, may_lose: float, how: str, out: Path
) -> Path:
    """All three files; the page."""
    out.mkdir(parents=True, exist_ok=True)
    draw(found, out / PICTURE)
    chosen = advice.recommended if advice and advice.answered else None
    reference = advice.reference if advice else None
    picture = (out / PICTURE).read_text()
    shown: Mapping[str, Any] = {
        "about": f"{question.settings['model']} on {question.settings['dataset']}, {question.sites} sites",
        "headline": headline(advice, may_lose) if advice else unanswered(found),
        "reasons": [*untried(found, question), *(reasons(advice, question) if advice else [])],
        "command": command(chosen, question) if chosen else "",
        "limits": limits(chosen, question) if chosen else [],
        "reference": reference.proposal.name if reference else "none",
        "picture": Markup(picture[picture.index("<svg") :]),
        "heads": HEADS,
        "rows": [
            {"cells": row(one, number, reference), "best": one is chosen}
            for number, one in enumerate(in_order(found), 1)
        ],
        "worst_case": worst_case(question),
        "how": how,
    }
    page = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE).render(shown)
    (out / HTML).write_text(page, encoding="utf-8")
    write_json(out / JSON, as_json(advice, found, question, may_lose))
    return out / HTML
