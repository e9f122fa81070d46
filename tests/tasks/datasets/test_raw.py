"""Every dataset tells its examples apart by the bytes they were decoded from, whatever they are decoded to."""

import hashlib
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from prunella.tasks.data import load_client
from prunella.tasks.examples import Examples, raw_digests
from prunella.tasks.partition import Partition


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(file, "png")
    return file.getvalue()


def folder(place: Path) -> Path:
    for number in range(12):
        path = place / "ab"[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(number))
    return place


def table(place: Path) -> Path:
    place.mkdir()
    rows = pa.table({"image": [png(number) for number in range(12)], "label": [number % 2 for number in range(12)]})
    pq.write_table(rows, place / "train.parquet")
    return place


def held(dataset: str, place: Path | None, partition: Partition, client: int = 0) -> Examples:
    found = load_client(dataset, partition, client, place)
    assert found.raw is not None and found.raw.dtype == torch.int64 and len(found.raw) == len(found.y)
    return found


WHOLE = Partition("iid", 1)


@pytest.mark.parametrize("make", [folder, table])
def test_digests_are_of_the_bytes_and_of_nothing_else(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    place = make(tmp_path / "data")
    name = "imagefolder" if make is folder else "parquet"
    slow = [hashlib.blake2b(png(number), digest_size=8).digest() for number in range(12)]
    by_hand = {int.from_bytes(each, "little", signed=True) for each in slow}
    assert set(held(name, place, WHOLE).raw.tolist()) == by_hand  # type: ignore[union-attr]
    if make is folder:
        small = held("imagefolder@1x7x7", place, WHOLE)
        assert torch.equal(small.raw, held("imagefolder@3x16x16", place, WHOLE).raw)  # type: ignore[arg-type]


@pytest.mark.parametrize("partition", [Partition("iid", 4), Partition("dirichlet", 4, 1.0, 3)])
def test_they_stay_with_their_images_in_every_share(partition: Partition) -> None:
    whole = held("digits", None, WHOLE)
    known = {raw: image for raw, image in zip(whole.raw.tolist(), whole.x, strict=True)}  # type: ignore[union-attr]
    assert len(known) > 0.99 * len(whole)
    shares = [held("digits", None, partition, client) for client in range(4)]
    assert sum(map(len, shares)) == len(whole)
    for share in shares:
        pairs = zip(share.raw.tolist(), share.x, strict=True)  # type: ignore[union-attr]
        assert all(torch.equal(known[raw], image) for raw, image in pairs)
    some = shares[0].take(torch.tensor([3, 1]))
    assert some.raw is not None and some.raw.tolist() == [int(shares[0].raw[3]), int(shares[0].raw[1])]  # type: ignore[index]


def test_nothing_has_no_digests() -> None:
    assert raw_digests([]).shape == (0,)
