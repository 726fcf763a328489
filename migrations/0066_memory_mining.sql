-- owner: plugins/memory
-- How far the finished conversations of a tenant are mined. Only tenants with a profile that asks for it have a row.
CREATE TABLE memory_mining (
  tenant_id text PRIMARY KEY,
  -- The last run that was looked at, by when its end was recorded.
  recorded_at timestamptz NOT NULL,
  run_id text NOT NULL DEFAULT ''
) WITH (fillfactor = 50);

ALTER TABLE memory_mining ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_mining FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_mining
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
