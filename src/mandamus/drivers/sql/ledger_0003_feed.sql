-- Every record in the order in which it was committed, for the log that they are all leaves of. One writer at a time numbers them: leaves
-- are dense from 1, and a transaction that is undone takes its numbers back. Whatever writes a record writes its leaf, an older program too.

CREATE TABLE feed (
    leaf INTEGER PRIMARY KEY,
    spot INTEGER NOT NULL
) STRICT;

-- Records of a file that is older than this: run by run, since nobody wrote down which came first.
INSERT INTO feed (spot) SELECT spot FROM event ORDER BY spot;

CREATE TRIGGER event_is_fed AFTER INSERT ON event BEGIN INSERT INTO feed (spot) VALUES (new.spot); END;
CREATE TRIGGER feed_never_changes BEFORE UPDATE ON feed BEGIN SELECT raise(ABORT, 'the order of records is never changed'); END;
CREATE TRIGGER feed_never_leaves BEFORE DELETE ON feed BEGIN SELECT raise(ABORT, 'the order of records is never changed'); END;
