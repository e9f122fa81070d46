"""The membership question at a run's end: put to the audited clients, which score themselves (``client.membership``).

The server sends no candidate and no model, so there is nothing here to choose. The answer comes from a machine that the
server does not control: it is checked as the run store checks it, and anything else is a failed audit.
"""

import time
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from pydantic import ValidationError

from prunella.core.untrusted import clean
from prunella.server.audit.job import Job
from prunella.server.audit.queue import LEFT_OUT, REFUSED, UNSCORED, Auditor
from prunella.server.store.schema import Membership
from prunella.wire.records import unflatten

QUERY = "query.membership"
THREAT = "honest-but-curious server; saw the weights and the updates of the client's last audited rounds"


def audited(queue: Path, most: int) -> list[int]:
    """Up to ``most`` clients, those first whose view was attacked last."""
    newest = sorted(
        (job for job in Job.all(queue) if job.kind == "client"), key=lambda job: (-job.round, job.client or 0)
    )
    return list(dict.fromkeys(job.client for job in newest if job.client is not None))[:most]


def read_answer(reply: Message | None) -> dict[str, Any]:
    """The outcome, the reason and the membership of an audit line, from a client's reply or None."""
    if reply is None:
        return {"outcome": "failed", "reason": UNSCORED[4]}
    if reply.has_error():
        why = UNSCORED.get(reply.error.code) or f"the client could not score it: {reply.error.reason or 'no reason'}"
        return {"outcome": "failed", "reason": clean(why)}
    told = reply.content.config_records.get("audit", ConfigRecord())
    if told.get("outcome") == "no-consent":
        return {"outcome": "no-consent"}
    if told.get("outcome") != "scored":
        return {"outcome": "failed", "reason": REFUSED if told.get("outcome") == "refused" else LEFT_OUT}
    numbers = reply.content.metric_records.get("membership")
    try:
        scores = None if numbers is None else unflatten({name: float(str(n)) for name, n in numbers.items()})
        found = Membership.model_validate({"word": told.get("word"), "scores": scores})
    except (ValidationError, ValueError, TypeError, AttributeError):
        return {"outcome": "failed", "reason": f"{LEFT_OUT}: it is no answer to the membership question"}
    return {"outcome": "scored", "membership": found.model_dump()}


def ask_membership(auditor: Auditor, grid: Grid, round: int, answered: list[dict[str, Any]]) -> None:
    """Put the question to the audited clients that have not ``answered`` it for ``round``, waiting ``audit-seconds``
    in all at most; their lines are finished."""
    run, done = auditor.run, {(a["kind"], a["round"], a["client"]) for a in answered}
    end = time.monotonic() + run.audit_seconds
    for client in audited(auditor.queue, run.audit_clients) if run.membership else ():
        member = auditor.roster.find(client)
        if ("membership", round, client) in done:
            continue
        line = {"round": round, "kind": "membership", "client": client, "attack": "membership", "adaptive": False}
        line |= {"defense": ",".join(run.defense_names), "threat": THREAT, "seconds": 0.0}
        empty = dict.fromkeys(("objective", "scores", "level", "pictures", "ok", "reason", "found_by", "membership"))
        if member is None:
            auditor.finished.append({**empty, **line, "outcome": "failed", "reason": "the client cannot be reached"})
            continue
        content = RecordDict({"audit": ConfigRecord({"round": round})})
        begin = time.perf_counter()
        question = Message(content, dst_node_id=member.node, message_type=QUERY)
        replies = list(grid.send_and_receive([question], timeout=max(end - time.monotonic(), 0.0)))
        line["seconds"] = time.perf_counter() - begin
        auditor.finished.append({**empty, **line, **read_answer(replies[0] if replies else None)})
