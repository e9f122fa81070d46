"""The benchmark of the defenses measures what it says; how long it takes is not tested."""

import json
import sys

import pytest
import torch

from prunella.benchmarks.speed import defenses as bench
from prunella.privacy.chain import build_chain
from prunella.privacy.dp_sgd import DpSgd
from prunella.tasks.examples import Examples
from prunella.tasks.task import Task


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["defenses", "--json", "--repeat", "1", "--steps", "1", "--models", "lenet"])
    monkeypatch.setattr(bench, "SIZES", {"small": 10_000})
    monkeypatch.setattr(bench, "IMAGES", 64)
    bench.main()
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["selection"]["small"]) == {"torch.topk", "dgp"}
    arms = result["epochs"]["lenet"]["arms"]
    assert {"none", "dp-sgd", bench.SEEDED, "opacus", "channel-white", "priprune"} <= set(arms)
    assert all(cost["ratio"] > 0 for cost in arms.values()) and arms["none"]["ratio"] == 1
    bench.show(result)
    assert "opacus" in capsys.readouterr().out


def test_what_dp_sgd_is_compared_with_is_dp_sgd() -> None:
    task, quiet = Task("lenet", (3, 32, 32), 10), DpSgd(clip=0.5, noise_multiplier=1e-9)
    data = Examples(torch.rand(64, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 10)
    chains = build_chain(["dp-sgd"], {"dp-sgd.clip": 0.5, "dp-sgd.noise-multiplier": 1e-9}), bench.seeded_dp_sgd(quiet)
    ours, theirs = (bench.epoch(task, chain, data, 1)[0]().outgoing.update for chain in chains)
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-7) for name in ours)
    assert any(bool(t.any()) for t in ours.values())


def test_nonsense_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["defenses", "--steps", "0"])
    with pytest.raises(SystemExit):
        bench.main()
