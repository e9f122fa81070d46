"""The launcher's errors. They carry one line for the user, which names the mend.

Kept apart from ``core.errors``: the warm worker imports these, and must import nothing the app's bundle brings along.
"""


class UsageError(Exception):
    """Something the user asked for cannot be done: exit code 2."""


class LaunchError(Exception):
    """The federation broke: exit code 1."""
