"""Pages of the transparency log of a ledger (0930 to 0944).

The rule a newcomer would break: a log that does not fit is never made to fit. Two copies that differ are two pieces of evidence.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

_BOTH = (
    "Keep the ledger and the log as they are: they are evidence. Find the newest whole copy of whichever is behind, put it back, and start "
    "again; what the log lacks is written anew from the ledger, and what the ledger lacks can come only from a copy of it."
)
TLOG: Pages = {
    "MDM-0930": (
        "This ledger has no log",
        "A ledger file has one in the folder log beside its keys. For a ledger on servers, or to have it elsewhere, MANDAMUS_LOG names it: "
        "folder:///PATH or s3://BUCKET/PREFIX, the same for every process of the ledger.",
    ),
    "MDM-0931": ("The log was rolled back", "Something was signed, shown or announced that the store does not hold any more. " + _BOTH),
    "MDM-0932": (
        "The log's objects do not fit together",
        "A tile, an entry bundle or a row is missing, changed, or of another tree than what was signed. " + _BOTH,
    ),
    "MDM-0933": (
        "Two writers of one log",
        "Another process wrote different records into this log, with the same key. One key stands for one ledger and one log: stop the one "
        "that should not be, and keep what both have signed.",
    ),
    "MDM-0934": (
        "The ledger is behind its log",
        "The log has records that this ledger lacks, or others in their place: an old copy was put back, or a server lost its last writes. "
        "What is missing was done in the world. " + _BOTH,
    ),
    "MDM-0935": (
        "The feed of the ledger has a hole",
        "Records of a run are missing between two that were fed. mandamus doctor walks every chain.",
    ),
    "MDM-0936": (
        "Pruned, with record",
        "The leaf's record was taken out of the log by a written rule. The ledger has it, bundles that were made before still verify, "
        "and the object pruned/ of the log names the rule and every record that went.",
    ),
    "MDM-0937": ("No such size", "A log has sizes from 0 to the one that mandamus log head tells; a larger tree contains a smaller one."),
    "MDM-0938": ("The log's store does not hold what it lists", "Somebody deletes objects of it, or it is not what it promises to be."),
    "MDM-0939": (
        "No such checkpoint yet",
        "The record lies under no checkpoint of the level that was asked for: the log's store or the witnesses do not answer, or none are "
        "named. mandamus log head says how far it is, mandamus witness status who answers.",
    ),
    "MDM-0940": (
        "Nothing may be pruned so",
        "Leaf records go only by a written rule (--retention NAME --ground TEXT), never of a run that can go on, and never of one that is "
        "younger than the floor.",
    ),
}
