"""Logs as Flower 1.39 really wrote them, and the mend each must name."""

import pytest

from deploy.refusals import REFUSALS, find

FAILED = "ERROR: Exit Code: 305\nFailed to initialize the connection to the SuperLink.\n"
HANDSHAKE = (
    "failed to connect to all addresses; last error: UNKNOWN: ipv4:10.9.0.1:9092: Tls handshake failed "
    "(TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:{}: Invalid certificate verification context: OK\n"
)


@pytest.mark.parametrize(
    "log, mend, passing",
    [
        (FAILED + "[code: 2004] Failed to activate SuperNode.", "prunella register", True),
        (FAILED + "[code: 2001] SuperNode authentication is enabled.", "without --insecure", False),
        ("ERROR: Exit Code: 303\nInsecure connection is enabled", "leave out --insecure", False),
        (FAILED + HANDSHAKE.format("100000f7:SSL routines:OPENSSL_internal:WRONG_VERSION_NUMBER"), "--keys", False),
        (
            FAILED + HANDSHAKE.format("0A000086:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"),
            "copy ca.crt",
            False,
        ),
        (FAILED + "something new", "the lines above", False),
    ],
)
def test_each_refusal_names_its_mend(log: str, mend: str, passing: bool) -> None:
    found = find(log)
    assert found and mend in found.text and found.passing is passing


def test_a_healthy_log_is_no_refusal() -> None:
    assert find("INFO: Starting Flower SuperNode\nINFO: SuperNode ID: 305200120042001\nSent successfully") is None


def test_only_what_time_mends_is_tried_again() -> None:
    assert [words for words, refusal in REFUSALS.items() if refusal.passing] == [("[code: 2004]",)]
