-- owner: plugins/runs

-- A run whose calls wait for people may be left to nobody meanwhile. `waited_ms` is how long it was so, which is no time of the run: null
-- as long as it has asked for nothing. What is no column of the two hottest statements costs them nothing.
ALTER TABLE runs ADD COLUMN parked_at timestamptz, ADD COLUMN waited_ms bigint;
-- Sweeps look for runs of a day; these may be older.
CREATE INDEX runs_waited ON runs (tenant_id, claim_owner) WHERE waited_ms IS NOT NULL;

-- Whoever ends a run, what it asked for is closed by the same transaction. Runs that asked for nothing pay for the condition.
CREATE FUNCTION close_approvals() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  UPDATE approvals SET status = 'cancelled', resolved_at = now()
  WHERE tenant_id = NEW.tenant_id AND run_id = NEW.id AND status = 'waiting';
  RETURN NULL;
END
$$;
CREATE TRIGGER close_approvals AFTER UPDATE OF finished_at ON runs FOR EACH ROW
  WHEN (NEW.waited_ms IS NOT NULL AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
  EXECUTE FUNCTION close_approvals();
