"""What a run's verdict has to know beside its audits: whether the model learned, who denied audits, and the ε.

A model that did not learn can send updates that tell little: what it leaks says nothing about one that learns.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prunella.core.untrusted import figure
from prunella.server.report.series import last, points, present, total
from prunella.server.report.units import digits, percent, plural
from prunella.server.store.schema import EARLY, StoreLine

STOPPED, UNFINISHED = "stopped", ("failed", "stopped")  # one that says it is running was killed, or goes on
LEAST_EPSILON = 1e-3  # a smaller one is told as below this: "0" would read as if nothing could be learnt
LARGEST_EPSILON = 16.0  # beyond, an ε is true and bounds nothing that matters: e^16 is nine million
SECURE_SUM = "secure-sum"  # strategies.secure_sum.vector.NAME, which is slow to import
ERRORS = 3.0  # standard errors above guessing; one run in a thousand that only guesses is that good
MARGIN = 0.05  # where the number of examples behind the accuracy is not known
DIVERGED = 2.0  # times the loss of guessing, ln(classes), that no model has which learns


def has_diverged(loss: float, classes: int) -> bool:
    """Whether a model with this loss, in nats, is worse than guessing by more than any model that learns.

    >>> has_diverged(723.0, 10), has_diverged(math.nan, 10), has_diverged(2.1, 10)
    (True, True, False)
    """
    return not loss <= DIVERGED * math.log(max(classes, 2))


@dataclass(frozen=True)
class RunState:
    """``None`` for what the run did not record. ``loss`` is in nats, and infinite where it was not finite;
    ``examples`` and ``largest_class`` (a share) are of the test set. ``clients`` took part, of which ``denied`` let
    nobody score their images; of ``unscored`` others no audit of a run that has scored ones has a result. ``epsilon``
    is that of the client that spent most, at ``delta``; None, too, where an attack showed more than that of ``refuted``
    clients. ``unknown`` clients may have spent more than is known, since answers of theirs did not come or their
    accounts began anew. ``unaudited`` says what left in rounds of a kind none of which was audited, ``lost`` how many
    audits the run counted that are not among its lines. ``coming``: a run that has not ended asks for audits, of which
    it waits for ``left``. Not ``described``: its settings are lost, and so whether it had a defense. ``summed``:
    updates came as masked sums, of which all clients score the same pictures."""

    rounds: int = 0
    accuracy: float | None = None
    loss: float | None = None
    classes: int | None = None
    examples: int | None = None
    largest_class: float | None = None
    clients: int | None = None
    denied: int = 0
    unscored: int = 0
    defended: bool = False
    status: str = ""
    balance_known: bool = True
    epsilon: float | None = None
    mean_epsilon: float | None = None
    unknown: int = 0
    delta: float | None = None
    refuted: int = 0
    unaudited: str = ""
    lost: int = 0
    coming: bool = False
    left: int = 0
    described: bool = True
    summed: bool = False

    @property
    def unfinished(self) -> bool:
        return self.status in UNFINISHED

    @property
    def guessing(self) -> float | None:
        """The accuracy of a model that always names the most frequent class."""
        if not self.classes or not self.balance_known:
            return None
        return max(1 / self.classes, self.largest_class or 0.0)

    @property
    def diverged(self) -> bool:
        """
        >>> RunState(loss=723.0, classes=10).diverged, RunState(loss=2.1, classes=10).diverged
        (True, False)
        """
        if self.loss is None or not self.classes:
            return self.loss == math.inf
        return has_diverged(self.loss, self.classes)

    @property
    def at_chance(self) -> bool:
        """
        >>> [RunState(accuracy=a, classes=10, examples=359).at_chance for a in (0.10, 0.14, 0.16)]
        [True, True, False]
        """
        share = self.guessing
        if self.accuracy is None or share is None:
            return False
        margin = ERRORS * math.sqrt(share * (1 - share) / self.examples) if self.examples else MARGIN
        return self.accuracy <= share + margin

    @property
    def doubt(self) -> tuple[str, str] | None:
        """Why the audits say nothing about a model that learns, as a badge and a clause, or None where it learned."""
        reached = f"accuracy {percent(self.accuracy)}"
        if self.diverged:
            loss = "not finite" if self.loss == math.inf else f"{digits(self.loss or 0.0)} nats"
            fine = f", where guessing costs {digits(math.log(self.classes))}" if self.classes else ""
            return "Diverged", f"the training diverged (loss {loss}{fine}; {reached})"
        if self.accuracy is None or self.guessing is None:
            return "Not judged", "it is not known whether the model learned"
        if self.at_chance:
            return "Not learned", f"the model did not learn ({reached}, where guessing gives {percent(self.guessing)})"
        return None

    @property
    def all_denied(self) -> bool:
        return self.clients is not None and self.denied >= self.clients > 0

    @property
    def denial(self) -> str:
        """
        >>> RunState(clients=4, denied=3).denial, RunState(clients=2, denied=2).denial, RunState().denial
        ('3 of 4 clients denied audits', 'all 2 clients denied audits', '')
        >>> RunState(clients=1, denied=1).denial
        'the only client denied audits'
        """
        if not self.denied:
            return ""
        if self.clients is None:
            return f"{self.denied} client{'s' if self.denied > 1 else ''} denied audits"
        all_of_them = "the only client" if self.clients == 1 else f"all {self.clients} clients"
        return f"{all_of_them if self.all_denied else f'{self.denied} of {self.clients} clients'} denied audits"

    @property
    def unheard(self) -> str:
        """
        >>> RunState(clients=4, unscored=3).unheard, RunState(clients=4, denied=1, unscored=1).unheard
        ('no images of 3 of 4 clients were scored', 'no images of 1 more of 4 clients were scored')
        """
        more = " more" if self.denied else ""
        return f"no images of {self.unscored}{more} of {self.clients} clients were scored" if self.unscored else ""

    @property
    def promise(self) -> str:
        """The ε that stands beside every headline.

        >>> RunState(epsilon=3.21, delta=1e-5).promise, RunState().promise
        ('ε 3.21 at δ 1e-05', 'no ε')
        >>> RunState(epsilon=3.21, delta=1e-5, unknown=1).promise, RunState(epsilon=0.0, delta=1e-3).promise
        ('ε 3.21 or more at δ 1e-05', 'ε under 0.001 at δ 0.001')
        """
        if self.epsilon is None:
            return "no ε"
        more = " or more" if self.unknown else ""
        spent = digits(self.epsilon) if self.epsilon >= LEAST_EPSILON else f"under {digits(LEAST_EPSILON)}"
        return f"ε {spent}{more} at " + ("an unknown δ" if self.delta is None else f"δ {digits(self.delta)}")

    @property
    def guarantee(self) -> str:
        """
        >>> RunState(epsilon=3.21, mean_epsilon=2.9, delta=1e-5).guarantee
        'ε 3.21 at δ 1e-05 for the client that spent most, 2.9 on average'
        """
        if self.epsilon is None:
            return ""
        mean = "" if self.mean_epsilon is None else f", {digits(self.mean_epsilon)} on average"
        doubt = "" if not self.unknown else f"; {self.more}"
        vain = "" if self.bounded else f"; one above {LARGEST_EPSILON:g} keeps next to nothing secret"
        return f"{self.promise} for the client that spent most{mean}{doubt}{vain}"

    @property
    def bounded(self) -> bool:
        """Whether there is an ε that anything may rest on.

        >>> [RunState(epsilon=spent).bounded for spent in (3.0, 300.0, None)]
        [True, False, False]
        """
        return self.epsilon is not None and self.epsilon <= LARGEST_EPSILON

    @property
    def more(self) -> str:
        """Why some may have spent more than is known.

        >>> RunState(unknown=2).more
        'answers of 2 clients have not come, or their accounts began anew'
        """
        return f"answers of {plural(self.unknown, 'client')} have not come, or their accounts began anew"


def _loss(run: StoreLine, lines: Sequence[StoreLine]) -> float | None:
    """Of the last round. A round that was scored on the server and has none has a loss that is not finite."""
    scored, losses = points(lines, "accuracy_ratio"), dict(points(lines, "loss"))
    if not scored:
        return None
    on_server = run.get("settings", {}).get("evaluation", "server") == "server"
    return losses.get(scored[-1][0], math.inf if on_server else None)


def _cut_off(run: StoreLine, lines: Sequence[StoreLine]) -> bool:
    """Whether a run that says it is complete lacks its last rounds, which a budget did not keep it from: of a copy that
    was cut short, audits are missing that nothing here counts."""
    done, planned = last(lines, "round"), last(lines, "rounds")
    short = done is not None and planned is not None and done < planned
    return run.get("status") == "completed" and short and EARLY not in str(run.get("note") or "")


def run_state(run: StoreLine, lines: Sequence[StoreLine], audits: Sequence[StoreLine] = ()) -> RunState:
    """The state of a run, from ``run.json``, the lines of ``metrics.jsonl`` and those of ``audits.jsonl``."""
    settings = run.get("settings", {})
    refused = {a["client"] for a in audits if a["outcome"] == "no-consent" and a.get("kind") != "membership"}
    denying = max((y for _, y in points(lines, "clients_denying_audits")), default=0.0)  # also those that have left
    clients = max((y for _, y in points(lines, "clients_available")), default=None)
    on_clients = settings.get("evaluation") == "clients"
    counted = 0 if run.get("status") == "running" else int(total(lines, "audits_total", "outcome") or 0)
    heard = {a["client"] for a in audits if a["outcome"] == "scored" and a.get("kind") == "client"}
    denied = max(int(denying), len(refused))
    different = {(a.get("round"), a.get("kind"), a.get("client")) for a in audits}  # one that is there twice is one
    refuted = int(max((y for _, y in points(lines, "privacy_epsilon_exceeded")), default=0.0))  # an ε that grew since
    return RunState(
        rounds=int(last(lines, "round") or 0),
        accuracy=last(lines, "accuracy_ratio"),
        loss=_loss(run, lines),
        classes=run.get("classes"),
        examples=run.get("test_examples"),
        largest_class=run.get("largest_class"),
        clients=None if clients is None else int(clients),
        denied=denied,
        unscored=max(0, int(clients or 0) - denied - len(heard - refused)) if heard else 0,  # some denied later
        defended=any(name.strip() not in ("", "none") for name in str(settings.get("defenses", "")).split(",")),
        status=STOPPED if run.get("status") == "running" or _cut_off(run, lines) else str(run.get("status", "")),
        balance_known=not on_clients or run.get("largest_class") is not None,
        epsilon=None if refuted else present(lines, "privacy_epsilon", stat="worst"),
        mean_epsilon=present(lines, "privacy_epsilon", stat="mean"),
        unknown=int(present(lines, "privacy_epsilon_unknown") or 0),
        delta=figure(settings.get("privacy.delta"), 0.0, 0.5),  # what comes from elsewhere may be no chance at all
        refuted=refuted,
        unaudited=str(run.get("unaudited") or ""),
        lost=max(0, counted - len(different)),  # a full disk, or a copy that was cut short
        coming=run.get("status") == "running" and bool(settings.get("audit-every")),
        left=int(last(lines, "audits_left") or 0),
        described=bool(settings),
        summed=settings.get("aggregation") == SECURE_SUM,
    )
