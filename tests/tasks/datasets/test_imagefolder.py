import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from prunella.core.errors import ConfigError, DataError
from prunella.tasks.data import class_names, describe, load_client, require_same_classes
from prunella.tasks.datasets.imagefolder import IMAGEFOLDER, SHAPE
from prunella.tasks.partition import Partition

ANY = Partition("iid", 1)


def _picture(path, level, size=(20, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*size, 3), level, np.uint8)).save(path)


def _site(root):
    for k, level in enumerate((0, 51, 102)):
        _picture(root / "cats" / f"{k}.png", level)
    _picture(root / "dogs" / "a.jpg", 255, size=(64, 64))
    (root / "emus").mkdir()
    return root


def test_pictures_of_any_size_with_their_classes(tmp_path):
    share = IMAGEFOLDER.train(_site(tmp_path), ANY, 0)
    assert share.x.shape == (4, *SHAPE) and share.y.tolist() == [0, 0, 0, 1]
    assert torch.allclose(share.x.mean(dim=(1, 2, 3)), torch.tensor([0.0, 0.2, 0.4, 1.0]), atol=1e-3)


def test_pictures_of_the_shape_the_dataset_names(tmp_path):
    _site(tmp_path)
    grey = load_client(f"imagefolder@1x12x9:{tmp_path}", ANY, 0, None)
    assert grey.x.shape == (4, 1, 12, 9) and describe("imagefolder@1x12x9", tmp_path) == ((1, 12, 9), 3)
    assert torch.allclose(grey.x.mean(dim=(1, 2, 3)), torch.tensor([0.0, 0.2, 0.4, 1.0]), atol=1e-3)
    for wrong in ("imagefolder@64", "imagefolder@2x8x8", "imagefolder@1x0x8", "mnist@1x8x8"):
        with pytest.raises(ConfigError, match="imagefolder@1x64x64"):
            describe(wrong, tmp_path)
    for size in ("3x99999x99999", "1x1x99999999", "1x4096x4096"):
        with pytest.raises(ConfigError, match="values an image"):
            load_client(f"imagefolder@{size}:{tmp_path}", ANY, 0, None)


def test_an_empty_class_counts(tmp_path):
    assert IMAGEFOLDER.describe(_site(tmp_path)) == (SHAPE, 3)


def test_one_folder_for_all_is_shared_out_and_a_clients_own_is_not(tmp_path):
    _site(tmp_path)
    two = Partition("iid", 2)
    shares = [load_client(f"imagefolder:{tmp_path}", two, client, None) for client in range(2)]
    assert [len(share) for share in shares] == [2, 2]
    together = torch.cat([share.x for share in shares]).mean(dim=(1, 2, 3))
    assert torch.allclose(together.sort().values, torch.tensor([0.0, 0.2, 0.4, 1.0]), atol=1e-3)
    assert sorted(y for share in shares for y in share.y.tolist()) == [0, 0, 0, 1]
    assert len(load_client("imagefolder", two, 1, tmp_path)) == 4


def test_a_class_that_the_held_out_pictures_lack_does_not_shift_the_others(tmp_path):
    _site(tmp_path / "train")
    _picture(tmp_path / "test" / "dogs" / "b.png", 9)
    with pytest.raises(DataError, match="every class needs one in both"):
        IMAGEFOLDER.test(tmp_path)


def test_classes_by_other_names_are_refused_and_named_in_the_log_only(tmp_path, caplog):
    _site(tmp_path / "here")
    _site(tmp_path / "there")
    (tmp_path / "there" / "emus").rename(tmp_path / "there" / "apes")
    here, there = (class_names("imagefolder", tmp_path / name) for name in ("here", "there"))
    require_same_classes(here, here)
    require_same_classes((), there)
    with pytest.raises(DataError, match="this client's log names them") as caught:
        require_same_classes(here, there)
    assert "emus" not in str(caught.value) and "apes" not in str(caught.value) and "emus" in caplog.text
    with pytest.raises(DataError, match="in another order"):
        require_same_classes(here, here[::-1])


def test_splits_inside_the_folder(tmp_path):
    _site(tmp_path / "train")
    _picture(tmp_path / "test" / "dogs" / "b.png", 9)
    (tmp_path / "test" / "cats").mkdir()
    (tmp_path / "test" / "emus").mkdir()
    assert len(IMAGEFOLDER.train(tmp_path, ANY, 0)) == 4
    assert IMAGEFOLDER.test(tmp_path).y.tolist() == [1]
    assert IMAGEFOLDER.describe(tmp_path)[1] == 3


def test_no_held_out_pictures(tmp_path):
    assert IMAGEFOLDER.test(_site(tmp_path)) is None and IMAGEFOLDER.test(None) is None


def test_unreadable_pictures_are_counted_and_named_in_the_log_only(tmp_path, caplog):
    _site(tmp_path)
    (tmp_path / "cats" / "1.png").write_bytes(b"secret")
    (tmp_path / "dogs" / "b.png").write_bytes(b"")
    with pytest.raises(DataError) as caught:
        IMAGEFOLDER.train(tmp_path, ANY, 0).check()
    assert str(caught.value).startswith("pictures cannot be read") and "2" not in str(caught.value)
    assert "1.png" not in str(caught.value) and "cats" not in str(caught.value)
    assert "cats/1.png, dogs/b.png" in caplog.text


def test_nowhere_and_nothing_there(tmp_path):
    with pytest.raises(ConfigError, match="imagefolder:/folder"):
        IMAGEFOLDER.describe(None)
    with pytest.raises(DataError, match="no readable folder per class"):
        IMAGEFOLDER.train(tmp_path, ANY, 0)
    with pytest.raises(DataError, match="no readable folder per class"):
        IMAGEFOLDER.train(tmp_path / "missing", ANY, 0)
    (tmp_path / "cats").mkdir()
    with pytest.raises(DataError, match="has no pictures"):
        IMAGEFOLDER.train(tmp_path, ANY, 0)


def test_a_torchvision_of_another_build_is_named_in_a_line(tmp_path, monkeypatch):
    class Broken(ModuleType):
        def __getattr__(self, name):
            raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setitem(sys.modules, "torchvision.datasets", Broken("torchvision.datasets"))
    with pytest.raises(ConfigError, match="from the same index"):
        IMAGEFOLDER.train(_site(tmp_path), ANY, 0)
