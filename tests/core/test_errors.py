from core.errors import ConfigError, PrunellaError, WireError, unknown


def test_unknown_lists_the_valid_names_even_without_a_near_one() -> None:
    error = unknown("attack", "zzzz", ["sgi", "ig"])
    assert isinstance(error, ConfigError) and isinstance(error, PrunellaError)
    assert str(error) == "unknown attack 'zzzz': Valid: ig, sgi"


def test_a_wire_error_carries_a_reason_fit_for_a_label() -> None:
    assert WireError("shape", "w: wrong").reason == "shape"
