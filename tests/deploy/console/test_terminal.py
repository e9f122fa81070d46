"""Errors become one line and an exit code."""

import errno

import pytest
import typer

from prunella.core.errors import ConfigError
from prunella.deploy.console.terminal import explained, say
from prunella.deploy.errors import LaunchError, UsageError


@pytest.mark.parametrize(
    "error, code",
    [(UsageError("a [b] c"), 2), (ConfigError("a [b] c"), 2), (LaunchError("a [b] c"), 1), (KeyboardInterrupt(), 130)],
)
def test_explained(error: BaseException, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit, explained():
        raise error
    assert exit.value.exit_code == code
    said = capsys.readouterr().err
    assert said == ("prunella: stopped\n" if code == 130 else "prunella: a [b] c\n")


@pytest.mark.parametrize(
    "number, told",
    [
        (errno.ENOSPC, "the disk is full: /a/b: free some space, or name a directory on another one"),
        (errno.EACCES, "not allowed: /a/b: change its permissions, or name another"),
    ],
)
def test_a_disk_that_does_not_take_it(number: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as exit, explained():
        raise OSError(number, "text", "/a/b")
    assert exit.value.exit_code == 1 and capsys.readouterr().err == f"prunella: {told}\n"
    with pytest.raises(FileNotFoundError), explained():
        raise FileNotFoundError(errno.ENOENT, "text", "/a/b")


def test_what_nobody_foresaw_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError), explained():
        raise ZeroDivisionError


def test_lines_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    say("x" * 300 + " [bold]")
    assert capsys.readouterr().out == "x" * 300 + " [bold]\n"
