-- owner: plugins/retention
-- How long what a tenant has is kept, and what was erased. The new columns are null or constant, so no table is rewritten.

ALTER TABLE tenants
  -- Days by kind, where they are not those of the role file.
  ADD COLUMN retention jsonb,
  -- Nothing of the tenant is deleted, by age or on request.
  ADD COLUMN legal_hold boolean NOT NULL DEFAULT false,
  -- When the erasure of a deleted tenant is due; from then on it cannot be brought back.
  ADD COLUMN erase_at timestamptz,
  -- When nothing of it was left but this row, and how many rows there were, by table: the proof.
  ADD COLUMN erased_at timestamptz,
  ADD COLUMN erased_rows jsonb;

-- Runs whose rows are gone: conductors remove their files by it.
CREATE TABLE erased_runs (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, run_id)
);
CREATE INDEX erased_runs_at ON erased_runs (tenant_id, at, run_id);
ALTER TABLE erased_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE erased_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON erased_runs
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- End users whose erasure was asked for and is not over: something of theirs was under way, or the process died.
CREATE TABLE end_user_erasures (
  tenant_id text NOT NULL,
  end_user_id text NOT NULL,
  asked_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, end_user_id)
);
ALTER TABLE end_user_erasures ENABLE ROW LEVEL SECURITY;
ALTER TABLE end_user_erasures FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON end_user_erasures
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- Every conversation has a public run of its end user. Chats without one pay nothing for it.
CREATE INDEX public_runs_end_user ON public_runs (tenant_id, end_user_id, conversation_id) WHERE end_user_id IS NOT NULL;

-- What came of a write that is its own proof: how many rows were erased.
ALTER TABLE audit_outcomes ADD COLUMN detail jsonb;

-- The log still only grows for everybody but retention, which says so for its transaction. That alone opens little: whatever
-- was set, nothing younger than 30 days goes, nothing under a legal hold, and nothing is ever changed.
CREATE OR REPLACE FUNCTION refuse_audit_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND current_setting('app.audit_retention', true) = 'on' THEN
    RETURN NULL;
  END IF;
  RAISE EXCEPTION 'the audit log is append-only' USING ERRCODE = 'insufficient_privilege';
END
$$;
CREATE FUNCTION check_audit_retention() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF EXISTS (
    SELECT FROM gone LEFT JOIN tenants t ON t.id = gone.tenant_id
    WHERE t.id IS NULL OR t.legal_hold
      OR NOT (gone.at < now() - interval '30 days' OR (t.deleted_at IS NOT NULL AND coalesce(t.erase_at <= now(), false)))
  ) THEN
    RAISE EXCEPTION 'the audit log is kept for 30 days at least, and under a legal hold for ever'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NULL;
END
$$;
CREATE TRIGGER old_enough AFTER DELETE ON audit_entries REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION check_audit_retention();
CREATE TRIGGER old_enough AFTER DELETE ON audit_outcomes REFERENCING OLD TABLE AS gone
  FOR EACH STATEMENT EXECUTE FUNCTION check_audit_retention();
ALTER TABLE audit_entries ENABLE ALWAYS TRIGGER old_enough;
ALTER TABLE audit_outcomes ENABLE ALWAYS TRIGGER old_enough;
