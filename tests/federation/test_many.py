"""Fifty SuperNodes on one machine, four rounds of a tenth of them: everybody is let in and nobody's reply is lost.

All fifty in every round are ``benchmarks/speed/soak.py``: half a minute a round on two cores.
"""

from pathlib import Path

import pytest

from prunella.server.store.read import read_run
from tests.federation.running import failures, finish, series, start

pytestmark = [pytest.mark.federation, pytest.mark.timeout(900)]
NODES, ROUNDS = 50, 4


def test_fifty_supernodes_through_four_rounds(tmp_path: Path) -> None:
    quick = ["-c", "audit-every=0", "-c", "strategy=random", "-c", "local-steps=2", "-c", "fraction=0.1"]
    code, output = finish(start(tmp_path, "--supernodes", str(NODES), "-c", f"rounds={ROUNDS}", *quick))
    assert code == 0, output
    run = tmp_path / "runs" / "latest"
    assert read_run(run)["status"] == "completed" and series(run, "round") == list(range(1, ROUNDS + 1))
    assert series(run, "clients_selected") == [NODES / 10] * ROUNDS and not failures(run)
    assert len(list((run / "nodes").iterdir())) >= NODES
