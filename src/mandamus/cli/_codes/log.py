"""Pages of the log's own forms: signed notes, checkpoints, proofs (0900 to 0904).

The rule a newcomer would break: what cannot be read proves nothing, and is kept: somebody made it so.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

NOTES: Pages = {
    "MDM-0900": (
        "Not a signed checkpoint",
        "A checkpoint is a note of three lines (origin, size, root) with signature lines behind it, written as C2SP says. Fetch it "
        "again; if "
        "it is the same again, ask whoever serves the log.",
    ),
    "MDM-0901": (
        "A signature of a known key does not hold",
        "Somebody changed the note, or signed with another key under this name. Nothing of it is believed: keep it as evidence.",
    ),
    "MDM-0902": (
        "A checkpoint of nobody you trust",
        "The trust file names whose logs are believed (`log VKEY`, the key's name is the origin). Compare the origin and the key's id.",
    ),
    "MDM-0903": (
        "A cosignature from the future",
        "A witness says when it signed. Check the clock of this machine; if it is right, the witness's clock, or its word, is wrong.",
    ),
    "MDM-0904": (
        "Not a proof of a log",
        "A proof begins with c2sp.org/tlog-proof@v1, then come an index, the hashes and the checkpoint. `mandamus log prove RUN` "
        "writes one.",
    ),
}
