"""What is refused before any process starts, with the fix, and what is left to other machines."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from prunella.core.config import parse_run
from prunella.core.errors import PrunellaError
from prunella.server.preflight import check_together
from tests.local_grid import settings


def picture() -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (32, 32)).save(stream, "PNG")
    return stream.getvalue()


def check(here: bool = True, **changed: object) -> None:
    raw = settings(**changed)
    check_together(parse_run({k: v for k, v in raw.items() if "." not in k}), raw, here)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"defenses": "dgp,channel-natural"}, "write defenses = 'channel-natural,dgp'"),
        ({"dataset": "imagefolder:/nowhere"}, "no folder /nowhere on this machine"),
        ({"dataset": "mnist:/nowhere"}, "no folder /nowhere on this machine"),
        ({"dataset": "femnist"}, "set evaluation=clients"),
        ({"model": "nowhere:build"}, "cannot be imported here"),
        ({"model": "vgg11-bn"}, "too small for this model"),
        ({"model": "vgg11-bn", "dataset": "cifar10", "defenses": "dp-sgd"}, "choose a model without batch norm"),
        ({"model": "tests.client.test_charging:normed", "defenses": "dp-sgd"}, "2 is batch norm.* group or layer norm"),
        ({"device": "cuda:7"}, "not on this machine"),
        ({"attack_device": "gpu"}, "use auto, cpu or cuda"),
        ({"defenses": "precode"}, "set model=precode-cnn"),
        ({"attack": "label"}, "a run cannot be judged by it"),
        ({"attack": "ggl"}, "prunella prior"),
        ({"audit_cluster": "gpu"}, "not ray://HOST:PORT"),
        ({"audit_cluster": "ray://gpu.example:10001"}, "RAY_USE_TLS=1"),
        ({"robust": "mean"}, "did you mean 'median'"),
        ({"robust": "median", "min_clients": 2}, "min-clients=3"),
        ({"strategy": "snip", "snip__granularity": "filter", "model": "vit"}, "choose granularity=weight"),
        ({"strategy": "synflow", "model": "vit"}, "choose another strategy"),
        ({"strategy": "grasp", "aggregation": "secure-sum", "values": "int8"}, "set values=float32"),
    ],
)
def test_what_cannot_work_is_refused_with_the_fix(changed: dict[str, object], words: str) -> None:
    with pytest.raises(PrunellaError, match=words):
        check(**changed)


def test_a_folder_without_classes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PrunellaError, match="no readable folder per class"):
        check(dataset=f"imagefolder:{tmp_path}")


def test_a_folder_without_test_pictures_is_refused_where_the_server_evaluates(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    with pytest.raises(PrunellaError, match="set evaluation=clients"):
        check(dataset=f"imagefolder:{tmp_path}")
    check(dataset=f"imagefolder:{tmp_path}", evaluation="clients")


@pytest.mark.parametrize("dataset", ["cifar10", "parquet"])
def test_a_folder_of_parquet_files_is_looked_at_as_it_will_be_read(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(PrunellaError, match="no train"):
        check(dataset=f"{dataset}:{tmp_path}")
    columns = {"img": [picture(), picture()], "label": [0, 1]}
    for split in ("train", "test"):
        file = tmp_path / "data" / f"{split}-00000-of-00001.parquet"
        file.parent.mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), file)
        if split == "train":
            with pytest.raises(PrunellaError, match="set evaluation=clients"):
                check(dataset=f"{dataset}:{tmp_path}")
    check(dataset=f"{dataset}:{tmp_path}")


def test_what_lies_elsewhere_is_left_to_the_machines_that_have_it() -> None:
    check(here=False, dataset="mnist:/nowhere")
    check(here=False, model="nowhere:build")
    check(here=False, device="cuda:7")
    with pytest.raises(PrunellaError, match="write defenses"):
        check(here=False, defenses="dgp,channel-natural", dataset="mnist:/nowhere")


def test_with_audits_on_a_cluster_its_devices_are_not_looked_for_here(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []
    monkeypatch.setattr("prunella.server.preflight.check_cluster", lambda *what: asked.append(what))
    check(audit_cluster="auto", attack_device="cuda:7")
    check(here=False, audit_cluster="auto")
    check(audit_cluster="auto", audit_every=0)
    assert asked == [("auto", True), ("auto", False)]


def test_the_main_job_and_a_model_with_a_bottleneck_are_fine() -> None:
    check()
    check(model="precode-cnn", defenses="precode")
