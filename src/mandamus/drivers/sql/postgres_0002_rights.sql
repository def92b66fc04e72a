-- Who may write: members of the role that is called like the schema. It owns nothing and cannot log in by itself; a worker's login is
-- made a member: GRANT mandamus TO worker_1. Evidence it may add and read, never change. Tables are made by another role, the owner.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'mandamus') THEN
        BEGIN
            CREATE ROLE mandamus NOLOGIN;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL;  -- another ledger of this server was faster
        END;
    END IF;
END $$;

REVOKE ALL ON SCHEMA mandamus FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA mandamus FROM PUBLIC;
GRANT USAGE ON SCHEMA mandamus TO mandamus;
GRANT SELECT, INSERT ON mandamus.event, mandamus.payload, mandamus.mailbox, mandamus.delta TO mandamus;
GRANT SELECT, INSERT, UPDATE ON mandamus.head, mandamus.account, mandamus.duty TO mandamus;
GRANT SELECT, INSERT, UPDATE, DELETE ON mandamus.node TO mandamus;
GRANT EXECUTE ON FUNCTION mandamus.instant(), mandamus.accounts_stand(text[], bigint[], bigint[], boolean[]) TO mandamus;
GRANT SELECT ON mandamus.migration, mandamus.records, mandamus.payloads TO mandamus;
