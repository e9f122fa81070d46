"""What stands in for processes and the terminal."""

from prunella.deploy.runtime.processes import Exit


class Quiet:
    """A backend whose processes end when the test says so, and a view that keeps what it is told."""

    def __init__(self) -> None:
        self.ended: list[Exit] = []
        self.said: list[str] = []

    def spawn(self, process: object) -> None: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...
    def show(self, lines: object) -> None: ...

    def exits(self) -> list[Exit]:
        ended, self.ended = self.ended, []
        return ended

    def say(self, text: str) -> None:
        self.said.append(text)
