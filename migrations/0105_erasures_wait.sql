-- owner: plugins/retention
-- An erasure waits for runners. Since when one of them does not answer is kept, for a tenant and for a person; so is what the passes of a
-- person's erasure have deleted. The new columns are null or constant, so no table is rewritten.

ALTER TABLE tenants ADD COLUMN untold_since timestamptz;
ALTER TABLE end_user_erasures
  ADD COLUMN erased_rows jsonb NOT NULL DEFAULT '{}',
  ADD COLUMN untold_since timestamptz;

-- Sessions of erased runs, of which a runner has still to be told. Nothing else says whose they were.
CREATE TABLE end_user_sessions (
  tenant_id text NOT NULL,
  -- SHA-256 of the id, as in run_people.
  person bytea NOT NULL,
  session_id text NOT NULL,
  runner_hash text,
  PRIMARY KEY (tenant_id, person, session_id)
);
ALTER TABLE end_user_sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE end_user_sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON end_user_sessions
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
