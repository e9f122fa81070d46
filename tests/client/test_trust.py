"""With whom a client lets its updates be added up, by keys that `prunella keys` made."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from prunella.client.trust import read_trust
from prunella.core.errors import ConfigError
from prunella.deploy.machines.keys import Keys, make
from prunella.strategies.secure_sum import participant
from prunella.strategies.secure_sum.party import Party

ABOUT = "run|1"


@pytest.fixture
def sites(tmp_path: Path) -> list[dict[str, object]]:
    """Node configurations of three sites that know each other's keys."""
    names = ["a", "b", "c"]
    make(tmp_path / "keys", names, [])
    keys = Keys(tmp_path / "keys")
    public = [keys.supernode(name).with_suffix(".pub").read_text() for name in names]
    peers = tmp_path / "peers"
    peers.write_text("".join(f"{number} {key.strip()}\n" for number, key in enumerate(public)))
    return [{"sum-key": str(keys.supernode(name)), "sum-peers": str(peers)} for name in names]


def party_of(sites: list[dict[str, object]], numbers: tuple[int, ...] = (0, 1, 2)) -> Party:
    made = [participant.fresh(ABOUT, n, read_trust(site).signer) for n, site in zip(numbers, sites, strict=True)]
    return Party(ABOUT, tuple(advert for _, advert in made))


def test_sites_that_know_each_other_are_summed(sites: list[dict[str, object]]) -> None:
    for site in sites:
        read_trust(site).require(party_of(sites))


@pytest.mark.parametrize("wrong", ["unsigned", "of another site", "of another round", "unknown number"])
def test_a_client_that_the_server_made_up_is_not(sites: list[dict[str, object]], wrong: str) -> None:
    trust, party = read_trust(sites[0]), party_of(sites)
    if wrong == "unsigned":
        party = party_of([sites[0], sites[1], {}])
    elif wrong == "of another site":
        party = party_of([sites[0], sites[1], sites[1]])
    elif wrong == "of another round":
        party = Party("run|2", party.adverts)
    else:
        party = party_of(sites, (0, 1, 7))
    with pytest.raises(ConfigError, match="sum-peers"):
        trust.require(party)


def test_without_keys_everybody_is_believed() -> None:
    read_trust({}).require(party_of([{}, {}, {}]))


def test_a_sum_of_fewer_than_the_owner_s_least_is_refused() -> None:
    two = party_of([{}, {}], (0, 1))
    with pytest.raises(ConfigError, match="sum-least"):
        read_trust({}).require(two)
    read_trust({"sum-least": 2}).require(two)


def test_a_sum_without_those_that_the_owner_names_is_refused() -> None:
    trust = read_trust({"sum-with": "0,2"})
    trust.require(party_of([{}, {}, {}]))
    with pytest.raises(ConfigError, match="no sum without client 2"):
        read_trust({"sum-with": "0,2", "sum-least": 2}).require(party_of([{}, {}], (0, 1)))


def test_half_a_configuration_and_files_that_are_none_are_refused(
    tmp_path: Path, sites: list[dict[str, object]]
) -> None:
    key, peers = str(sites[0]["sum-key"]), str(sites[0]["sum-peers"])
    other = tmp_path / "other"
    other.write_text("0 nonsense\n")
    twice = tmp_path / "twice"
    twice.write_text(Path(peers).read_text().replace("\n1 ", "\n0 "))
    plain = ec.generate_private_key(ec.SECP384R1()).public_key()
    line = plain.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    for config in (
        {"sum-key": key},
        {"sum-peers": peers},
        {"sum-least": 1},
        {"sum-least": "3"},
        {"sum-with": "1, north"},
        {"sum-with": "1,,2"},
        {"sum-key": str(tmp_path / "none"), "sum-peers": peers},
        {"sum-key": str(other), "sum-peers": peers},
        {"sum-key": key, "sum-peers": str(other)},
        {"sum-key": key, "sum-peers": str(twice)},
    ):
        with pytest.raises(ConfigError):
            read_trust(config)
    good = tmp_path / "good"
    good.write_text(f"9 {line}\n")
    assert set(read_trust({"sum-key": key, "sum-peers": str(good)}).peers or {}) == {9}
