import pytest

from prunella.core.hosts import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_what_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "localhost.evil.example", "", "127.evil"])
def test_what_is_not_loopback(host: str) -> None:
    assert not is_loopback(host)
