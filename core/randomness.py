"""Randomness is an argument: every draw names its run seed, round, client and purpose.

>>> a = torch.rand(2, generator=stream(1, round=3, client=0, purpose="batch"))
>>> b = torch.rand(2, generator=stream(1, round=3, client=0, purpose="batch"))
>>> c = torch.rand(2, generator=stream(1, round=3, client=0, purpose="noise"))
>>> bool((a == b).all()), bool((a == c).all())
(True, False)
"""

import hashlib

import torch


def stream(seed: int, *, round: int = 0, client: int = 0, purpose: str) -> torch.Generator:
    """A CPU generator that depends on every argument through SHA-256, so that two purposes never share a stream.

    A stream is reproducible, so whoever knows ``seed`` can draw the same numbers: noise that carries a privacy claim
    must be drawn with a seed the server does not know (``client.state`` keeps one per client).
    """
    digest = hashlib.sha256(f"{seed}|{round}|{client}|{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
