"""Pages of a "no" or of nothing: a rule refused (0300), somebody was first (0400), an engine or the ledger did not answer (0500).

The rule a newcomer would break: a page tells the lawful way on, never a way around the no.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

REFUSED: Pages = {
    "MDM-0300": ("Refused", "A rule said no. Nothing was done."),
    "MDM-0310": (
        "The run may not start",
        "Every reason stands there at once, each with its articles and its fix. `mandamus doctor AGENT` tells them without starting.",
    ),
    "MDM-0320": (
        "A tool's own call was refused",
        "ctx.invoke proposes like a model does; the inner action was denied, rejected or cancelled.",
    ),
    "MDM-0321": (
        "A call that is over asked for more",
        "Its run was stopped, or another owner took it over: nothing more is recorded for it, so nothing is handed out.",
    ),
    "MDM-0330": (
        "What you see would not be what you sign",
        "Request, card and stored arguments do not agree; nothing was signed. Somebody may have changed the ledger: tell whoever runs it.",
    ),
    "MDM-0331": ("Another digest than you consented to", "The action is not the one you looked at. Read its card again."),
    "MDM-0332": ("Voted already", "A principal is one voter, with however many keys. What is missing are votes of other people."),
    "MDM-0333": ("No approver of this ledger", "A vote counts by its key: `mandamus key enroll`, by whoever runs the ledger."),
    "MDM-0334": (
        "The request has expired",
        "An answer after the deadline is none. `mandamus resume RUN` judges the action again, with nobody's answer as a fact.",
    ),
    "MDM-0335": ("Who asks does not approve", "Separation of duties: somebody else of the chain votes."),
    "MDM-0336": ("You did not sign", "Nothing was sent; the request still waits."),
    "MDM-0337": ("Must be asked for each time", "No allowance covers what cannot be taken back or needs privilege."),
    "MDM-0338": ("Enrolled already", "The key stands in the trust file: mandamus key list."),
    "MDM-0339": (
        "Not of the chain that is asked",
        "The chain counts certain roles or people only: mandamus key enroll --principal ID --role ROLE --key FILE, then vote again.",
    ),
    "MDM-0340": (
        "An action is unknown and unsettled",
        "A cancelled run would hide that. Find out what happened and say so: mandamus settle ACTION --done|--again|--abandon.",
    ),
}

FIRST: Pages = {
    "MDM-0400": ("Somebody else was first", "Nothing of this write happened. Read again, then decide again."),
    "MDM-0401": ("The run moved on", "Another process wrote it. Nothing was written here: mandamus show RUN."),
    "MDM-0402": ("An account moved on", "A sum, an allowance or authority changed meanwhile; the action is judged again."),
    "MDM-0403": (
        "The run has a driver",
        "One process drives a run at a time. Wait, or end that process; its lock ends with it. Then mandamus resume RUN.",
    ),
}

ENGINES: Pages = {
    "MDM-0500": (
        "Something that must answer did not",
        "The run halts and can be resumed; nothing is ever allowed because an engine failed.",
    ),
    "MDM-0504": ("A policy without a digest", "A verdict of an unknown policy is no verdict."),
    "MDM-0510": ("The ledger does not answer", "Without a durable log nothing is done. Mend it, then mandamus resume RUN."),
    "MDM-0511": ("The ledger file is locked", "Another process holds it for long: `lsof FILE` names it. End it, then mandamus resume RUN."),
    "MDM-0512": ("The disk is full", "Free some space, then resume."),
    "MDM-0513": (
        "The ledger file failed",
        "A read or write failed. Check the disk, then resume: nothing is believed before the file was opened again.",
    ),
    "MDM-0514": (
        "The ledger cannot prove what is on the disk",
        "After a failed write everything must be flushed once more; try again when the disk works.",
    ),
    "MDM-0515": (
        "The lock of runs cannot be taken",
        "The file beside the ledger says who drives a run. Its folder must be writable, on a local disk.",
    ),
    "MDM-0520": (
        "The policy engine hides errors",
        "This version of Cedar does not report a policy that fails; a skipped forbid would allow: pip install 'cedarpy>=4.12'.",
    ),
    "MDM-0521": ("A rule in code changed", "Its digest stands in records. Load the agent again."),
    "MDM-0522": ("The ledger file is read-only", "Give the process the right to write it, or read with another tool."),
    "MDM-0523": ("The ledger file does not keep a setting", "Without it a commit would not survive a power cut."),
    "MDM-0524": ("The ledger file cannot be opened", "Check that the folder may be written to."),
    "MDM-0525": ("A network file system", "Its locks and flushes cannot be relied on. Put the ledger on a local disk."),
    "MDM-0526": ("A ledger of a newer version", "It was written by a newer mandamus. Use that one; nothing was changed."),
}

# Why a run may not start: reasons, not codes.
STARTS: Pages = {
    "basis_missing": ("No lawful basis", "A tool touches personal data; GDPR Art. 6 asks for a basis: lawful_basis=... on the agent."),
    "basis_mismatch": (
        "Another lawful basis than the data allows",
        "Tool and retention name the bases that fit; the agent's is not among them.",
    ),
    "retention_missing": ("No retention policy", "Data other than public names how long it is kept; GDPR Art. 5(1)(e)."),
    "purpose_missing": ("No purpose", "Personal data is used for a stated purpose; GDPR Art. 5(1)(b)."),
    "oversight_missing": (
        "No living approval chain",
        "High-risk use needs people who can stop it; AI Act Art. 14. Name oversight= and enrol its approvers.",
    ),
    "art22_unguarded": ("A decision about a person without a person", "GDPR Art. 22: give the agent an approval chain as oversight=."),
    "noop_control": ("A control that cannot fail", "A chain with a quorum of 0 asks nobody."),
    "art9_missing": ("No basis for special data", "GDPR Art. 9(2): the tool's data class names art9_basis=..."),
    "subject_missing": ("Nobody said whose data it is", 'The data class of the tool names the argument: subject=subject("NAME").'),
    "definition_changed": (
        "Another agent than the run began with",
        "High-risk use and decisions about people are carried on by the agent as it was: put it back, or begin anew: "
        "mandamus fork RUN --at 0.",
    ),
    "manifest_drift": (
        "Not what agent.yaml or the run binds",
        "- is what was bound, + what is there now. Put it back as it was; if it is meant, write the new value into agent.yaml, sign it "
        "again, and begin a new run: mandamus fork RUN --at 0.",
    ),
    "manifest_unsigned": (
        "No trusted author of agent.yaml",
        "Its author signs: mandamus manifest sign agent.yaml --key FILE; who trusts that key: mandamus key trust --add 'author NAME VKEY'.",
    ),
    "isolation_missing": ("No sandbox in this tier", "Outside tier dev tools must run isolated; this machine runs them in process."),
    "dev_default": ("default: allow", "Only in tier dev, and never beside financial or privileged tools."),
}
