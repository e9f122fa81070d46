"""Both sides train what they say: Opacus' own loop and ours, the same noise, sampling and steps, and an ε of each."""

import json
import sys

import pytest
import torch
from opacus.optimizers import DPOptimizer

from prunella.benchmarks.speed import private_training as bench
from prunella.tasks.task import Task, initial

TASK = Task("lenet", (3, 32, 32), 10)


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "IMAGES", 16)
    monkeypatch.setattr(bench, "BATCH", 8)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_opacus_trains_by_its_own_engine_and_accounts_for_it(mode: str) -> None:
    work, engine = bench.torch_loop(mode, TASK)
    model, optimizer = work.args[:2]  # type: ignore[attr-defined]
    assert isinstance(optimizer, DPOptimizer) and optimizer.noise_multiplier == bench.NOISE
    before = [weight.clone() for weight in model.parameters()]
    work()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert engine.accountant.history == [(bench.NOISE, 0.5, 2)]
    assert engine.get_epsilon(bench.DELTA) == pytest.approx(bench.accounted(bench.NOISE, 0.5, 2)["opacus RDP"])


def test_ours_is_trained_on_poisson_batches_of_the_expected_size(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], bench.local_update
    monkeypatch.setattr(bench, "local_update", lambda *given: seen.append((given[0], real(*given).outgoing.update)))
    bench.ARMS["dp-sgd"](TASK)()
    bench.ARMS["none"](TASK)()
    (private, noisy), (plain, update) = seen
    assert private.expected_batch == 8 and plain.expected_batch is None
    assert set(noisy) == set(update) == set(initial(TASK, 0)[0])
    largest = [max(float(t.abs().max()) for t in tree.values()) for tree in (noisy, update)]
    assert largest[0] > largest[1]  # noise of deviation 1 over 8


def test_all_four_accountants_agree_to_a_few_percent() -> None:
    found = bench.accounted(1.1, 0.01, 1000)
    assert found["ledger RDP"] == pytest.approx(found["opacus RDP"], rel=0.02)
    assert (
        found["ledger PLD"] == pytest.approx(found["opacus PRV"], rel=0.02)
        and found["ledger PLD"] < found["ledger RDP"]
    )


def test_the_last_line_is_one_json_object(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    monkeypatch.setattr(bench, "_alone", lambda arm, task: bench.MEBI)
    monkeypatch.setattr(bench, "ACCOUNTED", bench.ACCOUNTED[:1])
    monkeypatch.setattr(sys, "argv", ["private_training", "--json", "--repeat", "1", "--models", "lenet"])
    bench.command(bench.__doc__, bench.measure, bench.show, {"--repeat": 5, "--models": "conv-2"})
    torch.set_num_threads(threads)
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["models"]["lenet"]) == set(bench.ARMS) and result["models"]["lenet"]["plain"]["ratio"] == 1
    bench.show(result)
    assert "dp-sgd" in capsys.readouterr().out


def test_memory_is_that_of_a_process_of_its_own() -> None:
    assert bench._alone("plain", TASK) > 0
