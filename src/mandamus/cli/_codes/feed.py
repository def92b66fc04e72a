"""Pages of the way from a ledger into its log (0910 to 0912).

The rule a newcomer would break: a ledger that does not go on where it was left is never read on as if it did.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

FEED: Pages = {
    "MDM-0910": (
        "Not a cursor of this ledger",
        "Whoever reads all records of a ledger goes on from a cursor that it gave out. Another kind of ledger counts in another way: after "
        "`ledger copy` the reading begins anew.",
    ),
    "MDM-0911": (
        "The ledger has lost a record that was read from it",
        "It was put back to an older day, or it is another ledger. Nothing more is read from it. Bring back its newest backup, or the "
        "server that has the record; keep this one as evidence.",
    ),
    "MDM-0912": (
        "The ledger's tables were brought here from another Postgres cluster",
        "Records are read in the order of the server's transaction numbers, and this server counts lower ones than the one that the dump "
        "was taken from: what is written now would be put before what was read already. Open the ledger once as the owner of its tables "
        "(`mandamus doctor`): their base is raised, nothing else changes. If that is no dump but a server put back to an older day, bring "
        "back its newest backup first.",
    ),
}
