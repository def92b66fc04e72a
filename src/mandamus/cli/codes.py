"""The pages of `mandamus help CODE`: code -> (title, what it means and what to do). Data, in order; a test holds it against the source.

The rule a newcomer would break: a code, once released, keeps its meaning. The first digit after the zero says whose fault it is: 0 the
command line, 1 and 2 the caller, 3 a rule said no, 4 somebody was first, 5 an engine, 6 evidence, 7 a policy, 8 the demo,
the kits and the templates, 9 the log, its stores and witnesses, and what is forgotten.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages
from mandamus.cli._codes.answers import ENGINES, FIRST, REFUSED, STARTS
from mandamus.cli._codes.bundles import SHOWN
from mandamus.cli._codes.caller import AGENTS, KEYS, POLICIES, WIRING
from mandamus.cli._codes.evidence import PROOFS
from mandamus.cli._codes.feed import FEED
from mandamus.cli._codes.forgetting import FORGETTING
from mandamus.cli._codes.heads import HEADS
from mandamus.cli._codes.log import NOTES
from mandamus.cli._codes.nats import NATS
from mandamus.cli._codes.postgres import POSTGRES
from mandamus.cli._codes.program import COMMAND_LINE, DEMO
from mandamus.cli._codes.signers import SIGNERS
from mandamus.cli._codes.stores import STORES
from mandamus.cli._codes.tlog import TLOG
from mandamus.cli._codes.witness import WITNESSES
from mandamus.cli._codes.worker import WORKERS
from mandamus.cli._codes.wrapping import WRAPPING
from mandamus.cli.halts import HALTS

_CALLER = WIRING | KEYS | AGENTS
_SERVERS = POSTGRES | NATS | WORKERS
CODES: Pages = COMMAND_LINE | _CALLER | REFUSED | FIRST | ENGINES | _SERVERS | PROOFS | HEADS | POLICIES | DEMO | STARTS
CODES |= SHOWN | NOTES | SIGNERS | FEED | WITNESSES | TLOG
CODES |= FORGETTING | STORES | WRAPPING
CODES |= {  # why a run halted
    code: (f"Halted: {what}", f"To go on: {fix}; then mandamus resume RUN." if "as a new run" not in fix else f"To go on: {fix}.")
    for code, (what, fix) in HALTS.items()
}
