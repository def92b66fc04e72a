-- Every statement of the Postgres ledger by name. A name stands alone in a comment; the lines below it say why, then comes the SQL.
-- Each runs alone and commits by itself: one round trip, and nothing that a pooler of transactions could tear apart.

-- head --
SELECT {head} FROM mandamus.head h WHERE run = %(run)s

-- settle --
-- Reads a head and writes it as it is. When this commit is acknowledged, so is everything before it in the log: what the row says is
-- then durable, not only visible. It also waits for a transaction that still holds the row.
UPDATE mandamus.head h SET owner = owner WHERE run = %(run)s RETURNING {head}

-- open_run --
INSERT INTO mandamus.head AS h (run, seq, hash, epoch, wake_at, mail, state, pool, prio)
SELECT %(run)s, %(seq)s, %(hash)b, %(epoch)s, %(at)s::bigint, %(cursor)s, coalesce(%(state)s::text, 'open'), coalesce(%(pool)s::text, 'default'),
    coalesce(%(prio)s::integer, 0) WHERE {accounts}
ON CONFLICT (run) DO NOTHING RETURNING {head}, no

-- move_head --
-- The compare of compare-and-append. Of two that wait for the row the second sees what the first made of it, and finds nothing.
-- While mail lies beyond the cursor of its fold, a run stays due: a vote sent a moment before would be slept through. A cursor beyond the
-- mail came with the run from another ledger: what is sent later lies behind it. Nobody drives a run that has ended: its last append
-- gives it back as well, which saves a transaction.
UPDATE mandamus.head h SET seq = %(seq)s, hash = %(hash)b, epoch = %(epoch)s,
    tries = CASE WHEN %(progress)s OR %(ended)s THEN 0 ELSE tries END,
    owner = CASE WHEN %(ended)s THEN '' ELSE owner END, lease_until = CASE WHEN %(ended)s THEN 0 ELSE lease_until END,
    wake_at = CASE WHEN NOT %(wakes)s THEN wake_at WHEN mail > %(cursor)s THEN least(wake_at, %(at)s::bigint, mandamus.instant())
        ELSE %(at)s::bigint END,
    mail = greatest(mail, %(cursor)s), state = coalesce(%(state)s::text, state), pool = coalesce(%(pool)s::text, pool), prio = coalesce(%(prio)s::integer, prio)
WHERE run = %(run)s AND seq = %(after_seq)s AND hash = %(after_hash)b AND epoch = %(after_epoch)s AND {accounts}
RETURNING {head}, no

-- no_accounts --
true

-- accounts --
mandamus.accounts_follow(%(ids)s::text[], %(versions)s::bigint[], %(hashes)s::text[], %(locks)s::bigint[], %(alone)s::boolean[])

-- append --
-- No row: the run, or an account, stands elsewhere, and nothing was written.
WITH h AS ({moved}),
e AS (INSERT INTO mandamus.event (no, seq, body)
    SELECT h.no, %(seq)s - %(count)s + x.n, x.body FROM h, unnest(%(bodies)b::bytea[]) WITH ORDINALITY AS x(body, n)){more}
SELECT h.*, mandamus.instant() FROM h

-- locks --
-- Of all appends of one transaction, in one order, before the first of them takes any.
SELECT mandamus.accounts_follow('{}', '{}', '{}', %(locks)s::bigint[], %(alone)s::boolean[])

-- with_payloads --
, p AS (INSERT INTO mandamus.payload (no, seq, part, form, bytes) SELECT h.no, x.seq, x.part, x.form, x.bytes
    FROM h, unnest(%(p_seq)s::bigint[], %(p_part)s::text[], %(p_form)s::text[], %(p_bytes)b::bytea[]) AS x(seq, part, form, bytes))

-- with_accounts --
, a AS (INSERT INTO mandamus.account AS a (id, version, hash, reserved, spent) SELECT x.*
    FROM h, unnest(%(a_id)s::text[], %(a_version)s::bigint[], %(a_hash)s::text[], %(a_reserved)s::bigint[], %(a_spent)s::bigint[]) AS x
    ON CONFLICT (id) DO UPDATE SET version = excluded.version, hash = excluded.hash, reserved = excluded.reserved, spent = excluded.spent)
, d AS (INSERT INTO mandamus.delta (id, version, run, seq, body) SELECT x.*
    FROM h, unnest(%(d_id)s::text[], %(d_version)s::bigint[], %(d_run)s::text[], %(d_seq)s::bigint[], %(d_body)b::bytea[]) AS x)

-- first_events --
-- With the head as it stands, so that where to stop is known without asking for it first.
SELECT e.seq, e.body, h.seq FROM mandamus.head h
LEFT JOIN LATERAL (SELECT * FROM mandamus.event e WHERE e.no = h.no AND e.seq > %(after)s ORDER BY e.seq LIMIT 256) e ON true
WHERE h.run = %(run)s ORDER BY e.seq

-- events --
SELECT e.seq, e.body FROM mandamus.event e
WHERE e.no = (SELECT no FROM mandamus.head WHERE run = %(run)s) AND e.seq > %(after)s AND e.seq <= %(last)s ORDER BY e.seq LIMIT 256

-- payload --
SELECT p.bytes, p.form FROM mandamus.payload p JOIN mandamus.head h USING (no) WHERE h.run = %(run)s AND p.seq = %(seq)s AND p.part = %(part)s

-- payloads --
SELECT p.seq, p.part, p.bytes, p.form, h.seq FROM mandamus.head h
JOIN LATERAL (SELECT * FROM mandamus.payload p WHERE p.no = h.no AND (p.seq, p.part) > (%(seq)s, %(part)s)
    AND p.seq <= coalesce(%(last)s::bigint, h.seq) AND (%(parts)s::text[] IS NULL OR p.part = ANY(%(parts)s::text[]))
    ORDER BY p.seq, p.part LIMIT 64) p ON true
WHERE h.run = %(run)s ORDER BY p.seq, p.part

-- account --
SELECT id, version, hash, reserved, spent FROM mandamus.account WHERE id = %(id)s

-- versions --
SELECT id, version, hash FROM mandamus.account WHERE id = ANY(%(ids)s::text[])

-- deltas --
SELECT version, body FROM mandamus.delta WHERE id = %(id)s AND version > %(after)s ORDER BY version LIMIT 256

-- feed --
-- Of transactions below all that still run: nothing that is committed later comes before it. At most so many records, and a row for an
-- append that has no run, so that whoever reads gets past it.
WITH f AS MATERIALIZED (
    SELECT f.place, f.no, f.last, CASE WHEN f.place = %(place)s AND f.no = %(no)s THEN greatest(f.first, %(seq)s + 1) ELSE f.first END AS first
    FROM mandamus.feed f WHERE (f.place, f.no, f.last) > (%(place)s, %(no)s, %(seq)s)
    AND f.place < (SELECT base FROM mandamus.feed_base) + pg_snapshot_xmin(pg_current_snapshot())::text::bigint
    ORDER BY f.place, f.no, f.last LIMIT %(count)s),
g AS (SELECT f.*, (sum(f.last - f.first + 1) OVER (ORDER BY f.place, f.no, f.last) - (f.last - f.first + 1))::bigint AS before FROM f)
SELECT g.place, g.no, g.last, g.first, h.run, e.seq, e.body, current_setting('synchronous_standby_names') <> '' FROM g
LEFT JOIN mandamus.head h ON h.no = g.no
LEFT JOIN LATERAL (SELECT e.seq, e.body FROM mandamus.event e WHERE e.no = g.no AND e.seq >= g.first
    AND e.seq <= least(g.last, g.first + %(count)s - 1 - g.before) ORDER BY e.seq LIMIT %(count)s) e ON true
WHERE g.before < %(count)s ORDER BY g.place, g.no, g.last, e.seq

-- fed --
-- What stands where a cursor says that it was read.
SELECT e.body FROM mandamus.feed f JOIN mandamus.event e ON e.no = f.no AND e.seq = %(seq)s
WHERE f.place = %(place)s AND f.no = %(no)s AND f.first <= %(seq)s AND f.last >= %(seq)s

-- flush --
-- When this commit is acknowledged, so is everything before it in the log: a commit whose wait for the standby was cut off is visible
-- without being anywhere else. It touches no table, so that it needs no right and stands in nobody's way.
SELECT pg_logical_emit_message(true, 'mandamus', '')::text

-- hold --
LOCK TABLE mandamus.event IN SHARE ROW EXCLUSIVE MODE

-- counts_lower --
-- Whether this cluster's transactions have lower numbers than those that the tables were written with.
SELECT EXISTS (SELECT FROM mandamus.feed f
    WHERE f.place >= (SELECT base FROM mandamus.feed_base) + pg_snapshot_xmax(pg_current_snapshot())::text::bigint)

-- raise_base --
-- Of the owner, while nobody appends.
UPDATE mandamus.feed_base SET base = (SELECT max(place) FROM mandamus.feed)

-- unfed --
SELECT (SELECT count(*) FROM mandamus.event) - (SELECT coalesce(sum(last - first + 1), 0) FROM mandamus.feed)::bigint

-- runs --
SELECT {head} FROM mandamus.head h WHERE run > %(behind)s AND (%(state)s::text IS NULL OR state = %(state)s) ORDER BY run LIMIT 256

-- send --
-- The id is the run's own count, taken under the lock of its row: ids rise in the order of commits, and leave no holes.
WITH h AS (UPDATE mandamus.head h SET mail = mail + 1, wake_at = least(wake_at, mandamus.instant())
    WHERE run = %(run)s AND NOT EXISTS (SELECT FROM mandamus.mailbox m WHERE m.no = h.no AND m.key = %(key)b)
    RETURNING no, mail, pool, owner),
m AS (INSERT INTO mandamus.mailbox (no, id, key, body) SELECT no, mail, %(key)b, %(body)b FROM h)
SELECT mail, pool, owner FROM h

-- messages --
SELECT m.id, m.key, m.body FROM mandamus.mailbox m JOIN mandamus.head h USING (no)
WHERE h.run = %(run)s AND m.id > %(after)s ORDER BY m.id LIMIT 64

-- claim --
-- Goes from the highest priority of the pool down, and in each from the run that waits longest; runs that sleep are not looked at.
-- The commit is not waited for: a lease that a crash takes back costs time, never safety.
UPDATE mandamus.head h SET owner = %(owner)s, lease_until = mandamus.instant() + %(ttl)s, tries = tries + 1
WHERE no = (
    WITH RECURSIVE level(prio) AS (
        (SELECT h.prio FROM mandamus.head h WHERE pool = %(pool)s AND wake_at IS NOT NULL AND {awake} ORDER BY prio DESC LIMIT 1)
        UNION ALL
        SELECT (SELECT h.prio FROM mandamus.head h WHERE pool = %(pool)s AND prio < level.prio AND wake_at IS NOT NULL AND {awake}
            ORDER BY prio DESC LIMIT 1)
        FROM level WHERE level.prio IS NOT NULL)
    SELECT due.no FROM level CROSS JOIN LATERAL (
        SELECT h.no FROM mandamus.head h WHERE pool = %(pool)s AND prio = level.prio AND wake_at <= mandamus.instant() AND {awake}
        AND (owner = '' OR lease_until <= mandamus.instant()) ORDER BY wake_at FOR UPDATE SKIP LOCKED LIMIT 1) due
    WHERE level.prio IS NOT NULL LIMIT 1)
RETURNING {head}, set_config('synchronous_commit', 'off', true)

-- awake --
state NOT IN ('halted', 'completed', 'failed', 'cancelled')

-- claim_run --
UPDATE mandamus.head h SET owner = %(owner)s, lease_until = mandamus.instant() + %(ttl)s, tries = tries + 1
WHERE run = %(run)s AND (owner = '' OR lease_until <= mandamus.instant())
RETURNING {head}, set_config('synchronous_commit', 'off', true)

-- renew --
-- A lease that ran out, but that nobody took, is its owner's still. A run that has ended was given back with its last append: a renewal
-- that was under way meanwhile finds it so, and that is no conflict.
UPDATE mandamus.head h SET lease_until = CASE owner WHEN '' THEN 0 ELSE mandamus.instant() + %(ttl)s END
WHERE run = %(run)s AND (owner = %(owner)s OR owner = '' AND state IN ('completed', 'failed', 'cancelled'))
RETURNING {head}, set_config('synchronous_commit', 'off', true)

-- give_back --
UPDATE mandamus.head h SET owner = '', lease_until = 0, tries = least(tries, %(tries)s::integer)
WHERE run = %(run)s AND (owner = %(owner)s OR owner = '' AND state IN ('completed', 'failed', 'cancelled'))
RETURNING {head}, mandamus.instant(), set_config('synchronous_commit', 'off', true)

-- ring --
-- A transaction of its own that is not flushed: notifications are committed one behind the other, and no append may wait in that line.
SELECT pg_notify(%(channel)s, %(pool)s), set_config('synchronous_commit', 'off', true)

-- duty --
INSERT INTO mandamus.duty AS d (name, holder, until, epoch) VALUES (%(name)s, %(me)s, mandamus.instant() + %(ttl)s, 1)
ON CONFLICT (name) DO UPDATE SET holder = %(me)s, until = excluded.until, epoch = d.epoch + (d.holder <> %(me)s)::integer
WHERE d.holder = %(me)s OR d.holder = '' OR d.until <= mandamus.instant()
RETURNING epoch

-- leave_duty --
UPDATE mandamus.duty SET holder = '', until = 0 WHERE name = %(name)s AND holder = %(me)s

-- beat --
-- Those that were not heard of for long go with whoever says something.
WITH gone AS (DELETE FROM mandamus.node WHERE until <= mandamus.instant() AND id <> %(id)s)
INSERT INTO mandamus.node (id, body, seen, until) VALUES (%(id)s, %(body)b, mandamus.instant(), mandamus.instant() + %(ttl)s)
ON CONFLICT (id) DO UPDATE SET body = excluded.body, seen = excluded.seen, until = excluded.until

-- leave --
DELETE FROM mandamus.node WHERE id = %(id)s

-- nodes --
SELECT body, seen FROM mandamus.node WHERE until > mandamus.instant() ORDER BY id

-- settings --
-- Whether the tables are there is asked of the catalog by a scan: what a session remembers of names may be older than the last wait.
SELECT current_setting('server_version_num')::integer, pg_is_in_recovery(), current_setting('fsync'), current_setting('full_page_writes'),
    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), current_setting('server_encoding'),
    current_setting('default_transaction_isolation'),
    EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'mandamus' AND c.relname = 'feed_base'),
    EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'mandamus' AND c.relname = 'migration')

-- migrated --
SELECT version, digest FROM mandamus.migration ORDER BY version

-- rights --
SELECT has_table_privilege('mandamus.event', 'UPDATE') OR has_table_privilege('mandamus.event', 'DELETE')
    OR has_table_privilege('mandamus.event', 'TRUNCATE')

-- guards --
SELECT t.tgname, t.tgenabled::text, pg_get_triggerdef(t.oid), p.prosrc FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = to_regnamespace('mandamus') AND NOT t.tgisinternal

-- gaps --
-- Runs whose rows are not one for each number up to the head's.
SELECT h.run, h.seq + 1, coalesce(e.n, 0) FROM mandamus.head h
LEFT JOIN (SELECT no, count(*) AS n, min(seq) AS low, max(seq) AS high FROM mandamus.event GROUP BY no) e USING (no)
WHERE coalesce(e.n, 0) <> h.seq + 1 OR e.low <> 0 OR e.high <> h.seq LIMIT 1

-- strays --
SELECT e.no FROM mandamus.event e LEFT JOIN mandamus.head h USING (no) WHERE h.no IS NULL LIMIT 1
