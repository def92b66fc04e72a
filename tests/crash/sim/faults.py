"""What can strike, and where: a plan names a fault for the n-th place that a simulation passes.

crash        the process is gone
stall        the whole process sleeps, for minutes perhaps, and comes back, believing that nothing happened (a zombie)
slow         this one answer takes a minute, the rest of the process goes on
unavailable  the store, the model or the other side does not answer; of a write nobody knows whether it was done, or will be
ghost        the write is seen by all and not durable: the standby is missing, and may take over without it
late         the request is under way for nearly as long as it may be, also when its sender is dead
clock        a machine's clock jumps by an hour, the worker's or the store's
mail         every message is delivered again, and to the other run as well
wake         the run is claimed by one more worker
authority    an administrator changes something
"""

from __future__ import annotations

import random
from collections.abc import Iterator

Plan = dict[int, str]

EVERYWHERE = ("crash", "stall", "slow", "clock", "mail", "wake", "authority")
KINDS: dict[str, tuple[str, ...]] = {
    "write": (*EVERYWHERE, "unavailable", "ghost"),
    "read": (*EVERYWHERE, "unavailable"),
    "send": (*EVERYWHERE, "late"),
    "reply": (*EVERYWHERE, "unavailable"),
    "tool": EVERYWHERE,
    "after": ("crash", "stall"),
}
FAULTS = tuple(dict.fromkeys(fault for kind in KINDS.values() for fault in kind))
HARSH = ("crash", "stall", "unavailable", "ghost", "late")  # what pairs are made of


def singles(places: list[str]) -> Iterator[Plan]:
    """Every fault that means something, at every place. `places`: their kinds, in the order in which a run without faults passes them."""
    for place, kind in enumerate(places):
        for fault in KINDS[kind]:
            yield {place: fault}


def pairs(places: list[str]) -> Iterator[Plan]:
    """Two harsh faults: the second at most as many places behind the first as a run passes."""
    first = [(place, fault) for place, kind in enumerate(places) for fault in KINDS[kind] if fault in HARSH]
    for place, fault in first:
        for later in range(place + 1, len(places) + 1):
            for other in HARSH:
                yield {place: fault, later: other}


def storm(seed: int) -> Plan:
    """One fault again and again, for a while."""
    chance = random.Random(seed)
    fault, every = chance.choice(FAULTS), chance.randint(7, 40)
    return dict.fromkeys(range(chance.randrange(every), 600, every), fault)


def mixture(seed: int, places: int) -> Plan:
    """One to six faults anywhere in the run and in what follows a fault."""
    chance = random.Random(seed)
    return {chance.randrange(places * 2): chance.choice(FAULTS) for _ in range(chance.randint(1, 6))}
