import stat
from pathlib import Path

import pytest
import torch

from prunella.client.state import KEPT_ROUNDS, ClientStore, Memory, TrainedRound
from prunella.core.errors import DefenseError
from prunella.privacy.ledger.ledger import Tally


def memory(value: float) -> Memory:
    return Memory({"dgp": {"error": {"w": torch.full((3,), value)}}}, Tally(int(value), 2, ("dgp: x",)))


def test_state_and_tally_survive_a_new_process(tmp_path: Path) -> None:
    ClientStore(tmp_path, "run").save(1, memory(1.0))
    again = ClientStore(tmp_path, "run").load(2)
    assert torch.equal(again.state["dgp"]["error"]["w"], torch.ones(3))
    assert again.tally == memory(1.0).tally


def test_a_round_reads_only_what_was_before_it_so_that_a_resume_repeats_it(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, "run")
    for round in (1, 2, 3):
        store.save(round, memory(float(round)))
    assert store.load(3).tally.rounds == 2
    assert store.load(4).tally.rounds == 3
    store.save(2, memory(20.0))
    assert store.load(4).tally.rounds == 20
    assert ClientStore(tmp_path, "run").load(1) == Memory({}, Tally())


def test_runs_do_not_share_state(tmp_path: Path) -> None:
    a, b = ClientStore(tmp_path, "a"), ClientStore(tmp_path, "b")
    a.save(1, memory(1.0))
    assert b.load(2) == Memory({}, Tally())


def test_old_rounds_go_and_files_are_private(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, "run")
    for round in range(1, 9):
        store.save(round, memory(float(round)))
    states = sorted(path.name for path in (tmp_path / "runs" / "run").glob("round-*"))
    assert len(states) == KEPT_ROUNDS
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_a_damaged_state_stops_the_client_instead_of_forgetting(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, "run")
    store.save(1, memory(1.0))
    next((tmp_path / "runs" / "run").glob("round-*")).write_bytes(b"half a file")
    with pytest.raises(DefenseError, match="before round 2 cannot be read"):
        store.load(2)


def test_the_rounds_a_client_trained_in_are_remembered_longer_than_their_state(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, "run")
    assert store.trained(1) is None
    store.save(0, memory(1.0))  # initial pruning: no round that could be audited
    for round in range(1, 8):
        store.save(round, memory(1.0), TrainedRound(f"r{round}", "s"))
    assert store.trained(1) == TrainedRound("r1", "s") and store.trained(7) and not store.trained(8)
    assert store.trained(0) is None


def test_two_messages_to_one_client_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = ClientStore(tmp_path, "a"), ClientStore(tmp_path, "b")
    monkeypatch.setattr("prunella.client.state.LOCK_SECONDS", 0.05)
    with one.alone(), pytest.raises(DefenseError, match="still being handled"), two.alone():
        pass
    with two.alone():
        pass


@pytest.mark.parametrize("name", ["..", "../..", "secret", "a/b", "", "."])
def test_a_server_cannot_choose_a_place_outside(tmp_path: Path, name: str) -> None:
    store = ClientStore(tmp_path / "home", name)
    assert store.folder.parent == tmp_path / "home" / "runs"
    assert store.folder.resolve().is_relative_to((tmp_path / "home" / "runs").resolve())
    assert store.folder.resolve() != (tmp_path / "home" / "runs").resolve()


def test_the_mask_is_remembered(tmp_path: Path) -> None:
    store = ClientStore(tmp_path, "run")
    assert store.mask() is None
    store.save_mask({"w": torch.tensor([True, False])})
    assert ClientStore(tmp_path, "run").mask()["w"].tolist() == [True, False]


def test_what_a_scheme_keeps_comes_back_beside_the_defenses_and_not_among_them(tmp_path: Path) -> None:
    kept = {"mask": {"w": torch.tensor([True, False, True])}}
    ClientStore(tmp_path, "run").save(1, Memory(memory(1.0).state, Tally(), kept))
    again = ClientStore(tmp_path, "run").load(2)
    assert again.state.keys() == {"dgp"}
    assert torch.equal(again.scheme["mask"]["w"], kept["mask"]["w"])
