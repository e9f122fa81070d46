import pytest
from flwr.app import ConfigRecord, RecordDict

from prunella.core.errors import WireError
from prunella.strategies.secure_sum import letters
from prunella.strategies.secure_sum.party import MOST
from tests.strategies.secure_sum.made import Honest


def test_adverts_and_parts_come_back_as_they_were() -> None:
    adverts = Honest(3).party.adverts
    assert letters.read_adverts(letters.write_adverts(adverts)) == adverts
    parts = {7: b"b", 3: b"a"}
    assert letters.read_mapping(letters.write_parts(parts)) == parts
    assert letters.read_mapping(letters.write_parts({})) == {}


def test_masked_words_come_back_as_they_were() -> None:
    content = RecordDict({letters.MASKED: letters.pack_masked(b"words")})
    assert letters.unpack_masked(content) == b"words"
    with pytest.raises(WireError):
        letters.unpack_masked(RecordDict())


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"clients": [1]},
        {"clients": [1, 1], "parts": [b"a", b"b"]},
        {"clients": [-1], "parts": [b"a"]},
        {"clients": [1], "parts": [b"a", b"b"]},
        {"clients": [1], "parts": ["a"]},
        {"clients": 1, "parts": [b"a"]},
        {"clients": [1], "parts": [bytes(letters.LARGEST + 1)]},
        {"clients": list(range(MOST + 1)), "parts": [b""] * (MOST + 1)},
    ],
)
def test_what_is_no_mapping_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(WireError):
        letters.read_mapping(ConfigRecord(wrong))  # type: ignore[arg-type]


def test_a_message_without_its_record_is_refused() -> None:
    with pytest.raises(WireError):
        letters.record_of(RecordDict())
