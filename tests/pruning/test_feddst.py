import torch

from prunella.pruning.feddst import decayed, prune_and_regrow, vote

MASK = {"w": torch.tensor([True, True, True, True, False, False, False, False]), "b": torch.ones(2).bool()}
PARAMS = {"w": torch.tensor([4.0, -0.1, 3.0, 0.2, 0, 0, 0, 0]), "b": torch.ones(2)}
SQUARES = {"w": torch.tensor([9.0, 0.0, 9.0, 0.5, 0.1, 7.0, 0.3, 0.0]), "b": torch.ones(2)}


def test_the_smallest_go_and_the_largest_gradients_come_at_zero() -> None:
    params, mask = prune_and_regrow(PARAMS, SQUARES, MASK, 0.5, {"w"})
    # -0.1 and 0.2 go; of all that are out, 7.0 and the just pruned 0.5 have the largest gradients.
    assert mask["w"].tolist() == [True, False, True, True, False, True, False, False]
    assert params["w"].tolist() == [4.0, 0, 3.0, 0, 0, 0, 0, 0]
    assert torch.equal(mask["b"], MASK["b"]) and torch.equal(params["b"], PARAMS["b"])
    assert MASK["w"].tolist()[:4] == [True] * 4


def test_every_layer_keeps_its_count_and_its_largest_weight_even_at_alpha_one() -> None:
    params, mask = prune_and_regrow(PARAMS, SQUARES, MASK, 1.0, {"w"})
    assert int(mask["w"].sum()) == 4
    assert params["w"].tolist() == [4.0, 0, 0, 0, 0, 0, 0, 0]


def test_at_alpha_zero_nothing_moves() -> None:
    params, mask = prune_and_regrow(PARAMS, SQUARES, MASK, 0.0, {"w"})
    assert torch.equal(mask["w"], MASK["w"]) and torch.equal(params["w"], PARAMS["w"])


def test_alpha_falls_from_its_start_to_zero_and_stays_there() -> None:
    values = [decayed(0.3, t, 20) for t in range(25)]
    assert values[0] == 0.3 and values[20:] == [0.0] * 5
    assert all(a > b for a, b in zip(values[:20], values[1:21], strict=True))


def test_the_vote_keeps_the_largest_that_somebody_held() -> None:
    held = {"w": torch.tensor([True, False, True, True, False, True, False, False]), "b": torch.ones(2).bool()}
    params = {"w": torch.tensor([4.0, 9.0, 0.1, 2.0, 9.0, 3.0, 9.0, 9.0]), "b": torch.ones(2)}
    mask = vote(params, held, MASK, {"w": 3})
    assert mask["w"].tolist() == [True, False, False, True, False, True, False, False]
    assert torch.equal(mask["b"], MASK["b"])


def test_where_clients_held_fewer_the_previous_mask_fills_up() -> None:
    held = {"w": torch.tensor([False] * 5 + [True] + [False] * 2), "b": torch.ones(2).bool()}
    mask = vote({"w": torch.zeros(8), "b": torch.ones(2)}, held, MASK, {"w": 3})
    assert mask["w"].tolist() == [True, True, False, False, False, True, False, False]
