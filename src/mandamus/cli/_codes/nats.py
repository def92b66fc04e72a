"""Pages of the NATS ledger (0560 to 0579): what the servers did not answer, refused, or are not fit for.

The rule a newcomer would break: a page never tells how to switch a check off without saying what is then lost.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

NATS: Pages = {
    "MDM-0560": (
        "No NATS server can be reached",
        "None of the servers that the URI names let this process in. What they said stands behind `found`: a wrong address, a "
        "certificate that is not trusted (?tls_ca=FILE), or a user who is not known (?creds=FILE, ?nkey=FILE, NATS_CREDS). Nothing was "
        "written.",
    ),
    "MDM-0561": (
        "The NATS servers did not answer",
        "A majority of the servers is needed for every write, so no effect begins without one. Bring them back and run it again: a "
        "write whose fate was not known is looked up first and sent again as it was, and is stored once.",
    ),
    "MDM-0562": (
        "The log is full",
        "The stream has reached its max_bytes, or its disk has no more room. The write was refused whole and nothing was begun. The "
        "operator raises max_bytes below what the disks have; a server whose disk ran full must be restarted before it writes again.",
    ),
    "MDM-0563": (
        "The NATS ledger's URI cannot be used",
        "nats://HOST[:PORT][,HOST[:PORT]]/NAME?tenant=…, or tls+nats://…. A parameter that is not known is refused, lest a misspelt one "
        "be lost.",
    ),
    "MDM-0564": (
        "The NATS server is too old",
        "2.14 or later: atomic batches over several subjects, message schedules and keys that run out. Upgrade one server at a time.",
    ),
    "MDM-0565": (
        "The NATS servers are not known to flush before they answer",
        "By default a server flushes to its disk every two minutes, and a power cut takes back what it has acknowledged: an effect that "
        "was recorded would be repeated. Set `jetstream { sync_interval: always }` on every server and let this machine read their "
        "/varz (?monitor=URL,URL). Where it cannot be read, ?assume_sync_always=1 takes the operator's word for it, and doctor says so "
        "each time.",
    ),
    "MDM-0566": (
        "The log has too few replicas",
        "Three, or five. What a single server acknowledged is gone with its disk. One replica is for tier dev (?replicas=1).",
    ),
    "MDM-0567": (
        "A stream is not set up as the ledger relies on",
        "The message names the setting. Records must not be deleted or purged, reads must come from the leader, a full stream must "
        "refuse. docs/adr/0027-nats-ledger.md prints every stream.",
    ),
    "MDM-0568": (
        "A stream has no bound",
        "max_bytes must be set, below what the disks of all servers have: a full stream refuses and goes on, a full disk needs a "
        "restart. Outside tier dev it is named when the log is made: ?max_bytes=N. doctor warns at 80 %.",
    ),
    "MDM-0569": (
        "A stream is missing and this user may not make it",
        "Workers have no right to make streams. The operator opens the ledger once as a user who may, or makes them by hand.",
    ),
    "MDM-0570": (
        "The NATS server refused a request",
        "It should accept it: look at its version, at its log, and at what this user may do there. Nothing was written.",
    ),
}
