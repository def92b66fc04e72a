"""Pages of what a caller wrote or called: wiring and keys (0100), tools, agents and tests (0200), policies and manifests (0700).

The rule a newcomer would break: a page names the form that is right; one that only says what is wrong sends its reader to the source.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

# Wiring, the ledger's form.
WIRING: Pages = {
    "MDM-0100": ("The call cannot mean anything", "A caller's mistake without a page of its own; the message names it."),
    "MDM-0110": (
        "No driver for this model",
        "A URI such as openai:NAME, anthropic:NAME or scripted:FILE.json; more schemes can be registered in wiring.MODELS.",
    ),
    "MDM-0111": (
        "No driver for this ledger",
        "sqlite:///relative.db, sqlite:////absolute.db, postgres://USER@HOST/DATABASE, nats://HOST/NAME or memory:; more schemes can be "
        "registered in wiring.LEDGERS.",
    ),
    "MDM-0112": (
        "The driver of this ledger is not installed",
        "Postgres and NATS each have an extra: pip install 'mandamus[postgres]' or 'mandamus[nats]'.",
    ),
    "MDM-0120": (
        "A record that is too large",
        "At most 65,535 bytes; large values belong into payloads.",
    ),
    "MDM-0121": (
        "A payload without its record",
        "Payloads are sent once, in the append of the record that commits to them.",
    ),
    "MDM-0122": (
        "A record without its payload",
        "Both travel in one append.",
    ),
    "MDM-0123": (
        "An append that opens nothing",
        "A run begins with its genesis and has a name of letters, digits, _ and -.",
    ),
    "MDM-0124": (
        "A payload that the ledger cannot hold",
        "Up to 256 KiB stand in the ledger, plain or sealed whole.",
    ),
    "MDM-0125": (
        "What could never be erased again",
        "Postgres and NATS keep what they were given for ever, so they take payloads sealed only: a key that is destroyed forgets them. "
        "`MANDAMUS_KEYS=sqlite:///keys.db` names the key store. On chain `log` what is public or business stays plain, for every verifier.",
    ),
    "MDM-0130": ("The ledger's place cannot be used", "A ledger is one file in a folder that exists."),
    "MDM-0131": ("A file of another program", "Choose another name for the ledger; this one is left as it is."),
    "MDM-0132": ("The ledger is full", "It has as many runs, or a run as many records, as its file can number. Begin another file."),
    "MDM-0133": ("No such run", "A message can only be sent to a run that exists: mandamus runs."),
    "MDM-0134": ("The message is too large", "Votes, stops and words to a run have at most 256 KiB."),
    "MDM-0136": ("How long a lease lasts", "MANDAMUS_LEASE_MS is a number of milliseconds, from 1000 to 3600000; the default is 15000."),
    "MDM-0135": ("The ledger is closed", "Open it again; what was committed is there."),
}

# Addresses of models, keys, trust, bundles.
KEYS: Pages = {
    "MDM-0170": (
        "A base URL that cannot be used",
        "Scheme, host and path, without query.",
    ),
    "MDM-0171": (
        "A login in a URL",
        "Keys of models are named env:NAME, never written into an address.",
    ),
    "MDM-0172": (
        "A key would be sent unencrypted",
        "A model's key is sent over https only, except to this machine.",
    ),
    "MDM-0173": (
        "A key written out",
        "A model's key is named env:NAME, or given by a function.",
    ),
    "MDM-0174": (
        "An address without a model",
        "scheme:MODEL or scheme+https://host/v1#MODEL.",
    ),
    "MDM-0175": (
        "An option of a model's address",
        "It is unknown, given twice, or has another value than it may have.",
    ),
    "MDM-0176": (
        "`extra` would replace what the runtime sends",
        "Leave those names out: prompt, tools and model are the runtime's.",
    ),
    "MDM-0177": (
        "The script of a model cannot be read",
        "A JSON list; each step is text, or an object of text, calls, faults, stop and usage.",
    ),
    "MDM-0180": (
        "Not a usable public key",
        "Copy the whole line that `mandamus key new` printed: name+id+key. Keys that any signature satisfies are refused.",
    ),
    "MDM-0181": ("A line of the trust file cannot be read", "The place is file:line; the fix shows the form of that line."),
    "MDM-0182": ("Not a trust file", "It is text, and small. `mandamus key trust -o FILE` writes one."),
    "MDM-0183": ("One key on two lines", "One signature could then count for two things. Make a second key."),
    "MDM-0184": (
        "A ballot that contradicts itself",
        "What is signed names an action and its request, or stands for a class of them, never both.",
    ),
    "MDM-0185": ("A message that cannot be sent", "It is too large, or holds something that has no canonical form."),
    "MDM-0186": ("No bundle can be made", "A bundle is made of one run that has records; each line of it has its limit."),
    "MDM-0190": ("The key file cannot be opened", "Check the path and its owner. `mandamus key new FILE --name NAME` makes one."),
    "MDM-0191": (
        "Not a key file, or another passphrase",
        "`mandamus key new FILE --name NAME` makes one. The passphrase is asked for, or taken from MANDAMUS_KEY_PASSPHRASE.",
    ),
    "MDM-0192": (
        "Others can read the key file",
        "Who could read it may have signed with it. chmod 600 mends the mode; if somebody may have read it, make a new key.",
    ),
    "MDM-0193": ("A key is never overwritten", "Choose another name."),
    "MDM-0195": (
        "verify: the files cannot be read",
        "mandamus verify BUNDLE --trust TRUST. The trust file comes from the owner of the log, not with the bundle.",
    ),
}

# Tools and agents, replay and fork, tests and certify.
AGENTS: Pages = {
    "MDM-0201": ("Safety class of a tool", "One of read, write, network, financial, privileged; it is required."),
    "MDM-0202": ("Effect class of a tool", "One of read, idempotent, keyed, reconcilable, irreversible; left out it is irreversible."),
    "MDM-0203": (
        "Data class of a tool",
        "One of mandamus.data: Public, Business, Personal, SpecialCategory, Confidential; it is required.",
    ),
    "MDM-0204": (
        "Money or power that could be repeated",
        "A financial or privileged tool is keyed, reconcilable or irreversible: a repeat would be a second deed.",
    ),
    "MDM-0205": ("A writing tool with effect read", "One of the two is wrong."),
    "MDM-0206": ("Reconcilable without a reconciler", "Give reconcile=... with async find(operation_id) -> Found, Absent or Unclear."),
    "MDM-0207": ("A tool without description", "Write a docstring: the model and the approver read it."),
    "MDM-0208": ("The data subject is none of the arguments", 'subject("NAME") names the argument that says whose data it is.'),
    "MDM-0209": ("A data class that cannot be made", "A field is missing or has another value; the articles behind it are named."),
    "MDM-0210": (
        "An argument without a usable type",
        "Every argument has a type that can be imported at module level; the schema is made of it.",
    ),
    "MDM-0211": (
        "A value without a JSON form",
        "Arguments and results are made of text, whole numbers, flags, Money, lists, objects and Structs of them.",
    ),
    "MDM-0212": ("Not a duration", "Such as 30s, 5m or 1h."),
    "MDM-0213": ("Retry", "At least one attempt, and a back-off of zero or more milliseconds."),
    "MDM-0214": ("A named argument that does not exist", "amount= and counterparty= name arguments of the tool."),
    "MDM-0215": ("The name of a tool", "1 to 64 letters, digits, _ and -: models and policies name it."),
    "MDM-0216": (
        "A budget that allows nothing",
        "turns and denials are 1 or more, retries 0 or more; cost needs the price of the model, in its currency, here and in agents below.",
    ),
    "MDM-0217": ("No such guardrail point", "before_turn, input, tool_result, output or after_turn."),
    "MDM-0218": ("An agent is frozen", "Make another Agent(...): what was judged must stay what it was."),
    "MDM-0219": ("The name of an agent", "1 to 100 printable characters."),
    "MDM-0220": ("Unknown time zone", "An IANA name such as Europe/Berlin; limits per day are counted in it."),
    "MDM-0221": ("Not a tool", "Put @tool(safety=..., data=...) above the function, or use Tool.of(fn, ...)."),
    "MDM-0222": ("Two tools of one name", "The second would shadow the first; names differ by more than case."),
    "MDM-0223": ("A field of an agent", "It has another form than it must have; the message says which."),
    "MDM-0224": ("A text of an agent", "It must be text that can be written down: no lone surrogates, of limited length."),
    "MDM-0225": ("deps is no factory", "module:function, made inside the tool's process; no live object crosses the boundary."),
    "MDM-0226": ("A list of an agent", "It is a list of something else than it must hold; the message says of what."),
    "MDM-0227": ("Not a model", "A URI such as openai:NAME, or an object with generate()."),
    "MDM-0228": (
        "The output type has no JSON form",
        "A final answer is parsed strictly: use str, int, bool, lists, dicts or a Struct of them.",
    ),
    "MDM-0229": ("No such event type", "`mandamus show RUN --events` prints the types; the docs list them all."),
    "MDM-0230": ("A secret is not set", "Set the variable that the message names; a secret is never written into code or the log."),
    "MDM-0231": (
        "A tool asked for something else on its repeat",
        "What a tool takes from ctx is recorded and handed out again in the same order; keep that order fixed.",
    ),
    "MDM-0232": (
        "An argument that is missing or unknown",
        "@tool(...) and Agent(...) take keywords; the message names the argument, and the nearest one that exists.",
    ),
    "MDM-0233": (
        "A secret in plain would be recorded",
        "Arguments of ctx.invoke and ctx.handoff and notes stand in the ledger. Let the tool that needs it read its own ctx.secrets.",
    ),
    "MDM-0234": (
        "What a tool asks for cannot be recorded",
        "ctx.note takes JSON of at most 256 KiB, ctx.random at most 65,536 bytes: what a tool hears of is recorded first.",
    ),
    "MDM-0240": (
        "The ledger belongs to another key",
        "Its log was opened with another key than keys/log.pem beside it. Put that file back; without it the ledger can be read and "
        "verified, not continued: begin another by --ledger sqlite:///NEW.db.",
    ),
    "MDM-0242": (
        "A key of this ledger is not here",
        "Its log names the keys that it began with. On the machine of a worker only keys/log.pem need stand; what the administrator or "
        "the bundle key signs is done where that key lies. No new one is made in its place.",
    ),
    "MDM-0250": ("No such run", "`mandamus runs` lists them; --ledger names another ledger."),
    "MDM-0251": ("No such thread", "A thread is named by a run of the same ledger."),
    "MDM-0252": (
        "Not a vote",
        "approvals= takes signed votes. A name or an address is no evidence that anybody agreed: mandamus approve ID --key FILE.",
    ),
    "MDM-0253": ("A run of another agent", "Resume it with the agent that opened it."),
    "MDM-0254": ("Not a user", "An opaque principal, or an object of principal and roles, from a login; never from the prompt."),
    "MDM-0260": (
        "The record cannot be followed by itself",
        "Replay met an event that nothing before it leads to.",
    ),
    "MDM-0261": (
        "Not what can be replayed",
        "A run can, chain log cannot.",
    ),
    "MDM-0262": (
        "The run has no such event",
        "--at takes the number of an event of the run: mandamus show RUN --events.",
    ),
    "MDM-0263": (
        "A fork cannot begin there",
        "The event belongs together with the one before it; the message names a place that works.",
    ),
    "MDM-0264": (
        "An action of the parent is in the air there",
        "Choose an event before its intent or behind its outcome: effects of the parent are never repeated.",
    ),
    "MDM-0265": (
        "The parent does not follow again",
        "With this agent the recorded inputs lead elsewhere; fork earlier, or look with: mandamus replay RUN.",
    ),
    "MDM-0270": ("A golden trace's name", "A plain file name; it stands in golden/ beside the test."),
    "MDM-0271": ("Too late to enrol", "Approvers of a test are enrolled before its first turn."),
    "MDM-0272": ("Nobody can vote there", "In a test: enrol the approver first, and vote on an action that waits."),
    "MDM-0273": ("There was no turn yet", "Call turn() before asking what it led to."),
    "MDM-0280": (
        "A certified run does not end",
        "It does the same again and again, or waits for what nobody gives.",
    ),
    "MDM-0281": (
        "Too many places to cut",
        "A certified run has a limit of places; give it a shorter script.",
    ),
    "MDM-0282": (
        "A certified agent asks a provider",
        "Give it a scripted model: hundreds of runs are made, each must say the same.",
    ),
    "MDM-0283": (
        "certify: no such file or module",
        "FILE.py, FILE.py:attr, module:attr, agent.yaml, or a folder that holds one of them.",
    ),
    "MDM-0284": (
        "certify: the file does not run",
        "The message names the error; nothing was certified.",
    ),
    "MDM-0285": (
        "certify: which agent?",
        "Name an Agent, or a function that makes one: mandamus certify FILE.py:NAME.",
    ),
}

POLICIES: Pages = {
    "MDM-0720": ("A rule cannot be read", "An unknown key or kind; the place is file:line:column, the suggestion the nearest word."),
    "MDM-0721": ("A setting of a rule", "It has another form or range; the message says which."),
    "MDM-0722": ("A rule or chain of that name exists", "Records name rules by id; each stands once."),
    "MDM-0723": ("A rule names no tool of this agent", "It would never apply. Check the spelling."),
    "MDM-0724": ("An approval chain that cannot work", "Nobody could ever approve, or the chain does not exist."),
    "MDM-0730": ("A YAML file cannot be read", "UTF-8, and of limited size."),
    "MDM-0731": ("Not YAML", "One document per file; the place is where reading stopped."),
    "MDM-0732": (
        "YAML that is not read",
        "Anchors, merges, tags and keys that are no text: two readers read them differently. Write the values out.",
    ),
    "MDM-0733": ("A key is there twice", "One of the two values would be lost."),
    "MDM-0740": (
        "No policies there",
        "Name a folder with *.cedar or rules.yaml, a file, or rules as {rule, params}. Without any, nothing is permitted.",
    ),
    "MDM-0741": ("A tool's name that policies cannot tell apart", "Rename the tool."),
    "MDM-0742": (
        "A policy does not fit the tools and facts",
        "It reads a fact that does not exist, or compares different types. Nothing starts on half a policy.",
    ),
    "MDM-0743": ("Not Cedar", "The place is where reading stopped."),
    "MDM-0744": ("A policy without a usable @id", "Records name the rule that decided."),
    "MDM-0745": ("An annotation that would promise what does not hold", "It is unknown, or stands where it means nothing."),
    "MDM-0746": ("A policy that asks and never looks at the answer", "After people agreed it would ask again for ever: test people.met."),
    "MDM-0747": ("Rules in YAML need a reader", "Load them by Agent(policies=[...]), which brings one."),
    "MDM-0750": ("Not a rule", "@rule(id, text) over a plain function of the facts."),
    "MDM-0751": ("A rule that has no digest", "Its source must be readable and hold its constants itself."),
    "MDM-0760": ("agent.yaml cannot be read so", "An unknown key or a value of another form; the place is file:line:column."),
    "MDM-0761": ("Code that agent.yaml or a command names", "module:attr or FILE.py:attr; it does not exist, or fails while it is read."),
    "MDM-0762": ("A file that agent.yaml names", "It cannot be read, or is not the one whose digest is bound."),
    "MDM-0763": (
        "agent.yaml binds too little to be signed",
        "A signature would hold for other tools, policies or instructions. `mandamus manifest show FILE` prints the lines to write in.",
    ),
}
