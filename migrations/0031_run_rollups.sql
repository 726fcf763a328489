-- owner: plugins/runs
-- What figures and lists of ended runs read, so that they need not read the runs. Filled behind the runs, in small steps, by any
-- conductor (plugins/runs/postgres/rollups.ts); nothing here is written by the start or the end of a run. Whoever reads it adds
-- what is newer than the edge from run_meters and runs. Empty tables: no lock is held for long, however many runs there are.
CREATE TABLE rollup_edges (
  tenant_id text PRIMARY KEY,
  -- Everything that was recorded before is below, and nothing of what came later.
  rolled_until timestamptz NOT NULL DEFAULT '-infinity'
) WITH (fillfactor = 50);

-- What the runs of a profile that ended in a span of time add up to. Read for 30 days, kept for 32.
CREATE TABLE run_rollups (
  tenant_id text NOT NULL,
  -- Minutes: 1, 5, 60 or 1440.
  span integer NOT NULL,
  at timestamptz NOT NULL,
  profile text NOT NULL,
  ok bigint NOT NULL,
  error bigint NOT NULL,
  cancelled bigint NOT NULL,
  interrupted bigint NOT NULL,
  input_tokens bigint NOT NULL,
  output_tokens bigint NOT NULL,
  cached_tokens bigint NOT NULL,
  tool_calls bigint NOT NULL,
  cost_microcents bigint NOT NULL,
  unpriced bigint NOT NULL,
  -- Sessions whose last run ended here. A later run moves its session on, so that the sum up to the edge counts each once.
  sessions bigint NOT NULL,
  last_at timestamptz,
  PRIMARY KEY (tenant_id, span, at, profile)
) WITH (fillfactor = 80);

-- How long those runs took, of all profiles together: each bin is 5 % wider than the one before.
CREATE TABLE run_durations (
  tenant_id text NOT NULL,
  span integer NOT NULL,
  at timestamptz NOT NULL,
  bin integer NOT NULL,
  runs bigint NOT NULL,
  seconds double precision NOT NULL,
  PRIMARY KEY (tenant_id, span, at, bin)
) WITH (fillfactor = 80);

-- When the last run of a session ended, of those that are rolled up.
CREATE TABLE session_ends (
  tenant_id text NOT NULL,
  session_id text NOT NULL,
  profile text NOT NULL,
  last_at timestamptz NOT NULL,
  PRIMARY KEY (tenant_id, session_id)
) WITH (fillfactor = 80);
CREATE INDEX session_ends_old ON session_ends (tenant_id, last_at);

-- The runs from before the edge that are not `ok`: those that ended otherwise, and those that were still running then.
CREATE TABLE run_marks (
  tenant_id text NOT NULL,
  status text NOT NULL,
  started_at timestamptz NOT NULL,
  run_id text NOT NULL,
  profile text NOT NULL,
  PRIMARY KEY (tenant_id, status, started_at, run_id) INCLUDE (profile)
);

ALTER TABLE rollup_edges ENABLE ROW LEVEL SECURITY;
ALTER TABLE rollup_edges FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON rollup_edges
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE run_rollups ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_rollups FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_rollups
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE run_durations ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_durations FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_durations
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE session_ends ENABLE ROW LEVEL SECURITY;
ALTER TABLE session_ends FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON session_ends
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE run_marks ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_marks FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_marks
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The edge of the tenant at hand. A function, because the planner asks it how much there is behind the edge; of a sub-select it knows
-- nothing, and reads all that ever ended.
CREATE FUNCTION rolled_until() RETURNS timestamptz STABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
BEGIN
  RETURN coalesce(
    (SELECT e.rolled_until FROM rollup_edges e WHERE e.tenant_id = NULLIF(current_setting('app.tenant_id', true), '')),
    '-infinity');
END
$$;
