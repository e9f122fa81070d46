"""A client number belongs to one node, whoever asks, in whichever run."""

import json
from pathlib import Path

import pytest
from flwr.server.superlink.linkstate import LinkState, LinkStateFactory
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.superlink.federation import NoOpFederationManager

from prunella.core.errors import PrunellaError
from prunella.strategies.round.numbering import Numbering


def test_the_first_node_that_states_a_number_has_it_for_good(tmp_path: Path) -> None:
    file = tmp_path / "flower" / "client-numbers.json"
    numbering = Numbering(file)
    assert numbering.claim(0, 9) == "" and numbering.claim(1, 2**64 - 1) == "" and numbering.claim(0, 9) == ""
    again = Numbering(file)
    assert "client 0 is another node's" in again.claim(0, 4) and str(file) in again.claim(0, 4)
    assert "is client 0" in again.claim(2, 9), "nor does a node change its number"
    assert again.claim(1, 2**64 - 1) == "" and again.claim(2, 4) == ""
    assert json.loads(file.read_text()) == {"0": 9, "1": 2**64 - 1, "2": 4}
    assert file.stat().st_mode & 0o077 == 0


def test_a_number_that_is_freed_is_for_the_next_that_states_it(tmp_path: Path) -> None:
    file = tmp_path / "n.json"
    numbering = Numbering(file)
    assert numbering.free(9) is None and not file.exists()
    assert numbering.claim(0, 9) == numbering.claim(1, 8) == ""
    assert numbering.free(7) is None and numbering.claim(0, 7), "another's stays its own"
    assert numbering.free(9) == 0 and json.loads(file.read_text()) == {"1": 8}
    assert numbering.claim(0, 7) == "" and "another node's" in numbering.claim(0, 9)
    assert numbering.free(7) == 0 and numbering.free(8) == 1 and Numbering(file).claim(1, 9) == ""


def test_two_runs_at_once_share_it(tmp_path: Path) -> None:
    one, other = (Numbering(tmp_path / "n.json") for _ in range(2))
    assert one.claim(0, 9) == "" and other.claim(1, 8) == ""
    assert other.claim(0, 8) and one.claim(1, 9)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"0": "x"}', '{"x": 1}', '{"0": 1, "1": 1}', '{"0": true}'])
def test_a_damaged_file_gives_no_number_away(tmp_path: Path, text: str) -> None:
    file = tmp_path / "n.json"
    file.write_text(text)
    with pytest.raises(PrunellaError, match="n.json"):
        Numbering(file).claim(0, 9)
    assert file.read_text() == text


def test_without_a_file_it_holds_nobody() -> None:
    assert Numbering(None).claim(0, 9) == "" == Numbering(None).claim(0, 4)


def test_what_it_rests_on_a_registered_key_has_one_node_id_in_flower_for_good(tmp_path: Path) -> None:
    """Through ends of its SuperNode, and of the SuperLink, which keeps it in its database."""

    def superlink() -> LinkState:
        database = str(tmp_path / "state.db")
        stores = ObjectStoreFactory(database)
        return LinkStateFactory(database, NoOpFederationManager(), stores).state()

    link = superlink()
    north, south = (link.create_node("", "", key, 0) for key in (b"north's key", b"south's key"))
    assert north != south and link.activate_node(north, 30) and link.deactivate_node(north)
    again = superlink()
    assert again.get_node_id_by_public_key(b"north's key") == north and again.activate_node(north, 30)
    with pytest.raises(ValueError, match="already in use"):
        again.create_node("", "", b"north's key", 0)
