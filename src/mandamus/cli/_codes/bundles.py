"""Pages of what a bundle shows and proves besides its records (0662 to 0679): payloads, checkpoints, children, periods, exports.

The rule a newcomer would break: a page tells an auditor what it means for him, before it tells anybody how to repair it.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

SHOWN: Pages = {
    "MDM-0662": (
        "A payload is gone without a record, or there in spite of one",
        "What is erased is said to be erased by a record of chain log. Without one somebody took it away; with one it should not be here.",
    ),
    "MDM-0663": (
        "A receipt of another form",
        "A statement or a receipt that was exported for SCITT does not hold together; export it again from the bundle.",
    ),
    "MDM-0664": (
        "A record is not in the log",
        "Its proof does not lead to the root that was signed, or its place in the log contradicts what it says. Ask for the bundle anew; "
        "if it is the same, the log does not hold what was shown to you.",
    ),
    "MDM-0665": (
        "Proof lines that this bundle does not ask for",
        "Which proofs stand in a bundle, and in what order, is written in the bundle format. This one was put together otherwise.",
    ),
    "MDM-0666": (
        "A cosignature older than what it covers",
        "A witness cannot have seen a record before it was written. Either its clock or the record's was wrong by more than five minutes.",
    ),
    "MDM-0667": (
        "A child's seal says something else",
        "The run rests on the outcome of another run, and that one ended otherwise, or is another one.",
    ),
    "MDM-0668": (
        "Not an entry of the public log",
        "The proof of the anchor does not lead to a checkpoint that the public log signed, or is about something else.",
    ),
    "MDM-0669": (
        "A time stamp that does not hold",
        "It is over other bytes, by another authority than the root you gave, or its time cannot be. The bundle may hold without it: "
        "verify it without --tsa.",
    ),
    "MDM-0670": (
        "A split view",
        "The log showed two different trees: one to you and another to somebody else, or to you on another day. Keep both: two signed "
        "checkpoints that contradict each other prove it to anybody.",
    ),
    "MDM-0671": (
        "The log is smaller than it was",
        "What you have seen before is not there any more: it was rolled back, or you were given an old bundle. If it is an old one, "
        "--log DIR with the log's files shows that both are of one log.",
    ),
    "MDM-0672": (
        "Erased during a legal hold",
        "A hold was in force on this run, and its payloads were destroyed. Nothing can bring them back; the records tell when and by whom.",
    ),
    "MDM-0673": (
        "An effect before its evidence",
        "Policy wanted the proposal sealed or witnessed before the effect, and no record says that it was.",
    ),
    "MDM-0674": (
        "A hole in the register",
        "Every run takes the next number. One is missing, doubled, or does not link to the one before: a run was left out of the period.",
    ),
    "MDM-0675": (
        "Leaves that belong to no run shown",
        "The log grew by more records than the runs of the period have, or other ones: something that was recorded is not shown.",
    ),
    "MDM-0676": (
        "Another verdict",
        "The policy, asked again with the recorded facts, answers something else than what was recorded.",
    ),
    "MDM-0677": (
        "Nothing to export",
        "The message says what is missing. An export is made of a bundle that holds; a signature that its own verifier could forge (HMAC) "
        "is never exported as evidence.",
    ),
    "MDM-0678": (
        "Not the file of what was seen last",
        "It is damaged or of another kind. It is not taken for a first look: that would hide a rollback.",
    ),
    "MDM-0679": (
        "The log's files are not whole",
        "A tile or a bundle of records that is needed is not in the folder. Take a whole copy: mandamus log export DIR.",
    ),
}
