"""How the stages of a masked sum travel: Flower records, and what is checked when they are read.

=================  ===========================================  =============================================
message            the server sends, in the record ``sum``      a client answers
=================  ===========================================  =============================================
``train.keys``     the round                                    its ``Advert``
``train.letters``  the adverts of all                           a sealed letter to every client
``train``          the letters to this client, beside the model the masked words, in the array ``masked``, and
                                                                a statement: what names them and, signed, the model
``train.vote``     the survivors' statements                    its vote on the survivors and these
``train.reveal``   the survivors' votes                         one share about every client
=================  ===========================================  =============================================

Nothing here is believed: every reader raises ``WireError`` for what does not fit.
"""

from collections.abc import Mapping

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.party import MOST, Advert

RECORD, MASKED = "sum", "masked"
KEYS, LETTERS, VOTE, REVEAL = "train.keys", "train.letters", "train.vote", "train.reveal"
STYPE = "prunella.sum.v1"
LARGEST = 1_000  # bytes of a letter, a share or a vote
_FIELDS = ("letters", "masks", "voice", "mark", "signature")


def record_of(content: RecordDict) -> ConfigRecord:
    """The record ``sum``. Raises ``WireError`` where there is none."""
    if RECORD not in content.config_records:
        raise WireError("malformed", "a message of a masked sum lacks its record")
    return content.config_records[RECORD]


def wrap(record: ConfigRecord) -> RecordDict:
    return RecordDict({RECORD: record})


def write_adverts(adverts: tuple[Advert, ...]) -> ConfigRecord:
    columns = {name: [getattr(advert, name) for advert in adverts] for name in _FIELDS}
    return ConfigRecord({"clients": [advert.client for advert in adverts], **columns})


def read_adverts(record: ConfigRecord) -> tuple[Advert, ...]:
    clients = read_clients(record)
    columns = [read_parts(record, name, len(clients)) for name in _FIELDS]
    return tuple(Advert(client, *parts) for client, *parts in zip(clients, *columns, strict=True))


def write_parts(parts: Mapping[int, bytes]) -> ConfigRecord:
    """Bytes by client."""
    return ConfigRecord({"clients": sorted(parts), "parts": [parts[client] for client in sorted(parts)]})


def read_mapping(record: ConfigRecord) -> dict[int, bytes]:
    """The inverse of ``write_parts``."""
    clients = read_clients(record)
    return dict(zip(clients, read_parts(record, "parts", len(clients)), strict=True))


def read_bytes(record: ConfigRecord, name: str) -> bytes:
    """One short byte string."""
    found = record.get(name)
    if not isinstance(found, bytes) or len(found) > LARGEST:
        raise WireError("malformed", f"the answer has no {name}")
    return found


def read_clients(record: ConfigRecord) -> list[int]:
    """Client numbers, each once."""
    found = record.get("clients")
    if not isinstance(found, list) or len(found) > MOST:
        raise WireError("malformed", "clients are no client numbers")
    numbers = [number for number in found if type(number) is int and number >= 0]
    if len(set(numbers)) != len(found):
        raise WireError("malformed", "clients are no client numbers, each once")
    return numbers


def read_parts(record: ConfigRecord, name: str, count: int) -> list[bytes]:
    """``count`` short byte strings."""
    found = record.get(name)
    parts = [part for part in found if isinstance(part, bytes)] if isinstance(found, list) else []
    if not isinstance(found, list) or len(parts) != len(found) or len(parts) != count:
        raise WireError("malformed", f"{name} are not one each")
    if any(len(part) > LARGEST for part in parts):
        raise WireError("size", f"one of {name} is too long")
    return parts


def pack_masked(data: bytes) -> ArrayRecord:
    return ArrayRecord({MASKED: Array("uint8", (len(data),), STYPE, data)})


def unpack_masked(content: RecordDict) -> bytes:
    record = content.array_records.get(MASKED, ArrayRecord())
    if list(record) != [MASKED] or record[MASKED].stype != STYPE:
        raise WireError("malformed", "the reply has no masked words")
    return record[MASKED].data
