-- The tables of one ledger file. Numbered files are applied in order, each in one transaction, and never changed once released.
--
-- A record's place is one integer, its *spot*: number of the run << 33 | seq << 5 | ordinal of the part (0 for the record itself).
-- Rows are then appended at the end of a rowid tree and inserted by a comparison of integers.

CREATE TABLE head (
    no          INTEGER PRIMARY KEY,
    run         TEXT    NOT NULL UNIQUE,
    seq         INTEGER NOT NULL,
    hash        BLOB    NOT NULL,
    epoch       INTEGER NOT NULL,
    owner       TEXT    NOT NULL DEFAULT '',
    lease_until INTEGER NOT NULL DEFAULT 0,
    wake_at     INTEGER,
    mail        INTEGER NOT NULL DEFAULT 0,
    prio        INTEGER NOT NULL DEFAULT 0,
    tries       INTEGER NOT NULL DEFAULT 0,
    state       TEXT    NOT NULL DEFAULT 'open'
) STRICT;

-- Only runs that will wake stand in it, and it is written only when the instant changes.
CREATE INDEX head_due ON head (wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE event (
    spot INTEGER PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;

CREATE TABLE payload (
    spot  INTEGER PRIMARY KEY,
    part  TEXT NOT NULL,
    form  TEXT NOT NULL,
    bytes BLOB NOT NULL
) STRICT;

CREATE TABLE mailbox (
    id   INTEGER PRIMARY KEY,
    run  INTEGER NOT NULL REFERENCES head (no),
    key  BLOB NOT NULL,
    body BLOB NOT NULL,
    UNIQUE (run, key)
) STRICT;
CREATE INDEX mailbox_order ON mailbox (run, id);

CREATE TABLE account (
    id       TEXT PRIMARY KEY,
    version  INTEGER NOT NULL,
    hash     TEXT    NOT NULL,
    reserved INTEGER NOT NULL,
    spent    INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE delta (
    id      TEXT    NOT NULL,
    version INTEGER NOT NULL,
    run     TEXT    NOT NULL,
    seq     INTEGER NOT NULL,
    body    BLOB    NOT NULL,
    PRIMARY KEY (id, version)
) STRICT, WITHOUT ROWID;

-- For people with a database shell.
CREATE VIEW records AS
    SELECT head.run, event.spot >> 5 & 268435455 AS seq, CAST(event.body AS TEXT) AS record FROM event JOIN head ON head.no = event.spot >> 33;
CREATE VIEW payloads AS
    SELECT head.run, payload.spot >> 5 & 268435455 AS seq, payload.part, payload.form, length(payload.bytes) AS size
    FROM payload JOIN head ON head.no = payload.spot >> 33;

-- Evidence is written once. (Whoever drops these triggers still breaks the chain.)
CREATE TRIGGER event_never_changes BEFORE UPDATE ON event BEGIN SELECT raise(ABORT, 'records are never changed'); END;
CREATE TRIGGER event_never_leaves BEFORE DELETE ON event BEGIN SELECT raise(ABORT, 'records are never deleted'); END;
CREATE TRIGGER payload_never_changes BEFORE UPDATE ON payload BEGIN SELECT raise(ABORT, 'payloads are never changed'); END;
CREATE TRIGGER payload_never_leaves BEFORE DELETE ON payload BEGIN SELECT raise(ABORT, 'payloads are never deleted'); END;
CREATE TRIGGER delta_never_changes BEFORE UPDATE ON delta BEGIN SELECT raise(ABORT, 'deltas are never changed'); END;
CREATE TRIGGER delta_never_leaves BEFORE DELETE ON delta BEGIN SELECT raise(ABORT, 'deltas are never deleted'); END;
-- Message ids only rise because the newest one is never deleted.
CREATE TRIGGER mailbox_never_changes BEFORE UPDATE ON mailbox BEGIN SELECT raise(ABORT, 'messages are never changed'); END;
CREATE TRIGGER mailbox_never_leaves BEFORE DELETE ON mailbox BEGIN SELECT raise(ABORT, 'messages are never deleted'); END;
CREATE TRIGGER head_never_leaves BEFORE DELETE ON head BEGIN SELECT raise(ABORT, 'runs are never deleted'); END;
