"""How the C library's allocator treats large blocks that are used again and again.

glibc gives a block of some megabytes back to the system when it is freed, so the next one of its size is new memory:
every page is zeroed again when it is first touched. A descent frees and allocates the same tensors at each iteration,
and up to half of its time went there.
"""

import ctypes

_TRIM_THRESHOLD, _MMAP_MAX = -1, -4  # malloc.h
_NEVER = 2**31 - 1


def keep_freed_memory() -> bool:
    """From now on this process keeps what it frees for the next allocation; what it had at most stays its own until it
    ends. False where the C library has no ``mallopt``: nothing changes then."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl; Windows
        return False
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))
