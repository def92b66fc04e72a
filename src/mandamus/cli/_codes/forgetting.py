"""Pages of forgetting: keys of sealed payloads, erasures, holds.

The rule a newcomer would break: erased is not broken. What somebody had the right to have destroyed is told apart from what is lost.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

FORGETTING: Pages = {
    "MDM-0960": (
        "It was erased",
        "Its key was destroyed, on a ground that chain log names (event Erased). The record, the chain and every proof stand; "
        "the value can be "
        "read by nobody any more. A run that needs it cannot go on: begin a new one.",
    ),
    "MDM-0961": (
        "No key store",
        "MANDAMUS_KEYS=sqlite:///FILE names the file of the keys, postgres://USER@HOST/DB?schema=NAME a store that several hosts share. It "
        "must be one of ours, or a new one.",
    ),
    "MDM-0962": (
        "The keys of another log",
        "A key store belongs to one log: who is forgotten there would be forgotten elsewhere without a record. Give each log a "
        "file of its own.",
    ),
    "MDM-0963": (
        "It is being forgotten, or was",
        "An erasure takes this run's keys, so nothing more is written to it and nothing continues it. Begin a new run, without --thread.",
    ),
    "MDM-0964": (
        "The key-encryption key",
        "MANDAMUS_KEK names a file of 64 hex digits, mode 0600, that wraps the keys of the key store. It must be the one that "
        "the store was made "
        "with; a store that was made without one is opened without one.",
    ),
    "MDM-0965": (
        "Bytes of a destroyed key are left",
        "After each erasure the key store is searched for what was deleted. Something was left, so nothing is called erased: run "
        "mandamus forget "
        "--resume; if that says the same, keep the file from everybody and ask for help.",
    ),
    "MDM-0966": (
        "The key store cannot be used",
        "It is locked, full or not writable; or its server does not answer, refuses the login, or is not safe to keep keys on. Nothing is "
        "sealed, opened or erased meanwhile.",
    ),
    "MDM-0967": (
        "Others can read the key store",
        "chmod 600 FILE. Who could read it may hold keys of what will be forgotten: keep that in mind.",
    ),
    "MDM-0968": (
        "A wrapped key was changed",
        "It does not unwrap under MANDAMUS_KEK. Restore the key store; the erase list is replayed then.",
    ),
    "MDM-0969": (
        "A sealed payload, and no key",
        "Either the key store that is named is not the one that this ledger was written with, or an erasure has taken the key "
        "out of use: for its "
        "time of grace, or while a legal hold keeps it. mandamus hold list; MANDAMUS_KEYS=sqlite:///FILE.",
    ),
    "MDM-0970": ("A ledger without chain log", "Sealing binds payloads to the log's name. wiring.open_env begins chain log."),
    "MDM-0971": (
        "No key of this run here",
        "It was written by a host with another key store. Workers of one ledger share one: MANDAMUS_KEYS=sqlite:///FILE on "
        "one host, postgres://… on several.",
    ),
    "MDM-0972": (
        "No key store at this ledger",
        "Nothing was ever sealed here, so nothing can be forgotten: no agent that ran declares personal, special_category or "
        "confidential data, "
        "or a subject. If the keys lie elsewhere, name them: MANDAMUS_KEYS=sqlite:///FILE.",
    ),
    "MDM-0973": (
        "There is no such erasure",
        "mandamus forget --resume lists and carries on what is not done; chain log holds all of them.",
    ),
    "MDM-0974": ("It cannot be taken back", "Only within its time of grace (--grace), and only before its keys were destroyed."),
    "MDM-0975": ("There is no such hold", "mandamus hold list shows those in force."),
    "MDM-0977": (
        "Two key stores",
        "A copy takes sealed payloads along as they are and leaves the keys where they lie: both name one key store, by MANDAMUS_KEYS "
        "or by the file keystore.at that the copy writes beside the target's keys.",
    ),
    "MDM-0976": (
        "What forget and hold are asked",
        "Exactly one of the options that say what: see mandamus forget --help, mandamus hold place --help.",
    ),
}
