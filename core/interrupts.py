"""What ends a command as Ctrl-C does. Imports nothing heavy."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDING = ("SIGTERM", "SIGHUP")  # a service manager or a container ends it so; a terminal that is closed


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal act like Ctrl-C, so that every ``finally`` runs.

    What was ignored when the process began stays so: under ``nohup`` a command outlives its terminal. Outside the main
    thread, where Python knows no signals, nothing changes.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    numbers = [getattr(signal, name) for name in ENDING if main and hasattr(signal, name)]
    numbers = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
