-- Every statement of the SQLite ledger by name. A name stands alone in a comment; the lines below it say why, then comes the SQL.

-- head --
SELECT no, run, seq, hash, epoch, owner, lease_until, wake_at, mail, prio, tries, state, pool FROM head WHERE run = ?

-- open_run --
INSERT INTO head (run, seq, hash, epoch, wake_at, state, tries, pool, prio) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?) RETURNING no

-- move_head --
-- Leaves the index on wake_at alone; nearly every append is of this kind.
UPDATE head SET seq = ?, hash = ?, epoch = ?, tries = ?, state = ? WHERE no = ?

-- move_head_and_wake --
UPDATE head SET seq = ?, hash = ?, epoch = ?, tries = ?, state = ?, wake_at = ? WHERE no = ?

-- reserve_mail --
-- Messages that come later get higher numbers than this.
UPDATE head SET mail = ?1 WHERE no = ?2 AND mail < ?1

-- place --
UPDATE head SET pool = ?, prio = ? WHERE no = ?

-- add_event --
INSERT INTO event (spot, body) VALUES (?, ?)

-- add_payload --
INSERT INTO payload (spot, part, form, bytes) VALUES (?, ?, ?, ?)

-- account --
SELECT id, version, hash, reserved, spent FROM account WHERE id = ?

-- open_account --
INSERT INTO account (id, version, hash, reserved, spent) VALUES (?, ?, ?, ?, ?)

-- move_account --
UPDATE account SET version = ?, hash = ?, reserved = ?, spent = ? WHERE id = ?

-- add_delta --
INSERT INTO delta (id, version, run, seq, body) VALUES (?, ?, ?, ?, ?)

-- deltas --
SELECT version, body FROM delta WHERE id = ? AND version > ? ORDER BY version LIMIT 256

-- events --
SELECT spot, body FROM event WHERE spot > ? AND spot <= ? ORDER BY spot LIMIT 256

-- feed --
-- A leaf whose record is gone comes without it: it is told apart from the end.
SELECT feed.leaf, feed.spot, head.run, event.body FROM feed LEFT JOIN event ON event.spot = feed.spot LEFT JOIN head ON head.no = feed.spot >> 33
WHERE feed.leaf > ? ORDER BY feed.leaf LIMIT ?

-- payload --
SELECT bytes, form FROM payload WHERE spot > ? AND spot <= ? AND part = ?

-- payloads --
SELECT spot, part, bytes, form FROM payload WHERE spot > ? AND spot <= ? ORDER BY spot LIMIT 64

-- payloads_named --
-- What is not asked for is passed over where it stands: its bytes are not read.
SELECT spot, part, bytes, form FROM payload WHERE spot > ? AND spot <= ? AND part IN (SELECT value FROM json_each(?))
ORDER BY spot LIMIT 64

-- runs --
SELECT no, run, seq, hash, epoch, owner, lease_until, wake_at, mail, prio, tries, state, pool FROM head
WHERE run > ?1 AND (?2 IS NULL OR state = ?2) ORDER BY run LIMIT 256

-- find_message --
SELECT id FROM mailbox WHERE run = ? AND key = ?

-- add_message --
-- Behind every message of the file, and behind the cursor that the run brought along from another ledger.
INSERT INTO mailbox (run, key, body, id) VALUES (?1, ?2, ?3, max(coalesce((SELECT max(id) FROM mailbox), 0), ?4) + 1) RETURNING id

-- announce_message --
-- The run is due at once; an earlier instant stays.
UPDATE head SET mail = ?1, wake_at = min(coalesce(wake_at, ?2), ?2) WHERE no = ?3

-- messages --
SELECT id, key, body FROM mailbox WHERE run = (SELECT no FROM head WHERE head.run = ?) AND id > ? ORDER BY id LIMIT 64

-- prios --
-- The priorities that stand in a pool, each found by one look at the index.
WITH RECURSIVE step (prio) AS (
    SELECT max(prio) FROM head WHERE pool = ?1 AND wake_at IS NOT NULL
    UNION ALL
    SELECT (SELECT max(prio) FROM head WHERE pool = ?1 AND wake_at IS NOT NULL AND prio < step.prio) FROM step WHERE step.prio IS NOT NULL
)
SELECT prio FROM step WHERE prio IS NOT NULL

-- due --
-- Pages by (wake_at, no), oldest first: a page full of runs with live owners must not hide the next one.
SELECT wake_at, no, run FROM head
WHERE pool = ?1 AND prio = ?2 AND wake_at <= ?3 AND wake_at >= ?4 AND (wake_at, no) > (?4, ?5)
AND state NOT IN ('halted', 'completed', 'failed', 'cancelled') ORDER BY wake_at, no LIMIT 64

-- take_lease --
UPDATE head SET owner = ?, lease_until = ?, tries = tries + 1 WHERE no = ?

-- move_lease --
UPDATE head SET owner = ?, lease_until = ?, tries = ? WHERE no = ?

-- duty --
SELECT holder, until, epoch FROM duty WHERE name = ?

-- set_duty --
INSERT INTO duty (name, holder, until, epoch) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (name) DO UPDATE SET holder = ?2, until = ?3, epoch = ?4

-- beat --
INSERT INTO node (id, body, seen, until) VALUES (?1, ?2, ?3, ?4) ON CONFLICT (id) DO UPDATE SET body = ?2, seen = ?3, until = ?4

-- gone --
-- Those that were not heard of for long go with whoever says something.
DELETE FROM node WHERE id = ? OR until <= ?

-- nodes --
SELECT body, seen FROM node WHERE until > ? ORDER BY id
