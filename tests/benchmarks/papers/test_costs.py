"""The accounting gives the paper's printed numbers from parameter counts alone; cells measure what they say."""

from pathlib import Path
from typing import Any

import pytest
import torch

from prunella.benchmarks.engine.claim import numbers
from prunella.benchmarks.papers import costs
from prunella.benchmarks.papers.dgp_claims import TABLE_3
from prunella.core.randomness import stream
from prunella.core.trees import count
from prunella.tasks.data import Examples, Partition
from prunella.tasks.task import Task, initial


@pytest.mark.parametrize("model", ["lenet-zhu", "cnn6", "vgg11-bn", "resnet18"])
def test_the_accounting_is_the_papers_to_its_last_digit(model: str) -> None:
    dense = sum(t.numel() for t in initial(Task(model, (3, 32, 32), 10), 0)[0].values())
    for scheme in ("baseline", "top-k", "dgp", "adgp"):
        assert costs.paper_mib(scheme, dense, dense * 0.2, dense * 0.4) == pytest.approx(  # type: ignore[arg-type]
            numbers(TABLE_3)[model, scheme], abs=0.0006
        )


def test_a_cell_has_every_scheme_and_adgp_is_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    def images(dataset: str, data: Path | None, partition: Partition, client: int) -> Examples:
        g = stream(partition.seed, client=client, purpose="images")
        return Examples(torch.rand(8, 3, 32, 32, generator=g), torch.randint(10, (8,), generator=g))

    monkeypatch.setattr(costs, "client_images", images)
    settings: dict[str, Any] = {"model": "lenet-zhu", "dataset": "none", "steps": 1, "batch": 8, "learning_rate": 0.1}
    found = costs.traffic(settings, 0, None)
    for kind in ("paper_mib", "wire_mib"):
        assert found["adgp"][kind] < found["dgp"][kind] < found["baseline"][kind]
    assert found["adgp"]["saved"] > found["dgp"]["saved"] > found["baseline"]["saved"] >= 0
    again = costs.traffic(settings, 0, None)
    assert again == found


def test_aligned_masks_stay_inside_the_other_clients_set() -> None:
    a, b = ({"w": torch.randn(50, 4, generator=stream(seed, purpose="w"))} for seed in (0, 1))
    sent, locations = costs.masks_of(a, b)
    assert not bool((sent["adgp"]["w"] & ~locations["w"]).any()) and count(sent["adgp"]) == 40
    assert count(locations) == 80 and count(sent["top-k"]) == 40 and count(sent["dgp"]) == 40


def test_search_ratios_are_over_top_k() -> None:
    found = costs.search_time({"model": "lenet-zhu", "repeat": 1}, 0, None)
    assert found["top-k"]["ratio"] == 1 and set(found) == {"top-k", "torch.topk", "dgp", "adgp"}
