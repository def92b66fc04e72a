-- Appends that count on from each other, before any of them is stored, name the version that they follow by its hash as well: another
-- process may have made the same number meanwhile. Otherwise as `accounts_stand`, which ledgers of the version before still call.

CREATE FUNCTION mandamus.accounts_follow(ids text[], versions bigint[], hashes text[], locks bigint[], alone boolean[]) RETURNS boolean
    LANGUAGE plpgsql VOLATILE COST 100000 AS $$
BEGIN
    PERFORM CASE WHEN x.alone THEN pg_advisory_xact_lock(x.lock) ELSE pg_advisory_xact_lock_shared(x.lock) END
        FROM unnest(locks, alone) AS x(lock, alone);
    RETURN NOT EXISTS (
        SELECT FROM unnest(ids, versions, hashes) AS x(id, version, hash) LEFT JOIN mandamus.account a ON a.id = x.id COLLATE "C"
        WHERE coalesce(a.version, 0) <> x.version OR (x.hash <> '' AND coalesce(a.hash, '') <> x.hash)
    );
END $$;

GRANT EXECUTE ON FUNCTION mandamus.accounts_follow(text[], bigint[], text[], bigint[], boolean[]) TO mandamus;
