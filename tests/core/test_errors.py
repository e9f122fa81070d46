import torch

from prunella.core.errors import ConfigError, PrunellaError, WireError, unknown, with_article


def test_unknown_lists_the_valid_names_even_without_a_near_one() -> None:
    error = unknown("attack", "zzzz", ["sgi", "ig"])
    assert isinstance(error, ConfigError) and isinstance(error, PrunellaError)
    assert str(error) == "unknown attack 'zzzz': Valid: ig, sgi"


def test_a_wire_error_carries_a_reason_fit_for_a_label() -> None:
    assert WireError("shape", "w: wrong").reason == "shape"


def test_letters_that_changed_places_are_taken_for_the_name_of_that_length() -> None:
    names = ["none", "dgp", "dp-sgd", "dp-fed", "adgp"]
    assert "did you mean 'dgp'" in str(unknown("defense", "dpg", names))
    assert "did you mean 'dp-sgd'" in str(unknown("defense", "dpsgd", names))


def test_a_thing_has_the_article_of_its_name_and_a_class_is_called_one() -> None:
    things = (torch.nn.LSTM(1, 1), torch.nn.ReLU(), torch.nn.Linear(1, 1), torch.nn.Embedding(1, 1), torch.nn.Linear)
    said = ["an LSTM", "a ReLU", "a Linear", "an Embedding", "the class Linear"]
    assert [with_article(thing) for thing in things] == said
