-- Every append in the order in which records are read into the log that they are all leaves of: by the number of its transaction, which a
-- reader takes only below those that still run. A serial would leave holes that are filled later, behind the reader's back.
-- Whatever writes records writes their row here, an older program too; nobody else may.

CREATE TABLE mandamus.feed (
    place bigint NOT NULL,
    no    bigint NOT NULL,
    last  bigint NOT NULL,
    first bigint NOT NULL,
    PRIMARY KEY (place, no, last)
);

-- What is added to a transaction's number to make its place. A cluster into which the tables were restored may count lower than the one
-- that they come from: then the owner raises it, and places go on rising.
CREATE TABLE mandamus.feed_base (
    base bigint NOT NULL CHECK (base >= 0)
);
INSERT INTO mandamus.feed_base (base) VALUES (0);

-- Records of one insert that are not one behind the other have no `first`, and are refused.
CREATE FUNCTION mandamus.feed_event() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO mandamus.feed (place, no, last, first)
        SELECT (SELECT base FROM mandamus.feed_base) + pg_current_xact_id()::text::bigint, added.no, max(added.seq),
            CASE WHEN max(added.seq) - min(added.seq) + 1 = count(*) THEN min(added.seq) END
        FROM added GROUP BY added.no;
    RETURN NULL;
END $$;
REVOKE ALL ON FUNCTION mandamus.feed_event() FROM PUBLIC;

-- From here until this migration is committed nobody else adds a record.
CREATE TRIGGER event_is_fed AFTER INSERT ON mandamus.event REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION mandamus.feed_event();
ALTER TABLE mandamus.event ENABLE ALWAYS TRIGGER event_is_fed;

-- Records that are older than this: run by run, since nobody wrote down which came first.
INSERT INTO mandamus.feed (place, no, last, first)
    SELECT pg_current_xact_id()::text::bigint, no, max(seq), min(seq) FROM mandamus.event GROUP BY no;

CREATE TRIGGER feed_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mandamus.feed EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER feed_base_stays BEFORE INSERT OR DELETE OR TRUNCATE ON mandamus.feed_base EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER feed_base_forward BEFORE UPDATE ON mandamus.feed_base FOR EACH ROW
    WHEN (new.base < old.base) EXECUTE FUNCTION mandamus.refuse();
ALTER TABLE mandamus.feed ENABLE ALWAYS TRIGGER feed_stays;
ALTER TABLE mandamus.feed_base ENABLE ALWAYS TRIGGER feed_base_stays;
ALTER TABLE mandamus.feed_base ENABLE ALWAYS TRIGGER feed_base_forward;

REVOKE ALL ON mandamus.feed, mandamus.feed_base FROM PUBLIC;
GRANT SELECT ON mandamus.feed, mandamus.feed_base TO mandamus;
