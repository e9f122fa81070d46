from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from prunella.core.errors import ConfigError, DataError
from prunella.tasks.data import load_client
from prunella.tasks.datasets.parquet import PARQUET, Table, encoded, find, guess, train
from prunella.tasks.partition import Partition

COUNT = 40


def _png(level, size=(6, 4)):
    buffer = BytesIO()
    Image.fromarray(np.full(size, level, np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _cells(count=COUNT, **changes):
    columns = {
        "image": [{"bytes": _png(k), "path": None} for k in range(count)],
        "label": [k % 4 for k in range(count)],
        "writer_id": [f"w{k % 5}" for k in range(count)],
    }
    return {**columns, **changes}


def _write(folder, name="train.parquet", **columns):
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns or _cells()), folder / name, row_group_size=7)


def test_every_row_arrives_once_with_its_label(tmp_path):
    _write(tmp_path)
    shares = [PARQUET.train(tmp_path, Partition("dirichlet", 4, 0.5), client) for client in range(4)]
    levels = [round(float(x.mean()) * 255) for share in shares for x in share.x]
    assert sorted(levels) == list(range(COUNT))
    assert [y for share in shares for y in share.y.tolist()] == [level % 4 for level in levels]


def test_it_describes_itself(tmp_path):
    _write(tmp_path)
    assert PARQUET.describe(tmp_path) == ((1, 6, 4), 4)
    assert guess(tmp_path) == Table("image", "label", "writer_id", (1, 6, 4), 4)


def test_classes_of_the_metadata_win(tmp_path):
    info = b'{"info": {"features": {"label": {"names": ["a", "b", "c", "d", "e", "f"], "_type": "ClassLabel"}}}}'
    pq.write_table(pa.table(_cells()).replace_schema_metadata({b"huggingface": info}), tmp_path / "train.parquet")
    assert PARQUET.describe(tmp_path)[1] == 6 and PARQUET.names(tmp_path) == tuple("abcdef")


def test_a_sites_own_files_are_not_cut_into_shares(tmp_path):
    _write(tmp_path)
    two = Partition("iid", 2)
    assert len(load_client("parquet", two, 1, tmp_path)) == COUNT
    assert len(load_client(f"parquet:{tmp_path}", two, 1, None)) == COUNT // 2


def test_natural_ids(tmp_path):
    _write(tmp_path)
    share = PARQUET.train(tmp_path, Partition("natural", 5), 3)
    assert sorted(round(float(x.mean()) * 255) for x in share.x) == list(range(3, COUNT, 5))


def test_several_files_and_plain_bytes_and_the_hubs_data_folder(tmp_path):
    cells = _cells(20, image=[_png(k) for k in range(20)], label=[k % 2 == 0 for k in range(20)])
    _write(tmp_path / "data", "train-00000-of-00002.parquet", **cells)
    _write(tmp_path / "data", "train-00001-of-00002.parquet", **cells)
    assert len(find(tmp_path, "train")) == 2
    assert PARQUET.describe(tmp_path) == ((1, 6, 4), 2)
    assert len(PARQUET.train(tmp_path, Partition("iid", 1), 0)) == 40


def test_a_test_split_or_none(tmp_path):
    _write(tmp_path)
    assert PARQUET.test(tmp_path) is None and PARQUET.test(None) is None
    _write(tmp_path, "test.parquet", **_cells(10))
    held_out = PARQUET.test(tmp_path)
    assert held_out.y.tolist() == [k % 4 for k in range(10)]


TABLE = Table("image", "label", None, (1, 6, 4), 4)
BAD = [
    ({"label": [k % 5 for k in range(COUNT)]}, "labels are not among the classes"),
    ({"label": [-1] + [0] * (COUNT - 1)}, "labels are not among"),
    ({"label": [str(k) for k in range(COUNT)]}, "must be integers"),
    ({"label": [None] + [0] * (COUNT - 1)}, "empty cells"),
    (
        {"image": [{"bytes": None, "path": "x.png"}] + [{"bytes": _png(1), "path": None}] * (COUNT - 1)},
        "images cannot be read",
    ),
    ({"image": [{"bytes": _png(1, (5, 5)), "path": None}] * COUNT}, "images cannot be read"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_data_not_as_described(change, message, tmp_path):
    _write(tmp_path, **_cells(**change))
    with pytest.raises(DataError, match=message):
        train(TABLE, tmp_path, Partition("iid", 1), 0).check()


def test_missing_columns_name_those_there_are_in_the_log(tmp_path, caplog):
    _write(tmp_path, picture=[1, 2], label=[0, 1])
    with pytest.raises(DataError, match="no image column, or none of label"):
        guess(tmp_path)
    assert "picture, label" in caplog.text
    with pytest.raises(DataError, match="no column 'fine_label'"):
        train(Table("picture", "fine_label", None, (1, 6, 4), 2), tmp_path, Partition("iid", 1), 0)
    with pytest.raises(DataError, match="no column 'img'"):
        train(Table("img", "label", None, (1, 6, 4), 2), tmp_path, Partition("iid", 1), 0)


@pytest.mark.parametrize("cell", [1, 0.5, "x.png", [1, 2], {"path": "x.png"}, {"bytes": "x"}])
def test_a_column_of_something_else_is_no_image(cell, tmp_path):
    _write(tmp_path, **_cells(image=[cell] * COUNT))
    with pytest.raises(DataError, match="image"):
        train(TABLE, tmp_path, Partition("iid", 1), 0).check()


def test_nowhere_and_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="parquet:/folder"):
        PARQUET.describe(None)
    with pytest.raises(DataError, match=r"no train\*.parquet"):
        PARQUET.describe(tmp_path)
    (tmp_path / "train.parquet").write_bytes(b"not Parquet")
    with pytest.raises(DataError, match="cannot be read as Parquet"):
        PARQUET.describe(tmp_path)


def test_an_unreadable_first_picture(tmp_path):
    _write(tmp_path, image=[b"junk"], label=[0])
    with pytest.raises(DataError, match="first training image"):
        PARQUET.describe(tmp_path)


def test_encoded_takes_both_layouts():
    assert list(encoded([{"bytes": b"a", "path": None}, b"b", None, {"bytes": None, "path": "c"}])) == [
        b"a",
        b"b",
        b"",
        b"",
    ]
