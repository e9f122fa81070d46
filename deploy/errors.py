"""The launcher's errors. Each is one line for the user that names the fix.

Kept apart from ``core.errors``: the zygote imports these, and must import nothing that is in the app's bundle.
"""


class UsageError(Exception):
    """What the user asked for cannot be done: exit code 2."""


class LaunchError(Exception):
    """The federation broke: exit code 1."""
