-- owner: plugins/retention
-- Up to where retention has gone through the runs of a tenant, in the order of their start, to delete event logs by age. Each pass goes on from there,
-- so it reads no run again whose log is gone. A mark on each run would need an index that every start and every end of a run writes.
CREATE TABLE run_logs_seen (
  tenant_id text PRIMARY KEY,
  started_at timestamptz NOT NULL,
  run_id text NOT NULL
) WITH (fillfactor = 50);
ALTER TABLE run_logs_seen ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_logs_seen FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_logs_seen
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The few runs before that place that had not ended for long enough when it passed them. Each pass looks at these as well.
CREATE TABLE run_logs_left (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  PRIMARY KEY (tenant_id, run_id)
);
ALTER TABLE run_logs_left ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_logs_left FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_logs_left
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
