"""How a run of another Flower app than ours ends: how long it took, where its traces are, and what audits them.

Such an app keeps no ``run.json``. Where its recorder writes is its own affair, so traces are looked for where a
relative path would put them, in the directory that the run was started in, and in the app's own.
"""

import re
import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from prunella.attacks.trace import recorded_task
from prunella.core.errors import AttackError
from prunella.core.foreign import is_foreign
from prunella.core.untrusted import clean
from prunella.deploy.runs import RunDir
from prunella.server.report.units import duration, plural

NAME = "round-*-node-*.safetensors"  # flower.record
DEPTH = 3  # folders below each place
ROUND = re.compile(r"aggregate_(?:train|fit): received (\d+) results and (\d+) failures", re.I)  # Flower's strategies
REFUSED = re.compile(r"Received error in reply from node \d+: (?:<class '[\w.]+'>:)?<?'?(.*?)'?>?$", re.M)
# As flower.notices says it.
UNDEFENDED = re.compile(r"the run names defenses '.*', but \d+ of \d+ clients answered without Defend.*")
HOW = "wrap its strategy with prunella.record, as docs/audit-your-app.md shows"


def nothing_trained(logs: Iterable[Path]) -> str:
    """Why a run that Flower calls completed trained nothing, as the strategies of Flower told the server's ``logs``, or
    "" where an answer counted in some round or where they tell nothing.

    Flower goes on when every client fails, and its run then ends as any other.
    """
    texts = [log.read_text(errors="replace") for log in logs if log.exists()]
    rounds = [(int(results), int(failures)) for text in texts for results, failures in ROUND.findall(text)]
    if not rounds or any(results for results, _ in rounds):
        return ""
    failed = plural(sum(failures for _, failures in rounds), "failure")
    why = next((clean(found[1]) for text in texts if (found := REFUSED.search(text))), "")
    counted = f"no client's answer counted in {plural(len(rounds), 'round')} ({failed}): nothing was trained"
    return f"{counted}. One client said: {why}" if why else counted


def undefended(logs: Iterable[Path]) -> list[str]:
    """What layers told the server's ``logs`` of clients without ``Defend`` in a run that names defenses."""
    told = [UNDEFENDED.search(log.read_text(errors="replace")) for log in logs if log.exists()]
    return [f"warning: {found[0]}" for found in told if found][:1]


def traces_since(places: Iterable[Path], started: float) -> list[Path]:
    """Traces of a recorder in or below ``places`` that were written after ``started``, in seconds since 1970, oldest
    round first."""
    patterns = [f"{'*/' * depth}{NAME}" for depth in range(DEPTH)]
    found = {path.resolve() for place in places for pattern in patterns for path in place.glob(pattern)}
    return sorted(path for path in found if path.stat().st_mtime >= started)


def command(trace: Path, app: Path) -> str:
    """The command that audits a trace, with its control; code of a model that the trace names runs only if it is named
    there, too, and is looked for in this directory: one of the ``app`` elsewhere is pointed to."""
    words = ["prunella", "audit", str(trace), "--control"]
    try:
        model = recorded_task(trace).model
    except AttackError:
        model = ""
    if not is_foreign(model):
        return shlex.join(words)
    there = "" if app.resolve() == Path.cwd() else f"PYTHONPATH={shlex.quote(str(app.resolve()))} "
    return there + shlex.join([*words, "--model", model])


def closing(run: RunDir, app: Path, started: float) -> list[str]:
    """What to tell at the end of a run that was started at ``started``, in seconds since 1970."""
    head = f"run {run.id} of {app.name}: completed in {duration(time.time() - started)}; its logs are in {run.logs}"
    warned = undefended([run.log(name) for name in ("server", "superlink")])
    traces = traces_since([Path.cwd(), app, run.path], started)
    if not traces:
        return [head, *warned, f"traces: none, so there is nothing to audit: {HOW}"]
    where = ", ".join(dict.fromkeys(str(path.parent) for path in traces))
    return [head, *warned, f"traces: {plural(len(traces), 'file')} in {where}", f"audit one: {command(traces[0], app)}"]
