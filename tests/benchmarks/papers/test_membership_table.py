"""The membership table: its federation against plain SGD's, a control by heart, and outsiders as members."""

from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy

from prunella.benchmarks.engine.claim import Point
from prunella.benchmarks.papers import membership_table as bench
from prunella.benchmarks.papers.defended import behind, training
from prunella.core.randomness import rehearsal
from prunella.tasks.data import Examples, batches
from prunella.tasks.task import initial

SHORT = {"rounds": 2, "local_steps": 2, "batch_size": 8, "learning_rate": 0.05}


def cell(chain: str = "none", **changed: Any) -> dict[str, Any]:
    return behind(training("cnn", **{**SHORT, **changed}), "digits", chain)


def drawn(count: int, seed: int) -> Examples:
    draw = torch.Generator().manual_seed(seed)
    return Examples(torch.rand((count, 1, 8, 8), generator=draw), torch.randint(10, (count,), generator=draw))


def test_the_federation_is_the_mean_of_its_clients_sgd() -> None:
    """Against autograd by hand; of every client all rounds are seen."""
    own = [drawn(16, seed) for seed in range(2)]
    task, params, saw = bench.federation(cell(), 0, None, own)
    w, buffers = initial(task, 0)
    for round in range(2):
        ends = []
        for client, images in enumerate(own):
            local = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
            draw = rehearsal(0, round=round, purpose=f"membership-batches-{client}")
            for batch in batches(images, 8, 2, draw):
                loss = cross_entropy(torch.func.functional_call(task.build(), local, batch.x), batch.y)
                slopes = torch.autograd.grad(loss, list(local.values()))
                local = {
                    name: (tensor - 0.05 * slope).detach().requires_grad_()
                    for (name, tensor), slope in zip(local.items(), slopes, strict=True)
                }
            ends.append(local)
            seen = saw[client][round]
            for name in w:
                torch.testing.assert_close(seen.params[name], w[name])
                torch.testing.assert_close(seen.update[name], (local[name] - w[name]).detach(), atol=1e-6, rtol=1e-4)
        w = {name: torch.stack([end[name].detach() for end in ends]).mean(dim=0) for name in w}
    for name in w:
        torch.testing.assert_close(params[name], w[name], atol=1e-6, rtol=1e-4)
    assert not buffers


def test_what_is_learnt_by_heart_is_found_and_what_nobody_trained_on_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random labels can only be known by heart."""
    own, others = [drawn(40, seed) for seed in range(2)], drawn(300, 9)
    task, _, saw = bench.federation(cell(rounds=15, local_steps=20), 0, None, own)
    module = task.build()
    found = bench.separations(module, task, saw[0], own[0], others)
    assert found["local"].auc > 0.9 and found["drop"].auc > 0.7
    null = bench.separations(module, task, saw[0], drawn(40, 7), others)
    assert all(abs(each.auc - 0.5) < 0.15 for each in null.values())


@pytest.mark.parametrize("chain", ["none", "dgp,mask-hiding", "dp-sgd", "priprune"])
def test_a_cell_has_both_scores(chain: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "EXAMPLES", 24)
    monkeypatch.setattr(bench, "OUTSIDERS", 100)
    found = bench.make(cell(chain, rounds=1), 0, None)
    assert set(found) == {bench.BY_UPDATES, bench.BY_MODEL}
    assert all(0 <= value <= 1 for row in found.values() for value in row.values())
    assert {"accuracy", "memorised"} <= found[bench.BY_MODEL].keys()


def test_a_cell_is_measured_on_another_device(pretended: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from prunella.benchmarks.engine import machine

    monkeypatch.setattr(machine, "_DEVICE", [torch.device("cuda", 0)])
    monkeypatch.setattr(bench, "EXAMPLES", 24)
    monkeypatch.setattr(bench, "OUTSIDERS", 100)
    assert bench.make(cell("dgp", rounds=2), 0, None)[bench.BY_UPDATES]["auc"] <= 1


def test_it_holds_where_noise_hides_members_and_not_where_it_does_not() -> None:
    def points(private: float) -> list[Point]:
        aucs = {chain: 0.8 for chain in bench.CHAINS} | dict.fromkeys(bench.PRIVATE, private)
        return [
            Point((dataset, chain, bench.BY_UPDATES), {"auc": (auc, auc + 0.01, auc - 0.01)})
            for dataset in bench.DATASETS
            for chain, auc in aucs.items()
        ]

    assert bench.judge(points(0.5)).word == "holds" and bench.judge(points(0.9)).word == "does not hold"


def test_the_control_is_the_federation_without_a_defense_and_must_find_members() -> None:
    measure = bench.MEMBERSHIP_TABLE.experiment.measure
    assert all(measure.control_of(asked) in bench.cells(("none",)) for asked in bench.cells())
    row = {"auc": 0.5, "loose": 0.01, "strict": 0.0}
    assert not measure.works({bench.BY_UPDATES: row, bench.BY_MODEL: {**row, "auc": 0.9}})
    assert measure.works({bench.BY_UPDATES: {**row, "auc": 0.6}, bench.BY_MODEL: row})
