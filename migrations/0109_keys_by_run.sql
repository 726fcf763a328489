-- owner: plugins/idempotency
-- Keys by the run that they stand for, which an erasure of a person deletes. Under row security `plan ->> 'runId'` could use no index, so all keys of
-- the tenant, up to a day of requests, were read for each few runs. A trigger fills the column, so that a release before this one does, too.
ALTER TABLE idempotency_keys ADD COLUMN run_id text;
CREATE INDEX idempotency_keys_run ON idempotency_keys (tenant_id, run_id) WHERE run_id IS NOT NULL;

CREATE FUNCTION note_run_of_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.run_id := NEW.plan ->> 'runId';
  RETURN NEW;
END
$$;
CREATE TRIGGER note_run_of_key BEFORE INSERT OR UPDATE OF plan ON idempotency_keys FOR EACH ROW EXECUTE FUNCTION note_run_of_key();
