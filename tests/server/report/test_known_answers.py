"""Runs whose answer is known: what the terminal, the report, the live page and ``prunella compare`` say of each, word
for word, in what they really put out."""

import html
import http.client
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from prunella.deploy.console.summary import summary
from prunella.deploy.runs import RunDir
from prunella.deploy.tools.compare import comparison
from prunella.server.audit.attempt import TRANSFORMED
from prunella.server.exporter import Exporter
from prunella.server.report.build import write_report
from prunella.server.store.schema import row
from prunella.server.store.write import RunStore
from tests.server.report.test_build import add_audit, new_run

COPY, WEAK, NOTHING = 0.02, 0.35, 2.0  # noise on what was "rebuilt": a near copy, in part, nothing left
CONTROL = ("control", COPY, {})
WORST_CASE = (("single", COPY, {}), ("single-defended", NOTHING, {}))
DEFENDED = ("control-defended", NOTHING, {})
DENIED = {"outcome": "no-consent", "scores": None}
BROKEN = {"outcome": "failed", "scores": None, "reason": "AttackError: the objective is not finite"}
Audit = tuple[str, float, dict[str, Any]]


def client(noise: float = NOTHING, **changes: Any) -> Audit:
    return ("client", noise, changes)


def members(answer: str) -> Audit:
    return ("membership", NOTHING, {"client": 2, "scores": None, "membership": MEMBERS[answer]})


@dataclass(frozen=True)
class Known:
    """A run, the badge and the headline it must have, and words that must stand beside them everywhere."""

    badge: str
    headline: str
    audits: tuple[Audit, ...] = ()
    beside: tuple[str, ...] = ()
    accuracy: float = 0.9
    loss: float | None = 0.3
    defenses: str = "priprune"
    denying: int = 0
    epsilon: float | None = None
    status: str = "completed"
    note: str | None = None


CLEAR = "Not with this attack: what it rebuilt is no nearer to the audited clients' images than another image is."
MEMBERS = {
    "found": {"word": "found", "scores": {
        "local": {"members": 218, "outsiders": 279, "auc": 0.55, "loose": 5},
        "drop": {"members": 218, "outsiders": 279, "auc": 0.71, "loose": 30},
    }},
    "not-found": {"word": "not-found", "scores": {"drop": {"members": 218, "outsiders": 1500, "auc": 0.52, "strict": 0,
                                                           "loose": 0}}},
    "unresolved": {"word": "unresolved"}, "in a word": {"word": "found"},
}  # fmt: skip
FOUND = (
    "No image is known to be rebuilt, but a curious server can tell which examples a client trained on better than by "
    "chance."
)
LEAK = "Yes: a curious server could rebuild images of an audited client."
UNDEFENDED = {"defenses": "none"}
ONE = "one image in one step, which the server may ask for,"
KNOWN: dict[str, Known] = {
    "clear": Known("Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client()),
                   ("The worst case, one image in one step, which the server may ask for, gave nothing away to this "
                    "attack behind priprune",
                    "No images of 3 of 4 clients were scored: nothing is known of what their updates give away.")),
    "none, rebuilt": Known("Leak found", LEAK, (CONTROL, ("single", COPY, {}), client(COPY)), **UNDEFENDED),
    "none, nothing found": Known(
        "Not defended", "This attack rebuilt nothing, but nothing defends the updates: a stronger attack may rebuild "
        "images.", (CONTROL, client()), **UNDEFENDED),
    "none, worst case": Known(
        "Worst case rebuilt", f"Not the audited clients' images, but {ONE} is rebuilt without a defense.",
        (CONTROL, ("single", COPY, {}), client()), **UNDEFENDED),
    "weak": Known(
        "Traces found", "In part: some of what the server rebuilt is nearer to a client's images than another image "
        "is.", (CONTROL, DEFENDED, *WORST_CASE, client(), client(WEAK), client())),
    "worst is not last": Known("Leak found", LEAK, (CONTROL, DEFENDED, client(COPY, round=2), client(round=4)),
                               ("PSNR 3", "round 2")),
    "diverged": Known(
        "Diverged", "Nothing was rebuilt, but the training diverged (loss 723 nats, where guessing costs 2.3; "
        "accuracy 10.0\u202f%): what a model that learns would leak is unknown.",
        (CONTROL, DEFENDED, *WORST_CASE, client()), accuracy=0.1, loss=723.0),
    "not a number": Known(
        "Diverged", "Nothing was rebuilt, but the training diverged (loss not finite, where guessing costs 2.3; "
        "accuracy 10.0\u202f%): what a model that learns would leak is unknown.",
        (CONTROL, DEFENDED, *WORST_CASE, client()), accuracy=0.1, loss=None),
    "at chance": Known(
        "Not learned", "Nothing was rebuilt, but the model did not learn (accuracy 13.0\u202f%, where guessing gives "
        "12.0\u202f%): what a model that learns would leak is unknown.",
        (CONTROL, DEFENDED, *WORST_CASE, client()), accuracy=0.13, loss=2.31),
    "control failed": Known(
        "Proves nothing", "The audit proves nothing: this attack cannot judge this setting, since it failed on its "
        "undefended control.",
        (("control", NOTHING, {"outcome": "control-failed", "reason": "8 steps of 16 images: 9.1 dB"}), DEFENDED,
         client()),
        ("failed on its undefended control in 1 of 1 trial (round 4: 8 steps of 16 images: 9.1 dB)",)),
    "one control of two failed": Known(
        "Proves nothing", "Nothing was rebuilt, but this attack failed on an undefended control: there it proves "
        "nothing.",
        (CONTROL, DEFENDED, client(), ("control", NOTHING, {"round": 2, "outcome": "control-failed"}),
         client(round=2)), ("in 1 of 2 trials (round 2: no reason recorded)",)),
    "control missing": Known("Proves nothing", "The audit proves nothing: no undefended control was run.",
                             (client(),)),
    "all denied": Known(
        "Audits denied", "All 4 clients denied audits; of public images the defended update gave nothing away.",
        (CONTROL, DEFENDED, *WORST_CASE),
        ("All 4 clients denied audits: nothing is known of what their updates give away.",), denying=4),
    "some denied": Known("Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client()),
                         ("3 of 4 clients denied audits: nothing is known of what their updates give away.",),
                         denying=3),
    "one undefended step and nothing else": Known(
        "Clients unknown", "No client's images were scored: all that is known is that the attack rebuilds one image in "
        "one step without a defense.", (("single", COPY, {}),)),
    "not even one undefended step": Known(
        "Proves nothing", "The audit proves nothing: this attack does not even rebuild one image in one step without a "
        "defense.", (("single", NOTHING, {}),)),
    "the undefended step was stopped": Known(
        "Proves nothing", "The audit proves nothing: it has not rebuilt even one image in one step without a defense "
        "(stopped before its end).", (("single", NOTHING, {"reason": "stopped before its end"}),)),
    "asked and denied": Known(
        "Clients unknown", "No client's images were scored; of public images the defended update gave nothing away.",
        (CONTROL, DEFENDED, client(**DENIED)), ("1 of 4 clients denied audits",)),
    "one audit failed": Known(
        "Not judged", "Nothing was rebuilt, but audits failed, so more is unknown: client 2, round 2 (AttackError: "
        "the objective is not finite).", (CONTROL, DEFENDED, *WORST_CASE, client(), client(round=2, **BROKEN)),
        ("1 audit failed, so more is unknown: client 2, round 2 (AttackError: the objective is not finite).",)),
    "only audit failed": Known(
        "Not judged", "No client's images were scored, and audits failed: client 2, round 4 (AttackError: the "
        "objective is not finite).", (CONTROL, DEFENDED, client(**BROKEN))),
    "defended control rebuilt": Known(
        "Defense failed", "Not the audited clients' images, but public images, sent as a client sends its own, were "
        "rebuilt behind this run's defense.", (CONTROL, ("control-defended", COPY, {}), client())),
    "only worst case rebuilt": Known(
        "Worst case rebuilt", f"Not the audited clients' images, but {ONE} is rebuilt behind this run's defense.",
        (CONTROL, DEFENDED, ("single", COPY, {}), ("single-defended", COPY, {}), client()),
        ("The worst case, one image in one step, which the server may ask for, is rebuilt behind priprune (PSNR 3",)),
    "numbers withheld": Known("Leak found", LEAK, (CONTROL, DEFENDED, client(scores=None, level="rebuilt")),
                              ("an image rebuilt, as the client reported without numbers",)),
    "not explained": Known(
        "Not explained", "Nothing was rebuilt, but the attack could not explain the updates: one that can may rebuild "
        "images.", (CONTROL, DEFENDED, *WORST_CASE, client(objective=0.6)),
        ("did not explain the update in 1 of 3 audits", "Client 2: not judged, PSNR")),
    "explained no better than a control that fits poorly": Known(
        "Not explained", "Nothing was rebuilt, but the attack could not explain the updates: one that can may rebuild "
        "images.", (("control", COPY, {"objective": 0.25}), DEFENDED, *WORST_CASE, client(objective=0.4))),
    "not explained, without numbers": Known(
        "Not explained", "Nothing was rebuilt, but the attack could not explain the updates: one that can may rebuild "
        "images.", (CONTROL, DEFENDED, *WORST_CASE, client(objective=0.6, scores=None, level="baseline")),
        ("Client 2: not judged, and the client told no numbers, round 4",)),
    "not explained, worst case": Known(
        "Worst case rebuilt", f"The clients' images could not be judged, but {ONE} is rebuilt behind this run's "
        "defense.", (CONTROL, DEFENDED, ("single", COPY, {}), ("single-defended", COPY, {}), client(objective=0.6)),
        ("did not explain the update in 1 of 3 audits",)),
    "worst case not explained": Known(
        "Not explained", "Nothing was rebuilt, but the attack could not explain the updates: one that can may rebuild "
        "images.",
        (CONTROL, DEFENDED, ("single", COPY, {}), ("single-defended", NOTHING, {"objective": 0.6}), client()),
        ("The worst case, one image in one step, which the server may ask for, was not judged: the attack did not "
         "explain its update",)),
    "all denied, not explained": Known(
        "Audits denied", "All 4 clients denied audits: all that is known is that the attack works without a defense.",
        (CONTROL, ("control-defended", NOTHING, {"objective": 0.6}), *WORST_CASE),
        ("did not explain the update in 1 of 2 audits",), denying=4),
    "worst case not tried": Known(
        "Worst case unknown", f"Nothing was rebuilt, but {ONE} was not tried.", (CONTROL, DEFENDED, client())),
    "out of time": Known(
        "Not judged", "Nothing was rebuilt, but an attack did not finish, or shows nothing: client 2, round 4 (stopped "
        "after 600 s of its 300 iterations).",
        (CONTROL, DEFENDED, *WORST_CASE, client(ok=False, reason="stopped after 600 s of its 300 iterations")),
        ("1 audit did not finish, or can show nothing: client 2, round 4 (stopped after 600 s",)),
    "transformed by a defense": Known(
        "Not judged", "Nothing was rebuilt, but an attack did not finish, or shows nothing: client 2, round 4 "
        f"({TRANSFORMED}).", (CONTROL, DEFENDED, *WORST_CASE, client(ok=False, reason=TRANSFORMED)), defenses="ats"),
    "interrupted": Known(
        "Not finished", "Nothing was rebuilt so far, but the run is not complete: audits may be missing.",
        (CONTROL, DEFENDED, *WORST_CASE, client()), status="failed"),
    "defended in another round": Known(
        "Not defended", "This attack rebuilt nothing, but no defense was audited: a stronger attack may rebuild "
        "images.", (CONTROL, *WORST_CASE, client(), ("control", COPY, {"round": 2}),
                    ("control-defended", NOTHING, {"round": 2}))),
    "sites refused": Known("Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client()),
                           ("1 said no to this run: its owner's policy",),
                           note="1 said no to this run: its owner's policy"),
    "not audited": Known(
        "Not audited", "Nothing was audited, so nothing is known about what a curious server could rebuild."),
    "members found": Known(
        "Members found", FOUND, (CONTROL, DEFENDED, *WORST_CASE, client(), members("found")),
        ("Membership of client 2: which examples it trained on in the audited rounds can be told better than "
         "by chance: an example that was "
         "trained on outranks one that was not in 71.0\u202f% of pairs (65.2\u202f% to 76.8\u202f%; by chance: "
         "50.0\u202f%); at 1.0\u202f% of false alarms 13.8\u202f% of 218 are caught (9.0\u202f% to 21.9\u202f%; by "
         "chance: 1.0\u202f%); 0.1\u202f% of false alarms cannot be resolved with at most 279 outsiders.",)),
    "members found, control failed": Known(
        "Members found", FOUND, (("control", NOTHING, {"outcome": "control-failed", "reason": "9.1 dB"}), DEFENDED,
                                 client(), members("in a word")),
        ("as it reports without numbers", "The attack failed on its undefended control in 1 of 1 trial")),
    "members and pictures found": Known(
        "Leak found", LEAK, (CONTROL, DEFENDED, client(COPY), members("found")), ("outranks one that was not in 71",)),
    "members not found": Known(
        "Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client(), members("not-found")),
        ("was not told better than by chance, in a test that counts every score and every client asked",
         "at 0.1\u202f% of false alarms 0.0\u202f% of 218 are caught (0.0\u202f% to 4.6\u202f%; by chance: "
         "0.1\u202f%)")),
    "members not found, no proof": Known(
        "Proves nothing", "The audit proves nothing: no undefended control was run.", (client(), members("not-found"))),
    "members not judged": Known(
        "Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client(), members("unresolved")),
        ("Membership of client 2: not judged, since fewer than 20",)),
    "members refused": Known(
        "Not judged", "Nothing was rebuilt, but audits failed, so more is unknown: membership of client 2, round 4 "
        "(the client refused).", (CONTROL, DEFENDED, *WORST_CASE, client(),
                                  ("membership", NOTHING, BROKEN | {"client": 2, "reason": "the client refused"}))),
    "an epsilon": Known("Nothing rebuilt", CLEAR, (CONTROL, DEFENDED, *WORST_CASE, client()),
                        ("Guaranteed: ε 3.21 at δ 1e-05 for the client that spent most, 2.5 on average.",),
                        defenses="dp-sgd", epsilon=3.21),
}  # fmt: skip


def stored(path: Path, known: Known) -> RunStore:
    settings = {"dataset": "digits", "rounds": 4, "seed": 5, "defenses": known.defenses, "privacy.delta": 1e-5}
    store = new_run(
        path,
        loss=False,
        settings=settings,
        classes=10,
        test_examples=359,
        largest_class=0.12,
        status=known.status,
        note=known.note,
    )
    last = [row("accuracy_ratio", known.accuracy), row("clients_available", 4)]
    last += [row("clients_denying_audits", known.denying)] + ([row("loss", known.loss)] if known.loss else [])
    if known.epsilon:
        last += [row("privacy_epsilon", known.epsilon, stat="worst"), row("privacy_epsilon", 2.5, stat="mean")]
    store.append_metrics(4, last)
    for kind, noise, changes in known.audits:
        add_audit(store, **{"round": 4, "kind": kind, "noise": noise, "pictures": False, **changes})
    return store


def words(page: str) -> str:
    """The visible text of a page, in one line."""
    body = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", body)).replace("\u202f", "_").split()).replace("_", "\u202f")


def headline_of(page: str) -> tuple[str, str]:
    badge, headline = re.search(r'<span class="badge">(.*?)</span>.*?<h1>(.*?)</h1>', page, re.DOTALL).groups()  # type: ignore[union-attr]
    assert f"<title>{badge} ·" in page
    return html.unescape(badge), html.unescape(headline)


def printed(table: Any) -> dict[str, str]:
    """The cells of a table on a terminal that is wide enough for every line, by label; the first column of values."""
    out = io.StringIO()
    Console(file=out, width=2000).print(table)
    found: dict[str, str] = {}
    label = ""
    for line in out.getvalue().splitlines():
        cells = [cell.strip() for cell in re.split("[│┃]", line)]
        if len(cells) >= 4:
            label = cells[1] or label
            found[label] = f"{found.get(label, '')} {cells[2]}".strip()
    return found


def on_terminal(run: Path) -> tuple[str, str, str]:
    cells = printed(summary(RunDir(run)))
    return cells["verdict"], cells["privacy"], " ".join(cells.values())


def in_compare(run: Path) -> tuple[str, str, str]:
    other = stored(run.parent / "other", KNOWN["not audited"]).path
    cells = printed(comparison([[RunDir(run)], [RunDir(other)]]))
    return cells["verdict"], cells["privacy"], " ".join(cells.values())


def in_report(run: Path) -> tuple[str, str, str]:
    page = write_report(run).read_text(encoding="utf-8")
    return *headline_of(page), words(page)


def on_live_page(run: Path) -> tuple[str, str, str]:
    exporter = Exporter("127.0.0.1:0", {}, run)
    try:
        connection = http.client.HTTPConnection(exporter.address, timeout=10)
        connection.request("GET", "/")
        page = connection.getresponse().read().decode()
    finally:
        exporter.close()
    return *headline_of(page), words(page)


PLACES: dict[str, Callable[[Path], tuple[str, str, str]]] = {
    "terminal": on_terminal, "report": in_report, "live": on_live_page, "compare": in_compare,
}  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", KNOWN)
def test_every_place_says_the_known_answer(tmp_path: Path, name: str, place: str) -> None:
    known = KNOWN[name]
    badge, headline, text = PLACES[place](stored(tmp_path / "run", known).path)
    assert (badge, headline) == (known.badge, known.headline)
    for part in known.beside:
        assert part in text
    if "not explained" in name:
        assert "no more than another image shows" not in text and "Not the audited clients' images" not in text


def test_the_charts_say_whom_they_leave_out(tmp_path: Path) -> None:
    assert "client told no numbers is not drawn" in in_report(stored(tmp_path, KNOWN["numbers withheld"]).path)[2]


@pytest.mark.parametrize("name", KNOWN)
def test_an_epsilon_never_stands_without_its_delta(tmp_path: Path, name: str) -> None:
    run = stored(tmp_path / "run", KNOWN[name]).path
    for place in PLACES.values():
        for found in re.finditer(r"ε (\d\S*)(.{8})", place(run)[2]):
            assert found[2].startswith(" at δ "), found[0]
