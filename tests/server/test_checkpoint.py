from dataclasses import replace
from pathlib import Path

import pytest
import torch

from prunella.core.errors import ConfigError, PrunellaError
from prunella.server.checkpoint import (
    KEPT,
    LEDGERS,
    Checkpoint,
    load,
    load_ledgers,
    require_same_settings,
    save,
    save_ledgers,
)


def checkpoint(round: int) -> Checkpoint:
    tree = {"w": torch.full((2, 2), float(round)), "bn.running_mean": torch.zeros(2)}
    return Checkpoint(
        round, tree, {"w": torch.eye(2).bool()}, {"seed": 1}, {"wire_bytes_total|up": 5.0}, {"0": {"rounds": 1.0}}
    )


def test_everything_comes_back(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    save(tmp_path, checkpoint(3))
    got = load(tmp_path)
    assert got is not None and got.round == 3
    assert torch.equal(got.tree["w"], torch.full((2, 2), 3.0)) and torch.equal(got.mask["w"], torch.eye(2).bool())
    assert (got.settings, got.counters, got.ledgers) == (
        {"seed": 1},
        {"wire_bytes_total|up": 5.0},
        {"0": {"rounds": 1.0}},
    )


def test_the_last_two_are_kept_and_a_damaged_one_falls_back_and_is_named(tmp_path: Path, caplog) -> None:
    for round in (1, 2, 3):
        save(tmp_path, checkpoint(round))
    files = sorted(tmp_path.iterdir())
    assert len(files) == KEPT
    files[-1].write_bytes(files[-1].read_bytes()[:40])
    got = load(tmp_path)
    assert got is not None and got.round == 2
    assert "round-00000003" in caplog.text
    files[0].write_bytes(b"")
    with pytest.raises(PrunellaError, match="no checkpoint"):
        load(tmp_path)


def test_no_bit_of_a_file_can_change_unnoticed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for round in (1, 2):
        save(tmp_path, checkpoint(round))
    newest = sorted(tmp_path.iterdir())[-1]
    good = newest.read_bytes()
    padding = (
        good.index(b"}", good.rindex(b"data_offsets")) + 2
    )  # spaces between the header and the tensors say nothing
    for position in [*range(0, padding, 7), *range(len(good) - 16, len(good))]:
        damaged = bytearray(good)
        damaged[position] ^= 1 << position % 8
        newest.write_bytes(damaged)
        got = load(tmp_path)
        assert got is not None and got.round == 1, position
    assert newest.name in caplog.text
    newest.write_bytes(good)
    assert (got := load(tmp_path)) is not None and got.round == 2


def test_a_write_that_fails_leaves_the_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, checkpoint(1))

    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("prunella.core.files.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        save(tmp_path, checkpoint(2))
    got = load(tmp_path)
    assert got is not None and got.round == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_what_clients_have_spent_is_never_taken_from_a_checkpoint(tmp_path: Path) -> None:
    assert load_ledgers(tmp_path) == {}, "nobody was asked yet"
    save_ledgers(tmp_path, {"0": {"rounds": 2.0, "unheard": 1}})
    save(tmp_path, checkpoint(3))
    assert load_ledgers(tmp_path) == {"0": {"rounds": 2.0, "unheard": 1}}
    (tmp_path / LEDGERS).unlink()
    assert load_ledgers(tmp_path) == {"0": {"rounds": 1.0}}, "where nothing is counted, nothing is lost"
    for known in ("epsilon", "epsilon_next", "channel_nats"):
        save(tmp_path, replace(checkpoint(4), ledgers={"0": {"rounds": 1.0, known: 0.5}}))
        with pytest.raises(PrunellaError, match="is missing: restore it, or start a new run"):
            load_ledgers(tmp_path)


def test_settings_that_matter_must_not_change_and_are_named() -> None:
    require_same_settings(checkpoint(1), {"seed": 1, "rounds": 99, "resume": True, "audit-cluster": "auto"})
    with pytest.raises(ConfigError, match="seed"):
        require_same_settings(checkpoint(1), {"seed": 2})
    with pytest.raises(ConfigError, match="rate"):
        require_same_settings(checkpoint(1), {"seed": 1, "rate": 0.5})


def test_what_the_scheme_remembers_comes_back_with_its_bits(tmp_path: Path) -> None:
    scheme = {"3": torch.tensor([1, 255, 0], dtype=torch.uint8)}
    save(tmp_path, Checkpoint(1, {"w": torch.ones(1)}, {"w": torch.ones(1).bool()}, {}, scheme=scheme))
    got = load(tmp_path)
    assert got is not None and torch.equal(got.scheme["3"], scheme["3"]) and got.tree.keys() == {"w"}
