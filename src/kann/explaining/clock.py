"""The time that an explanation may take."""

import time

from kann.errors import KannError


class Clock:
    """Counts the seconds of a budget; without one there is always time."""

    def __init__(self, seconds: int | float | None):
        self._started, self._seconds = time.monotonic(), seconds

    @property
    def spent(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    @property
    def left(self) -> float:
        """Seconds that are left; infinite without a budget."""
        if self._seconds is None:
            return float("inf")
        return self._seconds - self.spent

    def require(self, seconds: int | float, what: str) -> None:
        """Refuse to begin what would take longer than is left, where nothing could be explained without it."""
        if self.left <= 0:
            raise KannError(
                f"out of time: {self.spent:.1f} of seconds={self._seconds:g} are spent before {what} began (a first "
                "call also loads libraries); pass more seconds"
            )
        if seconds >= self.left:
            raise KannError(
                f"out of time: {self.spent:.1f} of seconds={self._seconds:g} are spent, and {what} takes about "
                f"{seconds:.1f}; pass more seconds, or fewer sequences"
            )
