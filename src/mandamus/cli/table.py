"""The whole map of the command line as data: verbs, nouns, aliases, one line each, and where each command lives.

The rule a newcomer would break: nothing is imported here. `mandamus --help` and completion cost no more than this table; a verb
stands in it only when its module does.
"""

from __future__ import annotations

# verb: (module:command, one line)
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("demo:demo", "Play a governed payment from proposal to proof, offline."),
    "init": ("init:init", "Write a project from a template: payout, minimal."),
    "run": ("run:run", "Start an agent and carry its run as far as it goes."),
    "resume": ("run:resume", "Take a run over and carry it on."),
    "cancel": ("stop:cancel", "Ask a run to stop, by a signed request."),
    "runs": ("runs:runs", "List the runs of a ledger."),
    "show": ("runs:show", "One run: its state, whose turn it is, its events."),
    "why": ("why:why", "Why an action was allowed, refused or held."),
    "replay": ("again:replay", "Tell a run again from its record; nothing is executed."),
    "fork": ("again:fork", "A new run that is another one until an event, and live after it."),
    "diff": ("again:diff", "The first divergent proposal of two runs."),
    "worker": ("worker:worker", "Carry due runs of a pool, for the agents that are named."),
    "top": ("top:top", "Runs by state, what waits in each pool, and who works."),
    "inbox": ("inbox:inbox", "What waits for people."),
    "approve": ("vote:approve", "Read the card of a waiting action and sign it."),
    "reject": ("vote:reject", "Sign a no to a waiting action."),
    "settle": ("vote:settle", "Say what became of an action that nobody knows about."),
    "bundle": ("bundle:bundle", "Write the signed proof of a run into a file."),
    "verify": ("bundle:verify", "Check a bundle offline, against your trust file."),
    "forget": ("forget:forget", "Destroy the keys of what is known of a person; proofs stand."),
    "export": ("export:export", "A period of the log, or a bundle as a page, views or a SCITT statement."),
    "certify": ("certify:certify", "Cut the power everywhere in a run of yours, and count its effects."),
    "doctor": ("doctor:doctor", "Check ledger, keys, policies and clock; each finding has its fix."),
    "help": ("helping:help_", "Explain an error code."),
    "schema": ("schema:schema", "Print the JSON Schema of a verb's --json answer."),
    "completion": ("helping:completion", "Print the completion script of a shell."),
}

# noun: (one line, {verb: (module:command, one line)})
NOUNS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "allowance": (
        "Standing votes: what may happen without asking again.",
        {
            "grant": ("allowance:grant", "Sign a standing vote for calls of one tool."),
            "list": ("allowance:list_", "Allowances with what is left of them."),
            "withdraw": ("allowance:withdraw", "End an allowance, at once."),
        },
    ),
    "hold": (
        "Legal holds: what may not be destroyed.",
        {
            "place": ("hold:place", "Keep a subject's data, a run, or everything."),
            "lift": ("hold:lift", "End a hold, signed by the administrator."),
            "list": ("hold:list_", "Holds in force, with their grounds."),
        },
    ),
    "key": (
        "Key files and the trust file of a ledger.",
        {
            "new": ("key:new", "Make a key file of your own."),
            "enroll": ("key:enroll", "Let a key vote as a principal of this ledger."),
            "rotate": ("key_change:rotate", "Let a new key take another's place."),
            "revoke": ("key_change:revoke", "Take a key out of force."),
            "sign": ("key:sign", "Sign a statement as one of the administrators."),
            "trust": ("key:trust", "Print the trust file that an auditor needs."),
            "list": ("key:list_", "Keys and approvers of this ledger."),
        },
    ),
    "ledger": ("The ledger as a whole.", {"copy": ("ledger:copy", "Move runs, accounts and chain log to another ledger.")}),
    "witness": (
        "Those who sign that a log only ever grew.",
        {
            "serve": ("witness:serve", "Be a witness: cosign the checkpoints of other people's logs."),
            "status": ("witness:status", "What the witnesses of this ledger's log know of it."),
        },
    ),
    "log": (
        "The transparency log: every record a leaf, signed, cosigned.",
        {
            "head": ("log:head", "Size and root of the log, its witnesses, and what waits."),
            "query": ("log:query", "Records with the number of their leaf."),
            "prove": ("log:prove", "Write the proof that a record of a run is in the log."),
            "consistency": ("log:consistency", "Prove that the log of NEW leaves begins with that of OLD."),
            "export": ("log_files:export", "Write the log as files that any web server can show."),
            "compact": ("log_files:compact", "Tidy up; by a written rule prune old leaf records."),
        },
    ),
    "manifest": (
        "agent.yaml: what it binds, and its author.",
        {
            "show": ("manifest:show", "What agent.yaml binds and who signed it."),
            "sign": ("manifest:sign", "Sign agent.yaml as its author."),
        },
    ),
}

# Other words for ours; the longest match wins.
ALIASES: dict[str, str] = {
    "inspect": "show",
    "health": "doctor",
    "verify-bundle": "verify",
    "audit verify": "verify",
    "audit replay": "replay",
    "refuse": "reject",
}

# One table for every verb.
EXITS: dict[int, str] = {
    0: "done",
    1: "failed, broken",
    2: "usage, no trust root, nothing to verify",
    3: "refused",
    4: "not finished",
    5: "halted, in doubt, cannot check",
    130: "interrupted",
    143: "ended by SIGTERM",
}


def words() -> list[str]:
    """Everything that may stand first on the line."""
    return [*VERBS, *NOUNS, *(alias.partition(" ")[0] for alias in ALIASES)]


def page() -> str:
    """The text of `mandamus --help`, from the table alone."""
    width = max(len(name) for name in [*VERBS, *NOUNS]) + 2
    rows = ["Usage: mandamus VERB [OPTIONS] ...", "", "Let an agent act, and prove what it did.", "", "Verbs:"]
    rows += [f"  {name.ljust(width)}{line}" for name, (_, line) in VERBS.items()]
    rows += ["", "Administer:"]
    rows += [f"  {name.ljust(width)}{line} ({', '.join(verbs)})" for name, (line, verbs) in NOUNS.items()]
    rows += ["", "Common options of every verb: --json -q -v --debug --no-input --ledger URI --help"]
    rows += ["Exit codes: " + " | ".join(f"{code} {what}" for code, what in EXITS.items())]
    return "\n".join(rows)
