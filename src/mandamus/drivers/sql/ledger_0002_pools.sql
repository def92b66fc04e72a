-- Where a run is to be driven, which worker does what nobody else does meanwhile, and which workers live. All of it is a hint or a lease:
-- nothing here is evidence.

ALTER TABLE head ADD COLUMN pool TEXT NOT NULL DEFAULT 'default';

-- Claims walk one pool from its highest priority down, and each priority from the run that waits longest.
DROP INDEX head_due;
CREATE INDEX head_due ON head (pool, prio, wake_at) WHERE wake_at IS NOT NULL;

CREATE TABLE duty (
    name   TEXT PRIMARY KEY,
    holder TEXT    NOT NULL,
    until  INTEGER NOT NULL,
    epoch  INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE node (
    id    TEXT PRIMARY KEY,
    body  BLOB    NOT NULL,
    seen  INTEGER NOT NULL,
    until INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
