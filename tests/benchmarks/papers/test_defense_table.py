"""The table of defenses: every defense has its rows, an attack that fails is no zero, a withheld run no accuracy."""

from pathlib import Path
from typing import Any

import pytest

import prunella.client.app
from prunella.benchmarks.engine.results import table
from prunella.benchmarks.papers import defense_table as bench
from prunella.benchmarks.reproduce import reproduce
from prunella.core.errors import ConfigError, DefenseError
from prunella.privacy import DEFENSES
from prunella.privacy.chain import build_chain

RUN = {"clients": 2, "rounds": 3, "local_steps": 1, "batch_size": 8}


def federation(chain: str) -> dict[str, Any]:
    (cell,) = bench.trained("digits", (chain,), 1, 0.1)
    return {**cell, **RUN, "draws": "leakage"}


def test_every_defense_has_a_row() -> None:
    assert set(DEFENSES) <= {name for chain in bench.CHAINS for name in chain.split(",")}
    for chain in bench.CHAINS:
        build_chain(chain.split(","), {})
    with pytest.raises(ConfigError):
        build_chain(["dgp", "ats"], {})


def test_a_table_has_a_row_a_chain_and_attack_and_its_controls(tmp_path: Path) -> None:
    cells = [*bench.attacked("digits", ("none", "dgp"), ("ig", "sgi"), 2, 40), federation("none"), federation("dgp")]
    claim = bench.table(cells, name="mine")
    result = reproduce(claim, "small", tmp_path, None, lambda line: None)
    rows = {point.label: {key: value for key, (value,) in point.values.items()} for point in result.points}
    assert rows["digits", "none", "", "sgi"]["rebuilt"] == 1.0 and all(point.control for point in result.points)
    assert rows["digits", "none", "", "sgi"]["psnr"] > rows["digits", "dgp", "", "ig"]["psnr"]
    plain, pruned = (rows["digits", chain, "0.1", "training"] for chain in ("none", "dgp"))
    assert pruned["megabytes_up"] < 0.6 * plain["megabytes_up"] and plain["failures"] == plain["withheld"] == 0
    assert pruned["time"] > 0 and table(result).count("\n") == 7 and "table without a rule" in result.verdict.reason


def test_an_attack_that_fails_is_counted_and_not_scored() -> None:
    names = ("psnr", "ssim", "psnr_shown", "ssim_shown")
    found = bench.spread({name: [30.0, 12.0] for name in names} | {"answered": [1.0, 0.0], "rebuilt": [1.0, 0.0]})
    assert found["psnr"] == found["psnr_largest"] == 30.0 and found["answered"] == found["rebuilt"] == 0.5
    empty = bench.spread({name: [12.0] for name in names} | {"answered": [0.0], "rebuilt": [0.0]})
    assert "psnr" not in empty and not bench.TABLE.works({"ig": empty}) and bench.TABLE.works({"ig": found})


def test_a_federation_in_which_every_client_withholds_has_no_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_finite(*arguments: Any) -> Any:
        raise DefenseError("chain: gradient is not finite")

    assert "epsilon" in bench.make(federation("dp-sgd"), 0, None)["training"]
    monkeypatch.setattr(prunella.client.app, "local_update", not_finite)
    found = bench.make(federation("dgp"), 0, None)["training"]
    assert found["withheld"] == 1.0 and set(found) == {"withheld", "time"}
