"""Pages of the Postgres ledger (0540 to 0559): the server does not answer, is not safe, or is not ready.

The rule a newcomer would break: no page advises to weaken a setting; what is refused here would lose an acknowledged record one day.
"""

from __future__ import annotations

from mandamus.cli._codes import Pages

POSTGRES: Pages = {
    "MDM-0540": (
        "Postgres does not answer",
        "Nothing was sent, nothing was written. See that the server runs, that this login is accepted, and that one of the hosts in the "
        "URI takes writes: a standby is not asked. Then mandamus resume RUN.",
    ),
    "MDM-0541": (
        "The connection was lost before the answer",
        "The write may have happened. Nothing is done on a guess: the ledger reads the head, writes it once more, and believes it when "
        "that was acknowledged. When a commit waits for a standby that is gone, bring the standby back: SELECT * FROM pg_stat_replication.",
    ),
    "MDM-0542": (
        "A commit that only this server has",
        "Somebody cancelled the wait for the synchronous standby, and Postgres answered success with a warning. That is not believed until "
        "a later write was acknowledged. Never cancel such a wait by hand; repair the standby.",
    ),
    "MDM-0543": (
        "Postgres does not keep a setting",
        "fsync and full_page_writes must be on, synchronous_commit on or remote_apply: with anything less an acknowledged record can be "
        "lost with the power, and its effect has happened. The database is in UTF8, and default_transaction_isolation is read "
        "committed: else a check could miss a revocation that it waited for. Look also for ALTER ROLE and ALTER DATABASE.",
    ),
    "MDM-0544": (
        "A standby, or a server without writes",
        "What a replica shows may be behind, so that a deed could happen twice. Name the primary, or all hosts: "
        "postgres://worker@one:5432,two:5432/books finds the one that takes writes.",
    ),
    "MDM-0545": ("A Postgres that is too old", "Version 14 or newer."),
    "MDM-0546": (
        "The ledger's tables are not made",
        "Whoever owns the schema opens the ledger once: that makes the tables, and the role that writers are members of. "
        "Then GRANT mandamus TO worker (the role is called like the schema).",
    ),
    "MDM-0547": (
        "Tables of another version",
        "Newer tables belong to a newer mandamus: use that one. The same version with another digest was not made by our files, and may "
        "lack a guard: compare with the ledger of a fresh schema.",
    ),
    "MDM-0548": (
        "No synchronous standby",
        "The URI says sync=required, and the server has no synchronous_standby_names. With an asynchronous copy a failover can lose "
        "acknowledged records: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (a, b)'.",
    ),
    "MDM-0549": ("A login without the rights", "GRANT mandamus TO worker: the role is called like the ledger's schema."),
    "MDM-0551": (
        "A login that may change evidence",
        "Outside dev, workers log in as a member of the schema's role, which may add and read records and nothing else. The owner of the "
        "tables is somebody else, and is needed for migrations only.",
    ),
    "MDM-0552": ("Postgres refused a statement", "It was rolled back whole. The server's log has the words."),
    "MDM-0553": (
        "Other writers stood in the way each time",
        "Nothing was written. Try again; if it stays so, look at pg_stat_activity for a transaction that does not end.",
    ),
}
