import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from prunella.core.errors import ConfigError, DataError
from prunella.tasks.data import Partition, describe, load_client, load_public, load_test, make_task


def test_digits_are_shared_out_and_held_out():
    shares = [load_client("digits", Partition("dirichlet", 4, 1.0, 0), client, None) for client in range(4)]
    held_out = load_test("digits", None)
    assert sum(map(len, shares)) + len(held_out) == 1797
    assert all(share.x.shape[1:] == (1, 8, 8) and share.x.dtype == torch.float32 for share in shares)
    assert make_task("cnn", "digits", None).build()(held_out.x).shape == (359, 10)


def test_an_unknown_dataset_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'mnist'"):
        describe("mnits", None)
    with pytest.raises(ConfigError, match="unknown dataset"):
        load_client("digts:/somewhere", Partition("iid", 2), 0, None)
    for place in ("/data/mnist", "data.parquet", "../images"):
        with pytest.raises(ConfigError, match="write its kind before it, imagefolder:/folder"):
            describe(place, None)


@pytest.mark.parametrize("size", ["1x0x8", "2x8x8", "1x8"])
def test_a_size_that_is_none_is_told_as_that(size: str) -> None:
    with pytest.raises(ConfigError, match="a size is channels .1 or 3., height and width, each of 1 at least"):
        describe(f"imagefolder@{size}:/photos", None)
    with pytest.raises(ConfigError, match="only imagefolder can be resized"):
        describe("mnist@1x8x8", None)


def _png(side: int) -> bytes:
    buffer = BytesIO()
    Image.fromarray(np.zeros((side, side), np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _parquet(folder: Path, label: str = "label", image: str = "image", **columns: list[object]) -> None:
    folder.mkdir(parents=True)
    labels = columns.pop("labels", [0, 1, 2, 3])
    pictures = columns.pop("pictures", [{"bytes": _png(8), "path": None}] * len(labels))
    pq.write_table(pa.table({image: pictures, label: labels, **columns}), folder / "train.parquet")


def _classes(folder: Path, *names: str, broken: int = 0, whole: int = 1) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
    for number in range(broken + whole if names else 0):
        (folder / names[0] / f"{number}.png").write_bytes(b"?" if number < broken else _png(8))


# Two sites by what their files hold, and the dataset that a server asks them for.
SITES = {
    "labels above the classes": (
        "mnist", lambda f: _parquet(f, labels=[0, 10]), lambda f: _parquet(f, labels=[0, 10, 11, 59])),
    "labels below zero": (
        "mnist", lambda f: _parquet(f, labels=[-1, 2]), lambda f: _parquet(f, labels=[-1, -7, -1])),
    "labels that are words": (
        "parquet", lambda f: _parquet(f, labels=["hiv", "tb"]), lambda f: _parquet(f, labels=[0.5, 2.5])),
    "empty cells": (
        "mnist", lambda f: _parquet(f, labels=[None, 2, 3]), lambda f: _parquet(f, labels=[None, None, 0])),
    "another column of labels": (
        "cifar100", lambda f: _parquet(f, label="hiv", image="img"), lambda f: _parquet(f, label="tb", image="img")),
    "no column of labels": (
        "parquet", lambda f: _parquet(f, label="hiv"), lambda f: _parquet(f, label="tb", ward=[1, 2, 3, 4])),
    "no pictures in the file": (
        "parquet", lambda f: _parquet(f, pictures=["a.png"], labels=[1]),
        lambda f: _parquet(f, pictures=["b.png", "c.png"], labels=[1, 2])),
    "pictures of other sizes": (
        "mnist", lambda f: _parquet(f, labels=[1, 2]), lambda f: _parquet(f, labels=[1, 2, 3])),
    "pictures that are none": (
        "imagefolder", lambda f: _classes(f, "a", broken=1), lambda f: _classes(f, "b", "c", broken=2, whole=3)),
    "no folder of a class": ("imagefolder", lambda f: f.mkdir(), lambda f: None),
    "empty folders": ("imagefolder", lambda f: _classes(f, "a", whole=0), lambda f: _classes(f, "b", "c", whole=0)),
    "no training file": ("parquet", lambda f: f.mkdir(), lambda f: None),
}  # fmt: skip


@pytest.mark.parametrize("fault", SITES)
def test_an_error_says_the_same_of_any_private_data(
    fault: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server chooses the dataset's name and reads the error, so a number in it would answer a question: how many of
    the labels are above 9, say. Neither does an error name a column, a folder or a file."""
    dataset, *sites = SITES[fault]
    told = []
    for folder, make in zip((tmp_path / "ward-7", tmp_path / "oncology"), sites, strict=True):
        make(folder)
        with pytest.raises(DataError) as caught:
            describe(dataset, folder)
            load_client(dataset, Partition("iid", 1), 0, folder).check()
        told.append(str(caught.value))
    assert told[0] == told[1] and not any(word in told[0] for word in ("ward", "hiv", "oncology"))
    assert caplog.text, "this machine's log says more"


def test_hub_datasets_are_described_without_data():
    assert make_task("conv-2", "femnist", None).classes == 62
    assert describe("cifar100", None) == ((3, 32, 32), 100)


def test_a_nodes_root_goes_before_the_place_in_the_name(tmp_path: Path):
    for name, classes in (("here", 2), ("there", 3)):
        for k in range(classes):
            (tmp_path / name / f"class{k}").mkdir(parents=True)
    spec = f"imagefolder:{tmp_path / 'here'}"
    assert describe(spec, None)[1] == 2
    assert describe(spec, tmp_path / "there")[1] == 3


@pytest.mark.parametrize(("name", "shape"), [("mnist", (1, 28, 28)), ("cifar10", (3, 32, 32))])
def test_a_local_copy_of_the_hub(name, shape, shared_data):
    spec, partition = f"{name}:{shared_data / name}", Partition("dirichlet", 40, 0.5, 1)
    mine = load_client(spec, partition, 5, None)
    assert mine.x.shape == (len(mine.y), *shape) and 0 <= mine.x.min() < 0.1 and 0.9 < mine.x.max() <= 1
    assert len(np.unique(mine.y)) > 1
    assert torch.equal(load_client(name, partition, 5, shared_data / name).x, mine.x)


def test_a_client_message_imports_nothing_heavy():
    code = """
import sys
import prunella.client.app
from prunella.tasks.data import Partition, load_client
load_client("digits", Partition("dirichlet", 4), 0, None)
heavy = {"torchvision", "datasets", "pyarrow", "PIL", "sklearn", "scipy", "prunella.attacks"} & sys.modules.keys()
sys.exit(", ".join(sorted(heavy)) or None)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_files_that_somebody_names_are_not_anybody_s(tmp_path: Path) -> None:
    """A server could call a site's own files by a public dataset's name, and ask about its test images."""
    assert load_public("digits", None) is not None
    assert load_public(f"mnist:{tmp_path}", None) is None and load_public("mnist", tmp_path) is None
