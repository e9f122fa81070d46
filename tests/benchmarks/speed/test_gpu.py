"""The script that a GPU is measured with runs where there is none; how long anything takes is not tested."""

from argparse import Namespace

import pytest

from prunella.benchmarks.speed import gpu as bench


def test_every_part_is_measured_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "STARTS", (1, 2))
    monkeypatch.setattr(bench, "CHAINS", ("none", "dgp", "dp-sgd"))
    options = Namespace(models=["lenet-zhu"], devices=["cpu"], iterations=3, repeat=1)
    result = bench.measure(options)
    rows = result["devices"]["cpu"]
    parts = {f"{starts} of lenet-zhu" for starts in (1, 2)}  # bfloat16 on a GPU only
    assert set(rows) == parts | {"lenet-zhu, none", "lenet-zhu, dgp", "lenet-zhu, dp-sgd"}
    assert all(row["ms"] > 0 for row in rows.values()) and rows["1 of lenet-zhu"]["psnr"] > 5
    bench.show(result)
