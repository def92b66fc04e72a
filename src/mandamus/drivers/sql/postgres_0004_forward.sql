-- What a writer may update goes forward only. Else a login that can change no record could hide some: by a head that names an earlier
-- one, or another run.

CREATE TRIGGER head_forward BEFORE UPDATE ON mandamus.head FOR EACH ROW
    WHEN (new.no <> old.no OR new.run <> old.run OR new.seq < old.seq OR new.epoch < old.epoch OR new.mail < old.mail
        OR (new.seq = old.seq AND new.hash <> old.hash))
    EXECUTE FUNCTION mandamus.refuse();
CREATE TRIGGER account_forward BEFORE UPDATE ON mandamus.account FOR EACH ROW
    WHEN (new.id <> old.id OR new.version <= old.version)
    EXECUTE FUNCTION mandamus.refuse();

ALTER TABLE mandamus.head ENABLE ALWAYS TRIGGER head_forward;
ALTER TABLE mandamus.account ENABLE ALWAYS TRIGGER account_forward;
