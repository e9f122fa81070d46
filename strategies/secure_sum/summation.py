"""The server's half of a masked sum: add masked words up, and take off the masks that do not cancel.

What is left after the sum over the survivors: every survivor's own mask, and the masks that survivors share with those
who had sent letters and whose words never came. The first are made again from the joined secret of each survivor, the
second from the joined key of each dropout. Memory is a few vectors, however many clients.

Errors: ``WireError``; the round then does not count.
"""

from collections.abc import Mapping

import numpy as np

from prunella.core.errors import WireError
from prunella.strategies.secure_sum.fixed_point import FixedPoint, Integers, Words, decode, reduced, unpack
from prunella.strategies.secure_sum.participant import own_mask, pair_mask, sign_of
from prunella.strategies.secure_sum.party import Party
from prunella.strategies.secure_sum.primitives import added, join, mark, public_of

Revealed = Mapping[int, Mapping[int, bytes]]  # by client that reveals: by client that it is about, a share


class Summation:
    """One round's sum of ``count`` words from ``peers``, the clients whose letters were handed on."""

    def __init__(self, party: Party, peers: frozenset[int], count: int, form: FixedPoint) -> None:
        self.party, self.peers, self.count, self.form = party, peers, count, form
        self.survivors: frozenset[int] = frozenset()
        self._total: Words = np.zeros(count, np.uint64)

    def add(self, client: int, data: bytes) -> None:
        """The masked words of one client."""
        if client not in self.peers - self.survivors or len(data) != self.count * self.form.width:
            raise WireError("size", "masked words of another length, or of a client that has sent some")
        added(self._total, unpack(data, self.form), +1)
        self.survivors |= {client}

    def result(self, revealed: Revealed) -> Integers:
        """The sum of what the survivors put in, from shares of a threshold of clients."""
        total = self._total.copy()
        for client in sorted(self.survivors):
            secret = self._joined(revealed, client)
            if mark(secret) != self.party.of(client).mark:
                raise WireError("malformed", f"the shares of client {client}'s own mask do not give it")
            added(total, own_mask(secret, self.party, client, self.count, self.form), -1)
        for lost in sorted(self.peers - self.survivors):
            self._take_off(total, lost, self._joined(revealed, lost))
        return decode(reduced(total, self.form), self.form)

    def _take_off(self, total: Words, lost: int, key: bytes) -> None:
        """The masks that the survivors share with a client whose words did not come."""
        if public_of(key) != self.party.of(lost).masks:
            raise WireError("malformed", f"the shares of client {lost}'s key do not give it")
        for client in sorted(self.survivors):
            mask = pair_mask(key, self.party, lost, client, self.count, self.form)
            added(total, mask, -sign_of(client, lost))

    def _joined(self, revealed: Revealed, about: int) -> bytes:
        shares = {self.party.number(who): told[about] for who, told in revealed.items() if about in told}
        return join(shares, self.party.threshold)
