"""Pages of witnessed heads and of ledgers that move (0290, 0405, 0516, 0690).

The rule a newcomer would break: a rollback is never repaired by taking the witness away. What is missing was done in the world.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

_LOSS = (
    "Keep the ledger as it is: it is evidence. Put the newest whole copy back, or the database server that was newer. If there is none, "
    "the witness says how far each chain had come: settle by hand what is missing, then begin another ledger."
)
HEADS: Pages = {
    "MDM-0290": (
        "No such witness",
        "MANDAMUS_HEADS names the store that is told where chains stand: file:///FOLDER/heads.jsonl or postgres://USER@HOST/DB.",
    ),
    "MDM-0291": (
        "The target ledger has a life of its own",
        "A ledger moves into an empty one, into one whose copy is unfinished, or back to where it came from.",
    ),
    "MDM-0292": (
        "Another chain of the same name",
        "The target holds records under this name that are not the source's. Nothing of it was changed: name a new target.",
    ),
    "MDM-0294": (
        "Keys that do not belong to the ledger",
        "A ledger's name is bound to its log key, so it moves with its keys: --with-keys copies them, or copy the folder yourself.",
    ),
    "MDM-0405": (
        "It is driven on another ledger",
        "A run that was copied is driven where it was copied to. If that copy is unfinished, the same command carries it on.",
    ),
    "MDM-0406": (
        "An action is in flight",
        "A lease that ran out proves no death: whoever sent it may still be about to. Resume the run where it is until that is settled.",
    ),
    "MDM-0407": ("The source was written to meanwhile", "The target is not in service yet: the same command brings what came late."),
    "MDM-0516": (
        "The witness of heads does not answer",
        "Runs go on; a rollback of the ledger would not be noticed until it answers. What it missed it is told then.",
    ),
    "MDM-0517": (
        "Mail cannot be carried on",
        "The target numbers mail below the place that the run has read to: later messages would never be read.",
    ),
    "MDM-0690": ("The ledger was rolled back", _LOSS),
    "MDM-0691": ("Another record stands where the witness saw one", _LOSS),
    "MDM-0692": ("A chain that the witness saw is gone", _LOSS),
    "MDM-0693": (
        "The target gives back something else",
        "What was written to it was read back and held against the source. The target is not put in service; the source holds everything.",
    ),
}
