"""The pages of `mandamus help CODE`: code -> (title, what it means and what to do). Data, in order; a test holds it against the source.

The rule a newcomer would break: a code, once released, keeps its meaning. The first digit after the zero says whose fault it is: 0 the
command line, 1 and 2 the caller, 3 a rule said no, 4 somebody was first, 5 an engine, 6 evidence, 7 a policy, 8 the demo,
the kits and the templates.
"""

from __future__ import annotations

from mandamus.cli.halts import HALTS

CODES: dict[str, tuple[str, str]] = {
    # -- the command line ------------------------------------------------------------------------------------------------------
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
        "Verbs that read never make one. Name it by --ledger sqlite:///FILE or MANDAMUS_LEDGER, or change into the project's folder.",
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
    # -- wiring, the ledger's form ---------------------------------------------------------------------------------------------
    "MDM-0100": ("The call cannot mean anything", "A caller's mistake without a page of its own; the message names it."),
    "MDM-0110": (
        "No driver for this model",
        "A URI such as openai:NAME, anthropic:NAME or scripted:FILE.json; more schemes can be registered in wiring.MODELS.",
    ),
    "MDM-0111": (
        "No driver for this ledger",
        "sqlite:///relative.db, sqlite:////absolute.db or memory:; more schemes can be registered in wiring.LEDGERS.",
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
        "Up to 256 KiB stand in the ledger, in plain form.",
    ),
    "MDM-0130": ("The ledger's place cannot be used", "A ledger is one file in a folder that exists."),
    "MDM-0131": ("A file of another program", "Choose another name for the ledger; this one is left as it is."),
    "MDM-0132": ("The ledger is full", "It has as many runs, or a run as many records, as its file can number. Begin another file."),
    "MDM-0133": ("No such run", "A message can only be sent to a run that exists: mandamus runs."),
    "MDM-0134": ("The message is too large", "Votes, stops and words to a run have at most 256 KiB."),
    "MDM-0135": ("The ledger is closed", "Open it again; what was committed is there."),
    # -- keys, trust, bundles --------------------------------------------------------------------------------------------------
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
    # -- tools and agents ------------------------------------------------------------------------------------------------------
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
    "MDM-0240": (
        "The ledger belongs to another key",
        "Its log was opened with another key than keys/log.pem beside it. Put that file back; without it the ledger can be read and "
        "verified, not continued: begin another by --ledger sqlite:///NEW.db.",
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
    # -- a rule said no --------------------------------------------------------------------------------------------------------
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
    # -- somebody was first ----------------------------------------------------------------------------------------------------
    "MDM-0400": ("Somebody else was first", "Nothing of this write happened. Read again, then decide again."),
    "MDM-0401": ("The run moved on", "Another process wrote it. Nothing was written here: mandamus show RUN."),
    "MDM-0402": ("An account moved on", "A sum, an allowance or authority changed meanwhile; the action is judged again."),
    "MDM-0403": (
        "The run has a driver",
        "One process drives a run at a time. Wait, or end that process; its lock ends with it. Then mandamus resume RUN.",
    ),
    # -- an engine -------------------------------------------------------------------------------------------------------------
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
    # -- evidence --------------------------------------------------------------------------------------------------------------
    "MDM-0600": ("Evidence does not hold", "A hash, a signature, a commitment or a chain; the message names it."),
    "MDM-0601": ("A record is not canonical", "It does not parse, or two readers could read it differently."),
    "MDM-0602": (
        "A record of a type or version that is not known",
        "A newer mandamus wrote it: use that one. If yours is the newest, somebody changed the record: keep the file as evidence; "
        "`mandamus doctor` tells which runs still hold, and they go on.",
    ),
    "MDM-0610": ("A payload is not the one committed to", "Somebody changed it beside the log. Nothing is done with it."),
    "MDM-0611": (
        "A payload is gone",
        "The record names a value that nobody has any more. A backup of the whole ledger has it; without one the run stays as it is.",
    ),
    "MDM-0612": ("A card is not the one that was asked about", "What would be shown is not what would be signed."),
    "MDM-0620": (
        "A signature envelope is malformed",
        "It is not in its one canonical form.",
    ),
    "MDM-0621": (
        "A signature that does not hold",
        "It must be of a key that was given, over these bytes.",
    ),
    "MDM-0622": (
        "An envelope of another kind",
        "An envelope says what it holds; this one holds something else.",
    ),
    "MDM-0623": ("One key signed twice", "A key counts once, whatever it calls itself."),
    "MDM-0624": ("Too few signatures", "More different keys must have signed."),
    "MDM-0625": ("A key that is not trusted for this", "The trust file says whose signatures count, for what."),
    "MDM-0626": (
        "agent.yaml is not the text that was signed",
        "It is not the agent that was approved. Look at what changed, and have its author sign it again.",
    ),
    "MDM-0630": (
        "Not a message",
        "A message that is not in the one form is refused and recorded.",
    ),
    "MDM-0631": (
        "The ledger's tables contradict each other",
        "Somebody edited the file. Keep it as evidence; restore a whole backup, or, "
        "without one, see by `mandamus doctor` what still holds and begin another ledger: --ledger sqlite:///NEW.db.",
    ),
    "MDM-0632": ("Records are missing", "A chain is dense: somebody removed some. Keep the file as evidence; the other runs go on."),
    "MDM-0640": (
        "A bundle does not hold",
        "The line or event is named; what stands behind it in the chain is proven, what stands before it is not attested.",
    ),
    "MDM-0641": ("An event does not follow the one before it", "Its hash is not the one that the next event names."),
    "MDM-0642": (
        "An event is not the one that its successor, or the signed head, names",
        "Somebody changed it, or the end of the chain was cut.",
    ),
    "MDM-0643": ("An event that cannot stand there", "The life of a run has an order; this step breaks it."),
    "MDM-0644": ("There is no record", "A chain has at least its genesis."),
    "MDM-0645": ("A part of the bundle is not the one signed", "Lines were changed, added or removed."),
    "MDM-0646": ("A line of the bundle is not what it must be", "It is not canonical, belongs to no record, or has another digest."),
    "MDM-0647": ("The signed statement contradicts the bundle", "What was signed says otherwise than the records."),
    "MDM-0648": ("Nothing to verify", "The file is empty or no bundle of ours."),
    "MDM-0649": ("No trust root was given", "Give --trust FILE with a log and a bundle line that reached you another way than the bundle."),
    "MDM-0650": (
        "A log or signer that you do not trust",
        "Its origin or key is not in your trust file. Add it only if you know it from elsewhere.",
    ),
    "MDM-0651": (
        "Authority was widened without its administrators",
        "Enrolments, policies and allowances need signatures of the keys that the log named when it was opened.",
    ),
    "MDM-0652": ("A vote does not count", "Its ballot was signed by somebody else, by a key that is not trusted, or is another one."),
    "MDM-0653": ("A vote for something else", "What was signed is about another action, request, card or policy."),
    "MDM-0654": ("Too few people agreed", "Policy asked for more distinct approvers than voted."),
    "MDM-0655": ("A vote that had ended", "It had expired, was withdrawn, or its allowance was not in force."),
    "MDM-0656": ("A revoked key", "The key was revoked before the judgement that counted its vote."),
    "MDM-0657": ("Accounts do not add up", "Reservations and sums are not what the records say."),
    "MDM-0658": ("The seal names another state", "The records do not lead to the state that was sealed."),
    "MDM-0659": ("A takeover without the log's signature", "Every process that takes a run over signs it with the log's key."),
    "MDM-0660": ("A view is not what the records say", "Views are made from the records; this one was changed."),
    "MDM-0661": ("Another operation id", "The key that the other side saw is not the one of this call."),
    # -- policies --------------------------------------------------------------------------------------------------------------
    "MDM-0680": (
        "The chain does not continue",
        "A record of another place, or a chain that begins with something else than its genesis.",
    ),
    "MDM-0681": (
        "Another epoch",
        "Only a takeover moves the epoch, by one.",
    ),
    "MDM-0682": (
        "Body parts of one name",
        "Parts of a record have different names.",
    ),
    "MDM-0683": (
        "Not a ledger",
        "The file is damaged or of another kind: keep it as evidence; restore a whole backup, or begin another: --ledger sqlite:///NEW.db.",
    ),
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
    # -- the demo --------------------------------------------------------------------------------------------------------------
    "MDM-0800": ("The demo has a ledger of its own", "Choose its folder by --dir."),
    "MDM-0801": ("Not a folder of the demo", "The demo only wipes a folder that holds its own marker. Choose another by --dir."),
    "MDM-0802": ("The demo's folder cannot be written", "Choose another by --dir."),
    "MDM-0803": ("A process of the demo ended early", "Its output stands in the demo's folder."),
    "MDM-0804": ("The demo did not go as it must", "The step is named; please report it."),
    "MDM-0805": ("You did not sign", "So nothing was paid, which is the point."),
    "MDM-0806": ("Nobody gave the word", "A process of the demo waited in vain for the others."),
    "MDM-0810": ("treasury: no store of its own", "Idempotency is the ledger's."),
    "MDM-0811": ("treasury: too short a secret", "A tag under a short secret can be guessed; and it is no evidence."),
    "MDM-0812": ("treasury: a control that cannot fail", "Outside tier dev the kit needs a real screener and no shared-key tags."),
    "MDM-0813": ("treasury: an amount that would be rounded", "Write it in the decimals in which policy counts the currency."),
    "MDM-0814": ("treasury: a part of another form", "An object with the named method, or a function."),
    "MDM-0820": ("No such template", "`mandamus init --help` lists them."),
    "MDM-0821": ("Something is there already", "init never overwrites; choose an empty folder."),
    "MDM-0822": ("A file of the template cannot be written", "What was written before it is left; remove it and choose another folder."),
    # -- why a run may not start ------------------------------------------------------------------------------------
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

# -- why a run halted ----------------------------------------------------------------------------------------------------------
CODES |= {
    code: (f"Halted: {what}", f"To go on: {fix}; then mandamus resume RUN." if "as a new run" not in fix else f"To go on: {fix}.")
    for code, (what, fix) in HALTS.items()
}
