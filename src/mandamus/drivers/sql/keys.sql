-- The key store of one log. What names a subject in plain, or a payload, never stands here.
CREATE TABLE meta (name TEXT PRIMARY KEY, value BLOB NOT NULL) STRICT;
-- `lookup`: HMAC of the subject under a key of this store; `key`: what its pseudonym was made with, gone with it.
CREATE TABLE subject (id INTEGER PRIMARY KEY, lookup BLOB NOT NULL UNIQUE, pseudonym TEXT NOT NULL UNIQUE, key BLOB NOT NULL) STRICT;
CREATE TABLE run (run TEXT PRIMARY KEY, plan BLOB NOT NULL) STRICT;
CREATE TABLE kin (one TEXT NOT NULL, other TEXT NOT NULL, PRIMARY KEY (one, other)) STRICT;
CREATE INDEX kin_back ON kin (other);
CREATE TABLE touched (pseudonym TEXT NOT NULL, run TEXT NOT NULL, PRIMARY KEY (pseudonym, run)) STRICT;
CREATE INDEX touched_run ON touched (run);
-- `off`: the erasure that took it out of use; `until`: instant of its end by retention, 0 = none.
CREATE TABLE dek (
    id INTEGER PRIMARY KEY, owner TEXT NOT NULL, kind TEXT NOT NULL, period TEXT NOT NULL, key BLOB NOT NULL,
    until INTEGER NOT NULL, off TEXT, UNIQUE (owner, kind, period)
) STRICT;
CREATE INDEX dek_until ON dek (until) WHERE until > 0;
CREATE TABLE gone (owner TEXT NOT NULL, kind TEXT NOT NULL, period TEXT NOT NULL, erasure TEXT NOT NULL, PRIMARY KEY (owner, kind, period)) STRICT;
CREATE TABLE erasing (id TEXT PRIMARY KEY, subject TEXT NOT NULL, keys BLOB NOT NULL, runs BLOB NOT NULL, state TEXT NOT NULL) STRICT;
CREATE TABLE handed (path TEXT PRIMARY KEY, run TEXT NOT NULL, kind TEXT NOT NULL) STRICT;
