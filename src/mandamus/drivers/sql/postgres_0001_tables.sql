-- The tables of one ledger. Numbered files are applied in order, each in one transaction, and never changed once released.
-- They can be run by hand with psql as well, after CREATE SCHEMA mandamus. For a ledger in another schema the name is replaced.
--
-- A run is known inside by its number: a text of up to 64 characters beside every record would be a tenth of what is written.
-- Instants are microseconds since 1970. There are no foreign keys: each row would lock its head row once more, and write that lock.

CREATE TABLE mandamus.head (
    no          bigint  GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    run         text    COLLATE "C" NOT NULL UNIQUE CHECK (run ~ '^[A-Za-z0-9_-]{1,64}$'),
    seq         bigint  NOT NULL CHECK (seq >= 0),
    hash        bytea   NOT NULL CHECK (octet_length(hash) = 32),
    epoch       bigint  NOT NULL CHECK (epoch >= 1),
    owner       text    NOT NULL DEFAULT '',
    lease_until bigint  NOT NULL DEFAULT 0,
    wake_at     bigint,
    mail        bigint  NOT NULL DEFAULT 0,
    prio        integer NOT NULL DEFAULT 0,
    tries       integer NOT NULL DEFAULT 0,
    state       text    NOT NULL DEFAULT 'open',
    pool        text    COLLATE "C" NOT NULL DEFAULT 'default'
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);

-- Touched only when a run becomes due at another instant, or comes to rest; every other update of a head stays on its page.
CREATE INDEX head_due ON mandamus.head (pool, prio DESC, wake_at)
    WHERE wake_at IS NOT NULL AND state NOT IN ('halted', 'completed', 'failed', 'cancelled');

CREATE TABLE mandamus.event (
    no   bigint NOT NULL,
    seq  bigint NOT NULL,
    body bytea  NOT NULL CHECK (octet_length(body) BETWEEN 1 AND 65535),
    PRIMARY KEY (no, seq)
);

CREATE TABLE mandamus.payload (
    no    bigint NOT NULL,
    seq   bigint NOT NULL,
    part  text   COLLATE "C" NOT NULL,
    form  text   NOT NULL,
    bytes bytea  NOT NULL,
    PRIMARY KEY (no, seq, part)
);

CREATE TABLE mandamus.mailbox (
    no   bigint NOT NULL,
    id   bigint NOT NULL CHECK (id >= 1),
    key  bytea  NOT NULL CHECK (octet_length(key) = 32),
    body bytea  NOT NULL,
    PRIMARY KEY (no, id),
    UNIQUE (no, key)
);

CREATE TABLE mandamus.account (
    id       text   COLLATE "C" PRIMARY KEY,
    version  bigint NOT NULL CHECK (version >= 1),
    hash     text   NOT NULL,
    reserved bigint NOT NULL,
    spent    bigint NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE mandamus.delta (
    id      text   COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    run     text   NOT NULL,
    seq     bigint NOT NULL,
    body    bytea  NOT NULL,
    PRIMARY KEY (id, version)
);

CREATE TABLE mandamus.duty (
    name   text   COLLATE "C" PRIMARY KEY,
    holder text   NOT NULL,
    until  bigint NOT NULL,
    epoch  bigint NOT NULL
);

-- Of workers that live now. Nothing rests on it, so it is not logged: after a crash or a failover it begins empty.
CREATE UNLOGGED TABLE mandamus.node (
    id    text   COLLATE "C" PRIMARY KEY,
    body  bytea  NOT NULL,
    seen  bigint NOT NULL,
    until bigint NOT NULL
);

CREATE FUNCTION mandamus.instant() RETURNS bigint LANGUAGE sql STABLE
    RETURN (extract(epoch FROM now()) * 1000000)::bigint;

-- Whether all these accounts stand at these versions, and stay there until this transaction ends. Who writes one locks it alone, who
-- only checks shares the lock; the lock's queue is fair, so that a revocation is not starved by those who check. Each statement of a
-- volatile function sees what was committed before it began: what is read here is newer than the last wait.
CREATE FUNCTION mandamus.accounts_stand(ids text[], versions bigint[], locks bigint[], alone boolean[]) RETURNS boolean
    LANGUAGE plpgsql VOLATILE COST 100000 AS $$
BEGIN
    PERFORM CASE WHEN x.alone THEN pg_advisory_xact_lock(x.lock) ELSE pg_advisory_xact_lock_shared(x.lock) END
        FROM unnest(locks, alone) AS x(lock, alone);
    RETURN NOT EXISTS (
        SELECT FROM unnest(ids, versions) AS x(id, version) LEFT JOIN mandamus.account a ON a.id = x.id COLLATE "C"
        WHERE coalesce(a.version, 0) <> x.version
    );
END $$;

-- Evidence is written once. (Whoever drops these triggers still breaks the chain.)
CREATE FUNCTION mandamus.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'rows of % are never changed or deleted', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$;

CREATE TRIGGER event_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mandamus.event EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER payload_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mandamus.payload EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER mailbox_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mandamus.mailbox EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER delta_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mandamus.delta EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER head_stays BEFORE DELETE OR TRUNCATE ON mandamus.head EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER account_stays BEFORE DELETE OR TRUNCATE ON mandamus.account EXECUTE FUNCTION mandamus.refuse();

-- Also for a session that calls itself a replica.
ALTER TABLE mandamus.event ENABLE ALWAYS TRIGGER event_stays;
ALTER TABLE mandamus.payload ENABLE ALWAYS TRIGGER payload_stays;
ALTER TABLE mandamus.mailbox ENABLE ALWAYS TRIGGER mailbox_stays;
ALTER TABLE mandamus.delta ENABLE ALWAYS TRIGGER delta_stays;
ALTER TABLE mandamus.head ENABLE ALWAYS TRIGGER head_stays;
ALTER TABLE mandamus.account ENABLE ALWAYS TRIGGER account_stays;

-- For people with a database shell.
CREATE VIEW mandamus.records AS
    SELECT h.run, e.seq, convert_from(e.body, 'UTF8') AS record FROM mandamus.event e JOIN mandamus.head h USING (no);
CREATE VIEW mandamus.payloads AS
    SELECT h.run, p.seq, p.part, p.form, octet_length(p.bytes) AS size FROM mandamus.payload p JOIN mandamus.head h USING (no);
