"""What ends a command as Ctrl-C does. Imports nothing heavy."""

import os
import signal
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

ENDING = ("SIGTERM", "SIGHUP")  # a service manager or a container ends it so; a terminal that is closed
STOPPED = 130
TOGETHER = 1.0  # seconds within which a second SIGTERM is the first: timeout(1) tells a command, and then its group


def ending() -> list[int]:
    """The signals that end a command: those of ``ENDING`` that there are and that were not ignored when the process
    began. Under ``nohup`` a command outlives its terminal."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def take(number: int) -> None:
    """What every handler of these signals does first: what follows is not ended by a closed terminal, of which the
    shell and the kernel tell, but by another SIGTERM, as by another Ctrl-C; and it does not fail for writing to a
    terminal that is gone."""
    first, hangup = time.monotonic(), getattr(signal, "SIGHUP", None)

    def again(*_: object) -> None:
        if time.monotonic() - first > TOGETHER:
            raise KeyboardInterrupt

    for each in ending():
        signal.signal(each, signal.SIG_IGN if each == hangup else again)
    if number == hangup:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            with suppress(OSError):  # a service may have closed them
                if stat.S_ISCHR(os.fstat(stream).st_mode):  # of a terminal, one that is gone too
                    os.dup2(nowhere, stream)
        os.close(nowhere)


def _end(number: int, _: object) -> NoReturn:
    take(number)
    with suppress(OSError):
        os.write(2, b"prunella: stopped\n")
    os._exit(STOPPED)


def end_at_once() -> None:
    """Until ``signals_interrupt``, let Ctrl-C, SIGTERM and a closed terminal end the process in one line.

    For the seconds in which a command imports, when there is nothing to clean up yet, and Python would show where in an
    import it was. What was ignored stays so.
    """
    interrupt = [signal.SIGINT] if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN else []
    for number in (*interrupt, *ending()):
        signal.signal(number, _end)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal act like Ctrl-C, so that every ``finally`` runs.

    What was ignored stays so. Outside the main thread, where Python knows no signals, nothing changes.
    """

    def interrupt(number: int, _: object) -> None:
        take(number)
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, interrupt) for number in (ending() if main else [])}
    if main and signal.getsignal(signal.SIGINT) is _end:
        before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
