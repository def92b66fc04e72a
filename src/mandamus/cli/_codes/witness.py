"""Pages of witnesses and public anchors (0946 to 0959).

The rule a newcomer would break: a witness that contradicts the log is not taken off the list to make the error go away. Find out who is
right first; the note and the witness's answer are evidence.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

WITNESSES: Pages = {
    "MDM-0946": (
        "A key of another role",
        "A witness reads checkpoints that carry a log's Ed25519 signature (0x01), and signs with a cosigner's key (0x04) that does nothing "
        "else: mandamus key new FILE --name NAME --kind cosigner.",
    ),
    "MDM-0947": (
        "Not this witness's memory",
        "The database holds how far each log had come. Name the one of this key. --init makes one, for a key that has never cosigned; who "
        "lost the database makes a new key, and the trust files name that one instead.",
    ),
    "MDM-0948": ("The witness's memory cannot be used", "Nothing was cosigned. Look after the disk and the file, then start it again."),
    "MDM-0949": (
        "No such witness",
        "MANDAMUS_WITNESSES names them, separated by spaces: witness+https://HOST/PREFIX#VKEY or rekor+https://HOST?residency=eu#VKEY. The "
        "part behind # is the key that its answers must be signed with.",
    ),
    "MDM-0950": (
        "A witness's answer proves nothing",
        "It answered, but not with a good cosignature of its key over our checkpoint, made now. Compare its key with the trust file, and "
        "both clocks.",
    ),
    "MDM-0951": (
        "This log was rolled back",
        "A witness has cosigned a longer log of this name than the one that stands here: a backup was restored, or another process signs "
        "with this log's key elsewhere. Nothing more is signed. Put the longer log back; if it is lost, begin another log with a new key.",
    ),
    "MDM-0952": (
        "A witness has seen another tree",
        "What it cosigned is no beginning of this log: two logs were signed with one key, or records were changed. Nothing more is signed. "
        "Keep the store and the ledger as they are: they are evidence.",
    ),
    "MDM-0953": (
        "A witness does not know this log",
        "It refused the checkpoint. Give its operator the `log` line of your trust file (mandamus key trust), and compare the key's id.",
    ),
    "MDM-0954": ("A witness does not answer", "Cosignatures of the others count; the quorum of the trust file decides. It is asked again."),
    "MDM-0955": (
        "Outside of the demanded residency",
        "An anchor that is outside of the place that was demanded is never asked. Name one of that place, or none.",
    ),
    "MDM-0956": (
        "A public anchor's proof does not hold",
        "The entry, its place in the anchor's log or the anchor's signature is not what it must be. Compare the anchor's key with the "
        "trust file; a valid entry that does not name our checkpoint proves nothing of it.",
    ),
    "MDM-0959": (
        "A witness has forgotten what it cosigned",
        "It named a smaller size than the one under its own cosignature: its database was lost or restored. It was led on, but what it "
        "says protects from nothing before now. Its operator makes a new key, and the trust files name that one.",
    ),
    "MDM-0958": ("No address to listen at", "--listen HOST:PORT: a port that is free, on an address of this machine. [::1]:7380 for IPv6."),
    "MDM-0957": (
        "A witness knows another size",
        "It was asked with a size that is not the one it cosigned last. The log proves its growth from there by itself; seen by a person, "
        "it says that a newer checkpoint of this log was first.",
    ),
}
