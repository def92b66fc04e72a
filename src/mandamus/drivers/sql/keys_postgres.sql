-- The key store of one log, for workers on several hosts. What names a subject in plain, or a payload, never stands here, and no key does
-- but wrapped. A statement is what follows its name; @ stands for the schema.

-- layout --
SELECT to_regclass('@meta') IS NOT NULL, (SELECT setting FROM pg_settings WHERE name = 'fsync'), pg_is_in_recovery()

-- tables --
CREATE TABLE @meta (name text PRIMARY KEY, value text NOT NULL);
-- One row: rises whenever a key was destroyed, or taken out of use or given back.
CREATE TABLE @change (version bigint NOT NULL);
INSERT INTO @change VALUES (1);
-- A wrapping key, which lies elsewhere under `id`. `root`: what it wraps. `erasure`, `retired`: why it was put out of use, and in which order.
CREATE SEQUENCE @turn;
CREATE TABLE @kek (
    name text PRIMARY KEY, period text NOT NULL, state text NOT NULL CHECK (state IN ('making', 'live', 'dying', 'destroyed')),
    id text NOT NULL DEFAULT '', root bytea, erasure text NOT NULL DEFAULT '', retired bigint NOT NULL DEFAULT 0,
    at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE UNIQUE INDEX kek_live ON @kek (period) WHERE state = 'live';
CREATE INDEX kek_erasure ON @kek (erasure) WHERE erasure <> '';
CREATE INDEX kek_left ON @kek (state) WHERE state IN ('making', 'dying');
-- A part of a period: its key, wrapped by the root. `gen` is new whenever the key is.
CREATE TABLE @cell (period text NOT NULL, n integer NOT NULL, gen bigint NOT NULL, key bytea NOT NULL, PRIMARY KEY (period, n));
-- `off`: the erasure that took it out of use; `until`: instant of its end by retention, 0 = none.
CREATE TABLE @dek (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, owner text NOT NULL, kind text NOT NULL, period text NOT NULL, n integer NOT NULL,
    key bytea NOT NULL, until bigint NOT NULL, off text, UNIQUE (owner, kind, period));
CREATE INDEX dek_cell ON @dek (period, n);
CREATE INDEX dek_until ON @dek (until) WHERE until > 0;
CREATE INDEX dek_off ON @dek (off) WHERE off IS NOT NULL;
-- `lookup`: a keyed hash of the name under the key of its cell: nobody can make it again once that is gone.
CREATE TABLE @subject (
    pseudonym text PRIMARY KEY, lookup bytea NOT NULL UNIQUE, period text NOT NULL, n integer NOT NULL, sealed bytea NOT NULL);
CREATE INDEX subject_cell ON @subject (period, n);
CREATE TABLE @run (run text PRIMARY KEY, plan bytea NOT NULL);
CREATE TABLE @kin (one text NOT NULL, other text NOT NULL, PRIMARY KEY (one, other));
CREATE INDEX kin_back ON @kin (other);
CREATE TABLE @touched (pseudonym text NOT NULL, run text NOT NULL, PRIMARY KEY (pseudonym, run));
CREATE INDEX touched_run ON @touched (run);
CREATE TABLE @gone (owner text NOT NULL, kind text NOT NULL, period text NOT NULL, erasure text NOT NULL, PRIMARY KEY (owner, kind, period));
CREATE TABLE @erasing (id text PRIMARY KEY, subject text NOT NULL, keys text NOT NULL, runs text NOT NULL, state text NOT NULL);
CREATE TABLE @handed (path text PRIMARY KEY, run text NOT NULL, kind text NOT NULL);
INSERT INTO @meta VALUES ('layout', '1'), ('store', %(store)s)

-- rights: what a group of the schema's name may do, where there is one --
DO $$ BEGIN
IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = rtrim('@', '.')) THEN
    EXECUTE format('GRANT USAGE ON SCHEMA %1$s TO %1$s', rtrim('@', '.'));
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA %1$s TO %1$s', rtrim('@', '.'));
    EXECUTE format('GRANT USAGE ON ALL SEQUENCES IN SCHEMA %1$s TO %1$s', rtrim('@', '.'));
END IF; END $$

-- meta --
SELECT name, value FROM @meta

-- bind --
INSERT INTO @meta VALUES ('origin', %(origin)s) ON CONFLICT (name) DO UPDATE SET value = @meta.value RETURNING value

-- version --
SELECT version FROM @change

-- changed --
UPDATE @change SET version = version + 1

-- live --
SELECT name, id, root FROM @kek WHERE period = %(period)s AND state = 'live'

-- made --
INSERT INTO @kek (name, period, state) VALUES (%(name)s, %(period)s, 'making')

-- wrapped: what a wrapping key is for, known before anything relies on it --
UPDATE @kek SET id = %(id)s, root = %(root)s, at = clock_timestamp() WHERE name = %(name)s AND state = 'making' RETURNING name

-- lives: the first of several that were made at once for a period --
UPDATE @kek k SET state = 'live' WHERE name = %(name)s AND state = 'making'
AND NOT EXISTS (SELECT 1 FROM @kek o WHERE o.period = k.period AND o.state = 'live') RETURNING name

-- retire --
UPDATE @kek SET state = 'dying', erasure = %(erasure)s, retired = nextval('@turn'), root = NULL WHERE name = %(name)s

-- forsaken: made by a process that died before it was used --
UPDATE @kek SET state = 'dying', retired = nextval('@turn'), root = NULL
WHERE state = 'making' AND at < clock_timestamp() - make_interval(secs => %(seconds)s)

-- dying --
SELECT name, id, retired FROM @kek WHERE state = 'dying' ORDER BY retired

-- is_destroyed --
UPDATE @kek SET state = 'destroyed', at = clock_timestamp() WHERE name = %(name)s AND state = 'dying'

-- last_of: up to which turn wrapping keys held what this erasure is about --
SELECT coalesce(max(retired), 0) FROM @kek WHERE erasure = %(id)s

-- cell --
SELECT c.period, c.n, c.gen, c.key, k.name, k.id, k.root FROM @cell c JOIN @kek k ON k.period = c.period AND k.state = 'live'
WHERE c.period = %(period)s AND c.n = %(n)s

-- subject_cells --
SELECT c.period, c.n, c.gen, c.key, k.name, k.id, k.root FROM @cell c JOIN @kek k ON k.period = c.period AND k.state = 'live'
WHERE c.n >= %(first)s ORDER BY 1, 2

-- new_cell: under the very root that its key was wrapped by --
INSERT INTO @cell (period, n, gen, key) SELECT %(period)s, %(n)s, nextval('@turn'), %(key)s
WHERE EXISTS (SELECT 1 FROM @kek WHERE name = %(kek)s AND state = 'live') ON CONFLICT DO NOTHING

-- same_cell --
SELECT 1 FROM @cell WHERE period = %(period)s AND n = %(n)s AND gen = %(gen)s

-- key --
SELECT c.period, c.n, c.gen, c.key, k.name, k.id, k.root, d.key FROM @dek d JOIN @cell c USING (period, n)
JOIN @kek k ON k.period = c.period AND k.state = 'live'
WHERE d.owner = %(owner)s AND d.kind = %(kind)s AND d.period = %(period)s AND d.off IS NULL

-- new_key: of two processes that make one at once, both get the first one's --
INSERT INTO @dek (owner, kind, period, n, key, until) VALUES (%(owner)s, %(kind)s, %(period)s, %(n)s, %(key)s, %(until)s)
ON CONFLICT DO NOTHING

-- off --
SELECT 1 FROM @dek WHERE owner = %(owner)s AND kind = %(kind)s AND period = %(period)s AND off IS NOT NULL

-- gone: and whether a wrapping key that could open it is not destroyed yet --
SELECT owner, kind, period, EXISTS (SELECT 1 FROM @kek d WHERE d.state = 'dying'
    AND d.retired <= (SELECT coalesce(max(k.retired), 0) FROM @kek k WHERE k.erasure = g.erasure))
FROM @gone g WHERE owner = %(owner)s

-- expired --
SELECT owner, kind, period FROM @dek WHERE until > 0 AND until <= %(now)s AND off IS NULL ORDER BY owner COLLATE "C", kind, period

-- known --
SELECT pseudonym FROM @subject WHERE lookup = ANY(%(lookups)s)

-- new_subject --
INSERT INTO @subject VALUES (%(pseudonym)s, %(lookup)s, %(period)s, %(n)s, %(sealed)s)

-- begin --
INSERT INTO @run VALUES (%(run)s, %(plan)s) ON CONFLICT DO NOTHING

-- related --
INSERT INTO @kin VALUES (%(run)s, %(parent)s) ON CONFLICT DO NOTHING

-- touch --
INSERT INTO @touched VALUES (%(subject)s, %(run)s) ON CONFLICT DO NOTHING

-- is_touched --
SELECT 1 FROM @touched WHERE pseudonym = %(subject)s AND run = %(run)s

-- plan --
SELECT plan FROM @run WHERE run = %(run)s

-- families --
WITH RECURSIVE found (run) AS (
    SELECT run FROM @run WHERE run = ANY(%(runs)s)
    UNION SELECT r.run FROM found f JOIN @kin k ON f.run IN (k.one, k.other) JOIN @run r ON r.run IN (k.one, k.other))
SELECT run FROM found ORDER BY run COLLATE "C"

-- touched_by --
SELECT run FROM @touched WHERE pseudonym = %(subject)s

-- subjects_of --
SELECT DISTINCT pseudonym COLLATE "C" FROM @touched WHERE run = ANY(%(runs)s) ORDER BY 1

-- sealed --
SELECT run FROM @run ORDER BY run COLLATE "C"

-- erasings --
SELECT id, subject, keys, runs, state FROM @erasing ORDER BY id COLLATE "C"

-- give_back --
UPDATE @dek SET off = NULL WHERE off = %(id)s

-- take_off --
UPDATE @dek SET off = %(id)s WHERE off IS NULL AND owner = %(owner)s AND %(kind)s IN ('', kind) AND %(period)s IN ('', period)

-- hear --
INSERT INTO @erasing VALUES (%(id)s, %(subject)s, %(keys)s, %(runs)s, %(state)s)
ON CONFLICT (id) DO UPDATE SET subject = excluded.subject, keys = excluded.keys, runs = excluded.runs, state = excluded.state

-- destroyed --
UPDATE @erasing SET state = 'destroyed' WHERE id = %(id)s

-- matching: the cells of what is selected --
SELECT DISTINCT period, n FROM @dek WHERE owner = %(owner)s AND %(kind)s IN ('', kind) AND %(period)s IN ('', period)

-- matching_subject --
SELECT period, n FROM @subject WHERE pseudonym = %(subject)s

-- delete --
DELETE FROM @dek WHERE owner = %(owner)s AND %(kind)s IN ('', kind) AND %(period)s IN ('', period)

-- is_gone --
INSERT INTO @gone VALUES (%(owner)s, %(kind)s, %(period)s, %(id)s) ON CONFLICT DO NOTHING

-- delete_subject --
DELETE FROM @subject WHERE pseudonym = %(subject)s

-- delete_touched --
DELETE FROM @touched WHERE pseudonym = %(subject)s

-- cells_of --
SELECT n, key FROM @cell WHERE period = %(period)s ORDER BY n

-- rows_of --
SELECT id, owner, kind, period, key FROM @dek WHERE period = %(period)s AND n = %(n)s ORDER BY id

-- rewrap --
UPDATE @dek SET key = v.key FROM unnest(%(ids)s::bigint[], %(keys)s::bytea[]) AS v (id, key) WHERE @dek.id = v.id

-- subjects_in --
SELECT pseudonym, sealed FROM @subject WHERE period = %(period)s AND n = %(n)s ORDER BY pseudonym

-- rename_subject --
UPDATE @subject SET lookup = %(lookup)s, sealed = %(sealed)s WHERE pseudonym = %(pseudonym)s

-- set_cell --
UPDATE @cell SET key = %(key)s, gen = CASE WHEN %(anew)s THEN nextval('@turn') ELSE gen END WHERE period = %(period)s AND n = %(n)s

-- drop_cell --
DELETE FROM @cell WHERE period = %(period)s AND n = %(n)s

-- hand_out --
INSERT INTO @handed VALUES (%(path)s, %(run)s, %(kind)s) ON CONFLICT (path) DO UPDATE SET run = excluded.run, kind = excluded.kind

-- handed_out --
SELECT path, run, kind FROM @handed WHERE run = ANY(%(runs)s) ORDER BY path COLLATE "C"

-- took_back --
DELETE FROM @handed WHERE path = %(path)s
