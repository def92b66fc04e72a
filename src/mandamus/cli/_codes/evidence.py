"""Pages of evidence that does not hold (0600): records, payloads, envelopes, bundles, votes.

The rule a newcomer would break: nothing is called proven that was not checked, and the first advice is to keep the file.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

PROOFS: Pages = {
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
    "MDM-0695": (
        "Chain log is not what this process has read",
        "Records of chain log that it had read are gone, or others stand in their place. A server that failed over to a copy without its "
        "last writes does that, and so does whoever restores an old copy; nothing goes on that was begun on the old state. If you know "
        "of a failover, resume the runs. If you do not, keep the ledger as evidence; a witness of heads (MANDAMUS_HEADS) tells which "
        "it was.",
    ),
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
}
