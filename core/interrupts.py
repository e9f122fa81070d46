"""What ends a command as Ctrl-C does. Imports nothing heavy."""

import os
import signal
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

ENDING = ("SIGTERM", "SIGHUP")  # a service manager or a container ends it so; a terminal that is closed


def ending() -> list[int]:
    """The signals that end a command: those of ``ENDING`` that there are and that were not ignored when the process
    began. Under ``nohup`` a command outlives its terminal."""
    numbers = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def take(number: int) -> None:
    """What every handler of these signals does first: what follows is not ended by another one (a closed terminal is
    told by the shell and by the kernel), and does not fail for writing to a terminal that is gone."""
    for each in ending():
        signal.signal(each, signal.SIG_IGN)
    if number == getattr(signal, "SIGHUP", None):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            with suppress(OSError):  # a service may have closed them
                if stat.S_ISCHR(os.fstat(stream).st_mode):  # of a terminal, one that is gone too
                    os.dup2(nowhere, stream)
        os.close(nowhere)


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
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
