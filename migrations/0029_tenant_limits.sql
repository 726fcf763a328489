-- owner: plugins/limits
-- What a tenant may have where that is not what the role file says: names of limits and their values.
ALTER TABLE tenants
  ADD COLUMN limits jsonb,
  -- When they were last changed: processes look for what is newer than what they know.
  ADD COLUMN limits_at timestamptz;
CREATE INDEX tenants_limits_at ON tenants (limits_at) WHERE limits_at IS NOT NULL;

-- How many runs of a tenant each conductor may execute: {"<instance>": runs}. One small row for each tenant with runs, written
-- when a conductor needs more than it has at hand.
CREATE TABLE run_shares (
  tenant_id text PRIMARY KEY,
  held jsonb NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE run_shares ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_shares FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_shares
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
