import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from prunella.core.trees import same_trees
from prunella.pruning.fedtiny import block, candidate_masks, grow_and_prune, moved, reported
from prunella.pruning.selection import kept_count

PARAMS = {"a": torch.randn(6, 5, generator=torch.Generator().manual_seed(0)), "a.bias": torch.ones(6),
          "b": torch.randn(40, 6, generator=torch.Generator().manual_seed(1))}  # fmt: skip
NAMES = frozenset({"a", "b"})


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.9, 0.9999])
def test_every_candidate_has_the_rate_and_its_layers_largest_weights(rate: float) -> None:
    pool = candidate_masks(PARAMS, NAMES, rate, (6, 0.5), 3)
    for mask in pool:
        assert sum(int(mask[n].sum()) for n in NAMES) == max(2, kept_count(270, rate)) and mask["a.bias"].all()
        for name in NAMES:
            inside, outside = PARAMS[name].abs()[mask[name]], PARAMS[name].abs()[~mask[name]]
            assert len(inside) and (not len(outside) or inside.min() >= outside.max())
    assert all(same_trees(pool[0], mask) for mask in pool) == (rate in (0.0, 0.9999))
    again = candidate_masks(PARAMS, NAMES, rate, (6, 0.5), 3)
    assert all(same_trees(a, b) for a, b in zip(pool, again, strict=True))


def test_without_noise_all_candidates_are_the_first() -> None:
    pool = candidate_masks(PARAMS, NAMES, 0.5, (4, 0.0), 0)
    assert all(same_trees(pool[0], mask) for mask in pool) and int(pool[0]["a"].sum()) == 15


@given(st.integers(1, 9), st.integers(1, 12))
def test_every_layer_is_in_one_block_and_a_whole_turn_has_all(layers: int, blocks: int) -> None:
    names = [str(n) for n in range(layers)]
    turns = [block(names, blocks, turn) for turn in range(min(blocks, layers))]
    assert [n for part in reversed(turns) for n in part] == names and all(turns)


@given(st.integers(0, 2**31), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_move_keeps_the_count_and_equals_the_slow_loop(seed: int, share: float, dense: float) -> None:
    draw = torch.Generator().manual_seed(seed)
    mask = {"w": torch.rand(7, 3, generator=draw) < dense}
    mask["w"][0, 0] = True
    params = {"w": torch.randn(7, 3, generator=draw) * mask["w"]}
    told = [torch.randint(0, 4, (7, 3), generator=draw).double() for _ in range(3)]  # many are equal, many are zero
    counts = moved(mask, ["w"], share)
    reports = [reported({"w": t}, mask, counts)["w"] for t in told]
    after = grow_and_prune(params, {"w": sum(reports)}, mask, counts)["w"]

    inside, flat = mask["w"].flatten().tolist(), params["w"].flatten().tolist()
    most = min(int(share * sum(inside)), sum(inside) - 1, 21 - sum(inside))
    assert counts == {"w": most}
    votes = [0.0] * 21
    for t in told:
        ranked = sorted((at for at in range(21) if not inside[at]), key=lambda at: (-t.flatten()[at], at))
        for at in ranked[:most]:
            votes[at] += float(t.flatten()[at])
    grown = sorted((at for at in range(21) if votes[at] > 0), key=lambda at: (-votes[at], at))[:most]
    gone = sorted((at for at in range(21) if inside[at]), key=lambda at: (abs(flat[at]), at))[: len(grown)]
    assert after.flatten().tolist() == [at in grown or (inside[at] and at not in gone) for at in range(21)]
    assert int(after.sum()) == sum(inside) >= 1
