"""What an attestation says, as plain data: sections of paragraphs and tables, made from the run store alone.

A section is ``{"title", "paragraphs", "tables": [{"heads", "rows"}]}``; the page (``server.attest.page``) shows nothing
that is not in it, so that what is signed is what is read. No image, no example, no path, no host name. Digests
(SHA-256) bind it to the files of the run and to the code that wrote it.
"""

import datetime
import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from prunella.attacks import ATTACKS
from prunella.attacks.score.level import WORST, baseline, value
from prunella.core.errors import ConfigError
from prunella.core.installation import BUNDLED, digest_of_code
from prunella.core.metrics import LEDGER_METRICS
from prunella.privacy.ledger.spending import UNHEARD, unknown
from prunella.privacy.ledger.spending import spent as spent_by
from prunella.server.attest.bound import measured_by_client, refuted
from prunella.server.best import FOLDER as BEST
from prunella.server.checkpoint import LEDGERS, load_ledgers
from prunella.server.report.evidence import (
    KINDS,
    WORDS,
    control_behind,
    control_state,
    judged,
    scored,
    trouble,
    unexplained,
    unfinished,
    valid_audits,
    worst_first,
)  # fmt: skip
from prunella.server.report.membership import membership_notes
from prunella.server.report.series import label_values, last, present
from prunella.server.report.state import RunState, run_state
from prunella.server.report.units import capital, decibels, digits, percent, plural
from prunella.server.report.verdict import RunVerdict, verdict
from prunella.server.store.read import read_audits, read_metrics, read_run
from prunella.server.store.rows import ledger_rows
from prunella.server.store.schema import AUDIT_LINES, LOCAL_SETTINGS, METRIC_LINES, RUN, StoreLine

FORMAT = "prunella-attestation/1"
FILES = (RUN, METRIC_LINES, AUDIT_LINES, f"checkpoint/{LEDGERS}")
MODELS = ("checkpoint", BEST)
TRAINED = ("dataset", "model", "strategy", "defenses", "aggregation")  # settings
PLACE = re.compile(r"[/\\]|\.[A-Za-z]\w*$")  # in the value of an algorithm's setting: of a file
Section = dict[str, Any]
LIMITS = (
    "This document states what was tried and what came of it. It is no proof that nothing can be rebuilt: an attack "
    "that is stronger, or knows more, may rebuild more. Only an ε, or a bound in nats, holds against attacks that "
    "nobody has tried, and only for what it counts."
)
POINTERS = (
    ("What was trained, Threat model", "GDPR Art. 35(7)(a): description of the processing"),
    ("Defenses, Differential privacy", "GDPR Art. 35(7)(d): measures; NIST SP 800-226: what a guarantee is of, its "
     "unit and its parameters"),
    ("Attacks, Membership", "GDPR Art. 35(7)(c): risks; EDPB Opinion 28/2024: whether a model is anonymous, tested by "
     "attacks that are reasonably likely"),
    ("What was not tested, Residual risk", "EDPS TechDispatch 1/2025: what federated learning leaves open"),
    ("attack_results.json", "SATRE 3.3: disclosure control of what leaves an environment"),
)  # fmt: skip


@dataclass(frozen=True)
class Evidence:
    """The files of a run, read once. Raises ``ConfigError`` for a run that is still going, or that has no round."""

    folder: Path

    @cached_property
    def run(self) -> StoreLine:
        found = read_run(self.folder)
        if not found:
            raise ConfigError(f"{self.folder.name} has no run.json: there is nothing to attest")
        if found.get("status") == "running":
            raise ConfigError(f"{self.folder.name} is running or was killed: attest it when it has ended")
        if not last(self.lines, "round"):
            raise ConfigError(f"{self.folder.name} has no round: there is nothing to attest")
        if not found.get("settings"):
            raise ConfigError(f"the run.json of {self.folder.name} names no settings: restore it, to attest the run")
        return found

    @cached_property
    def lines(self) -> list[StoreLine]:
        return read_metrics(self.folder)

    @cached_property
    def audits(self) -> list[StoreLine]:
        return valid_audits(read_audits(self.folder))[0]

    @cached_property
    def damaged(self) -> int:
        return valid_audits(read_audits(self.folder))[1]

    @cached_property
    def state(self) -> RunState:
        """With what the ledgers say as the last word: of the sites, all of this document's figures are from there."""
        newest = max((line["round"] for line in self.lines), default=0)
        ledgers = [{"round": newest, **each._asdict()} for each in ledger_rows(self.ledgers)]
        others = [line for line in self.lines if line["metric"] not in LEDGER_METRICS]
        return run_state(self.run, [*others, *ledgers], self.audits)

    @cached_property
    def verdict(self) -> RunVerdict:
        return verdict(self.audits, self.state, self.damaged)

    @cached_property
    def ledgers(self) -> Mapping[str, Mapping[str, Any]]:
        """What every site has spent, by the server's number of it."""
        return load_ledgers(self.folder / "checkpoint")

    @cached_property
    def refuted(self) -> list[int]:
        """The clients of whom an attack showed more than was promised."""
        return refuted(self.audits, self.ledgers, self.run.get("settings", {})) or []

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """Those of the experiment; of a data set that lies in a folder, its kind alone, and of no file its place."""
        given = {key: value for key, value in self.run.get("settings", {}).items() if key not in LOCAL_SETTINGS}
        files = {key for key, value in given.items() if "." in key and PLACE.search(str(value))}
        found = given | dict.fromkeys(files, "a local file")
        name, colon, _ = str(found.get("dataset", "")).partition(":")
        return found | ({"dataset": f"{name}, of local files"} if colon else {})


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests_of(run: Path) -> dict[str, str]:
    """Of the files that a run's statement is about, by their place in its folder: what it wrote down, and its models.
    ``metrics.parquet`` and ``report.html`` are made of these, and may be made anew."""
    models = sorted(path for kept in MODELS for path in (run / kept).glob("*.safetensors"))
    there = [path for path in (*(run / name for name in FILES), *models) if path.is_file()]
    return {path.relative_to(run).as_posix(): digest_of(path) for path in there}


def canonical(found: Any) -> bytes:
    """The one way in which a JSON object is written to be signed."""
    return json.dumps(found, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _section(
    title: str, *paragraphs: str, tables: Iterable[tuple[Sequence[str], Sequence[Sequence[str]]]] = ()
) -> Section:
    kept = [{"heads": list(heads), "rows": [list(row) for row in rows]} for heads, rows in tables if rows]
    return {"title": title, "paragraphs": [text for text in paragraphs if text], "tables": kept}


def _time(text: Any) -> str:
    return str(text)[:16].replace("T", " ") if text else "unknown"


def _trained(found: Evidence) -> Section:
    run, settings, state = found.run, found.settings, found.state
    rows = [(name, str(settings[name])) for name in TRAINED if name in settings]
    rows += [
        ("sites that took part", "unknown" if state.clients is None else str(state.clients)),
        ("rounds", f"{state.rounds} of {settings.get('rounds', 'unknown')}"),
        ("parameters", f"{run['model_parameters']:,}" if run.get("model_parameters") else "unknown"),
        ("density of the model", percent(last(found.lines, "mask_density_ratio"))),
        ("accuracy", percent(state.accuracy)),
        ("began, ended (UTC)", ", ".join(_time(run.get(key)) for key in ("started", "finished"))),
        ("status", str(run.get("status"))),
    ]
    doubt = f"The audits say little about a model that learns: {state.doubt[1]}." if state.doubt else ""
    return _section("What was trained", doubt, tables=[(("", ""), rows)])


def _threats(found: Evidence) -> Section:
    threats = list(dict.fromkeys(audit["threat"] for audit in found.audits))
    who = found.run.get("threat_model") or "The run states no threat model."
    return _section("Threat model", who, *(f"An audit's view: {threat}." for threat in threats))


def _defenses(found: Evidence) -> Section:
    claims = found.run.get("claims") or []
    none = "" if claims else "This run claims no privacy guarantee: it states neither an ε nor a bound."
    return _section("Defenses", none, *(f"{claim}." for claim in claims))


def _spent(found: Evidence) -> tuple[list[float], str]:
    """The ε of every site that has one, and the sentence for those that have none or may have spent more."""
    told = [line for line in found.ledgers.values() if line.keys() != {UNHEARD}]
    spent = sorted(value for value in map(spent_by, told) if value is not None)
    without, more = len(told) - len(spent), unknown(found.ledgers)
    said = f"{plural(without, 'site')} had no ε: nothing bounds what their updates tell." if without else ""
    lost = f"{_more(more)}, and they may have spent more: their own accounts know."
    return spent, " ".join(filter(None, (said, lost if more else "")))


def _more(sites: int) -> str:
    return f"Answers of {plural(sites, 'site')} did not come, or their accounts began anew"


def _require_ledgers(found: Evidence) -> None:
    """Refuse ledgers that are gone, or older than the figures of the run."""
    told, (spent, _) = present(found.lines, "privacy_epsilon", stat="worst"), _spent(found)
    if told is not None and max(spent, default=0.0) < told * (1 - 1e-9):
        known = f"say ε {digits(max(spent))} where {METRIC_LINES} says {digits(told)}" if spent else "are missing"
        where = f"what the sites of {found.folder} have spent (checkpoint/{LEDGERS})"
        raise ConfigError(f"{where}: the ledgers {known}, so that its ε cannot be attested: restore them")


def _nats(found: Evidence) -> str:
    """What a channel let through: a bound where every site has one and all its answers came."""
    told = [line for line in found.ledgers.values() if line.keys() != {UNHEARD}]
    nats = [float(line["channel_nats"]) for line in told if "channel_nats" in line]
    if not nats:
        return ""
    without, more = len(told) - len(nats), unknown(found.ledgers)
    known = f"{digits(max(nats))} nats"
    told_of = f"{known} or more" if without or more else f"at most {known}"
    words = f"A channel let {told_of} through, on the site that sent most."
    words += f" {plural(without, 'site')} told no bound." if without else ""
    return words + (f" {_more(more)}." if more else "")


def _delta(found: Evidence) -> float:
    return float(found.settings.get("privacy.delta", 1e-5))


def _budget(found: Evidence) -> str:
    """The budget and what is left of it, at the site that has least left: the run's, or its owner's where that is
    smaller, which the site tells."""
    run = float(found.settings.get("privacy.epsilon-budget") or 0.0)
    told = [(float(line.get("epsilon_budget") or run), spent_by(line)) for line in found.ledgers.values()]
    spent = [(limit, value) for limit, value in told if value is not None]
    left = sorted((max(limit - value, 0.0), limit) for limit, value in spent if limit)
    if not left:
        return "none set"
    rest, limit = left[0]
    whose = ", at the site with least left" if limit != run else ""
    without = len(spent) - len(left)
    return f"{digits(limit)}, {digits(rest)}{whose}" + (f"; {plural(without, 'site')} set none" if without else "")


def _privacy(found: Evidence) -> Section:
    settings, (spent, without) = found.settings, _spent(found)
    bits = _nats(found)
    if not spent:
        return _section("Differential privacy", "No site has an ε.", bits)
    delta = _delta(found)
    measured = measured_by_client(found.audits, delta)
    rows = [
        ("ε of the site that spent most", digits(max(spent))),
        ("ε of the site that spent least", digits(min(spent))),
        ("δ", digits(delta)),
        ("unit", "one example of one site"),
        ("neighbouring data sets", "the example is present, or replaced by nothing; how many there are is public"),
        ("accountant", str(settings.get("privacy.accountant", "rdp"))),
        ("sites with an ε", f"{len(spent)} of {len(found.ledgers)}"),
        ("budget, and what is left of it", _budget(found)),
        ("ε that an attack showed, at least", digits(max(measured.values())) if measured else "not measured"),
    ]
    broken = found.refuted
    warning = ""
    if broken or found.state.refuted:
        who = f"client {', '.join(map(str, broken))}" if broken else "a client, when less was spent,"
        warning = f"An attack on {who} showed more than was promised to it: the accounting or the "
        warning += "implementation is wrong. Do not rely on it."
    counts = "It counts training and noisy counts of every run that the site's ledger knows; not audits that its owner "
    counts += "consented to, and not the time that a reply takes."
    return _section("Differential privacy", warning, without, counts, bits, tables=[(("", ""), rows)])


def _attack_rows(found: Evidence) -> list[tuple[str, ...]]:
    """Every attack and kind of audit: how often, what came of it, its worst image beside what needs no update."""
    kinds = [kind for kind in KINDS if kind != "membership"]
    keys = dict.fromkeys((a["attack"], a["kind"], a["defense"]) for a in found.audits if a["kind"] in kinds)
    rows: list[tuple[str, ...]] = []
    unread = unexplained(found.audits)
    for attack, kind, defense in keys:
        mine = [a for a in found.audits if (a["attack"], a["kind"], a["defense"]) == (attack, kind, defense)]
        done = scored(mine)
        worst = worst_first(done, found.audits)[0] if done else None
        states = [control_state(a) if kind in ("control", "single") else control_behind(a, found.audits) for a in mine]
        levels = [judged(a, found.audits) for a in done]
        score = WORDS[max(levels, key=WORST.index)] if levels else "not scored"
        cut = unfinished(done)
        score += f"; {len(cut)} did not finish, or can show nothing" if cut else ""
        blind = sum(each in unread for each in done)
        score += f"; the update was not explained in {blind} of them" if blind else ""
        psnr = "" if worst is None else f"{decibels(value(worst, 'psnr'))} / {decibels(baseline(worst, 'psnr'))}"
        control = f"{states.count('rebuilt')} of {len(states)}"
        rows.append((attack, KINDS[kind], defense, f"{len(done)} of {len(mine)}", score, psnr, _told(worst), control))
    return rows


def _told(worst: Mapping[str, Any] | None) -> str:
    """How many originals were told from their look-alikes, and at least in what share, at 95 % or, where several
    audits are judged together, at more (``server.report.many``)."""
    seen = (worst or {}).get("scores") or {}
    seen = seen.get("recognition")
    if not isinstance(seen, Mapping):
        return ""
    return (
        f"{seen['hits']:.0f} of {seen['images']:.0f}, at least {percent(seen['low'])}, chance {percent(seen['chance'])}"
    )


def _attacks(found: Evidence) -> Section:
    heads = ("attack", "audit", "behind", "scored", "worst result", "PSNR / baseline", "told apart", "controls rebuilt")
    damaged = f"{plural(found.damaged, 'audit')} could not be read and is not counted." if found.damaged else ""
    text = (
        "The worst image of each. The baseline is what a random image, other people's images and the best guess "
        "without the update score at most. An audit that found nothing is evidence only where its control, the same "
        "attack on public images without a defense, was rebuilt, and where the attack explained the update. The share "
        "that is told apart is a lower bound at 95 % confidence, or at more where several audits are judged together."
    )
    return _section(
        "Attacks", text if found.audits else "Nothing was audited.", damaged, tables=[(heads, _attack_rows(found))]
    )


def _membership(found: Evidence) -> Section:
    said = membership_notes(found.audits)
    bounds = measured_by_client(found.audits, _delta(found))
    rows = [(f"client {client}", digits(bound)) for client, bound in sorted(bounds.items())]
    none = "" if said else "Nobody was asked whether its training examples can be told from others."
    if none and any(audit["kind"] == "membership" for audit in found.audits):
        none = "Clients were asked whether their training examples can be told from others; no answer is known."
    return _section("Membership", none, *said, tables=[(("client", "ε is at least, at 95 %"), rows)])


def _untested(found: Evidence) -> Section:
    asked = {audit["attack"] for audit in found.audits}
    left = [name for name in ATTACKS if name not in asked]
    active = [name for name in left if ATTACKS[name].threat.startswith("active")]
    state, failed = found.state, [a for a in found.audits if a["outcome"] == "failed"]
    reasons = label_values(found.lines, "client_failures_total", "reason")
    counted = [(reason, last(found.lines, "client_failures_total", reason=reason) or 0.0) for reason in reasons]
    portfolio = " The portfolio asks several of these by itself." if "portfolio" in asked else ""
    return _section(
        "What was not tested, and failures",
        f"{capital(state.denial)}: nothing is known of what their updates give away." if state.denial else "",
        f"{capital(state.unheard)}: nothing is known of what their updates give away." if state.unheard else "",
        *(f"Failed: {trouble(audit)}." for audit in failed),
        f"Attacks of this release that were not named: {', '.join(left)}.{portfolio}" if left else "",
        f"Servers that plant weights were not played ({', '.join(active)}); clients refuse those that they recognise."
        if active
        else "",
        "Clients that poison the model, a server and a client that collude, and inference from the model's answers "
        "alone, are outside of these audits.",
        tables=[(("reason a reply was left out", "replies"), [(r, digits(n)) for r, n in counted if n])],
    )


def statement(folder: Path) -> dict[str, Any]:
    """The attestation of the run in ``folder``. Raises ``ConfigError`` for one that cannot be attested and
    ``PrunellaError`` for files that cannot be read."""
    found = Evidence(folder)
    run = found.run
    _require_ledgers(found)
    sections = [
        _trained(found), _threats(found), _defenses(found), _privacy(found), _attacks(found), _membership(found),
        _untested(found), _section("Residual risk", found.verdict.headline, *found.verdict.sentences, LIMITS),
        _section("Recommended next step", found.verdict.next_step),
        _section("Appendix: where regulators ask for this", "Headings and pointers, no legal claim.",
                 tables=[(("sections", "asked for by"), POINTERS)]),
    ]  # fmt: skip
    spent, without = _spent(found)
    broken = found.state.refuted or found.refuted
    return {
        "format": FORMAT,
        "made": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "run": str(run.get("id")),
        "headline": found.verdict.headline,
        "badge": found.verdict.badge,
        "tone": found.verdict.tone,
        # Of all sites or of none: one that has none is not covered by the others'. Nor where an attack showed more.
        "epsilon": None if without or broken or not spent else {"most": max(spent), "delta": _delta(found)},
        "sections": sections,
        "settings": dict(found.settings),
        "versions": dict(run.get("versions", {})),
        "digests": {
            **digests_of(folder),
            "settings": hashlib.sha256(canonical(dict(found.settings))).hexdigest(),
            "code": digest_of_code((*BUNDLED, "flower", "library")),
        },
    }
