"""The server's half of ADGP over whole in-process runs: who names the set, what travels, what a liar is met with."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from prunella.client.app import app as client_app
from prunella.core.config import parse_run
from prunella.core.errors import ConfigError
from prunella.core.randomness import rehearsal
from prunella.core.trees import Mask, Tree, full_mask
from prunella.privacy.adgp import AlignedPruning, drawn_set
from prunella.server.app import assemble, describe
from prunella.server.grid import OrderedGrid
from prunella.server.rounds import Federation, federate
from prunella.strategies.round.locations import REMEMBERED, LocationSets
from prunella.strategies.round.roster import Member
from prunella.tasks.task import Task, initial
from prunella.wire.encode import encode_mask
from prunella.wire.records import mask_to_coded
from tests.local_grid import LocalGrid, settings

LIKE: Tree = {"w": torch.randn(20, 20, generator=torch.Generator().manual_seed(0)), "b": torch.zeros(20)}
MASK = full_mask(LIKE)
MEMBERS = [Member(i, 100 + i) for i in range(3)]
FAST = {"rounds": 4, "local_steps": 2, "batch_size": 8, "audit_every": 0, "strategy": "fedavg"}


def run(tmp_path: Path, tamper: Any = None, **overrides: Any) -> Federation:
    raw = settings(run_dir=str(tmp_path / "run"), **{**FAST, "defenses": "adgp", **overrides})
    federation = assemble(parse_run({k: v for k, v in raw.items() if "." not in k}), raw)
    describe(federation)
    federate(federation, OrderedGrid(LocalGrid(client_app, 3, raw, tmp_path / "nodes", tamper), 0.0))
    federation.auditor.close()
    return federation


def failures(federation: Federation) -> dict[str, float]:
    return {n.split("|")[1]: v for n, v in federation.counters.items() if n.startswith("client_failures_total")}


def test_the_download_is_restricted_and_the_model_stays_the_same_for_all(tmp_path: Path) -> None:
    federation, plain = run(tmp_path / "a"), run(tmp_path / "b", defenses="dgp")
    assert not failures(federation)
    down = {name: f.counters["wire_bytes_total|down"] for name, f in (("adgp", federation), ("dgp", plain))}
    first = plain.counters["wire_bytes_total|down"] / 4  # the first round is whole for both
    assert down["adgp"] < first + 0.62 * (down["dgp"] - first)
    sets = federation.strategy.downlink.locations
    assert sets is not None and len(sets.past) == 4 and sets.refused == 0
    assert sum(int(t.sum()) for t in sets.past[0].values()) < 0.41 * sum(t.numel() for t in sets.past[0].values())


@pytest.mark.parametrize("lie", ["zeros", "all", "repeated", "missing"])
def test_a_liar_is_refused_counted_and_replaced(tmp_path: Path, lie: str) -> None:
    kept: list[Mask] = []

    def tamper(reply: Message) -> Message:
        if reply.has_error() or "locations" not in reply.content.array_records:
            return reply
        like = full_mask(initial(Task("cnn", (1, 8, 8), 10), 0)[0])
        if lie == "missing":
            del reply.content["locations"]
        elif lie == "repeated":
            kept.append(drawn_set(like, AlignedPruning(), rehearsal(3, purpose="test")))
            reply.content["locations"] = mask_to_coded(kept[0], like)
        else:
            wrong = like if lie == "all" else {n: torch.zeros_like(t) for n, t in like.items()}
            reply.content["locations"] = mask_to_coded(wrong, like)
        return reply

    federation = run(tmp_path, tamper)
    assert failures(federation) == {"locations": 3.0 if lie == "repeated" else 4.0}
    sets = federation.strategy.downlink.locations
    assert sets is not None and len(sets.past) == 4
    assert all(any(not torch.equal(a[n], b[n]) for n in a) for a, b in zip(sets.past, sets.past[1:], strict=False))


def test_a_client_that_lost_its_model_costs_one_reply_and_gets_the_whole_next(tmp_path: Path) -> None:
    lost: list[Path] = []

    def tamper(reply: Message) -> Message:
        found = list((tmp_path / "nodes" / "1").rglob("model.safetensors"))
        if found and not lost:  # once, after round 1 of client 1
            lost.append(found[0])
            found[0].unlink()
        return reply

    federation = run(tmp_path, tamper)
    assert failures(federation) == {"client-error": 1.0} and federation.strategy.stats.replies == 3


def test_a_mask_that_moves_makes_the_server_draw_the_set_and_nobody_is_refused(tmp_path: Path) -> None:
    federation = run(tmp_path, strategy="prunefl", rounds=3, rate=0.5, prunefl__adjust_interval=1)
    sets = federation.strategy.downlink.locations
    assert sets is not None and sets.refused > 0 and not failures(federation)


def test_sets_survive_a_checkpoint_and_are_forgotten_in_time() -> None:
    sets = LocationSets(AlignedPruning(), 0)
    for round in range(1, REMEMBERED + 4):
        sets.begin(round, MASK, LIKE, MEMBERS)
    assert len(sets.past) == REMEMBERED and sets.asked in {m.node for m in MEMBERS}
    again = LocationSets(AlignedPruning(), 0)
    again.load(sets.tree(), MASK)
    assert all(torch.equal(a[n], b[n]) for a, b in zip(again.past, sets.past, strict=True) for n in a)
    assert again.proposal is None


def test_the_set_that_a_client_named_for_the_next_round_survives_a_checkpoint() -> None:
    sets, again = LocationSets(AlignedPruning(), 0), LocationSets(AlignedPruning(), 0)
    sets.begin(1, MASK, LIKE, MEMBERS)
    assert sets.asked is not None
    named = drawn_set(MASK, AlignedPruning(), rehearsal(7, purpose="test"))
    assert sets.note(encode_mask(named, MASK), sets.asked, MASK)
    again.load(sets.tree(), MASK)
    again.begin(2, MASK, LIKE, MEMBERS)
    assert again.current is not None and all(torch.equal(again.current[n], named[n]) for n in named)


def test_weights_that_changed_outside_the_set_are_sent_whole() -> None:
    sets = LocationSets(AlignedPruning(), 0)
    sets.begin(1, MASK, LIKE, MEMBERS)
    assert sets.places is None and sets.current is not None
    inside = {n: t + sets.current[n] for n, t in LIKE.items()}
    sets.begin(2, MASK, inside, MEMBERS)
    assert sets.places is not None
    sets.begin(3, MASK, {n: t + 1 for n, t in inside.items()}, MEMBERS)
    assert sets.places is None


def test_schemes_with_masks_of_their_own_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one mask for all"):
        run(tmp_path, strategy="feddst")
