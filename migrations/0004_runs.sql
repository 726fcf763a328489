-- owner: plugins/run-store-postgres
-- Sessions, runs and their event logs. No foreign keys between them: a session and its run are written by one statement,
-- rows are never deleted, and each key would cost a look-up and a row lock in the two hottest transactions of the service.

CREATE TABLE sessions (
  tenant_id text NOT NULL,
  id text NOT NULL,
  profile text NOT NULL,
  runtime text NOT NULL,
  -- The profile as it was when the session was created; later edits do not reach it.
  profile_snapshot jsonb NOT NULL,
  status text NOT NULL CHECK (status IN ('idle', 'running', 'errored', 'shutdown')),
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  last_used_at timestamptz NOT NULL DEFAULT now(),
  last_prompt text,
  last_run_status text,
  run_count integer NOT NULL DEFAULT 0,
  runtime_session_id text,
  -- Count of saved state bundles; 0 means none yet.
  state_rev bigint NOT NULL DEFAULT 0,
  -- The claim: which process runs which run here. The epoch only rises, and fences whoever holds an older one.
  claim_owner text,
  claim_run text,
  claim_epoch bigint NOT NULL DEFAULT 0,
  CONSTRAINT sessions_claim CHECK ((status = 'running') = (claim_run IS NOT NULL))
) WITH (fillfactor = 70);
-- Only columns that never change are indexed, so that claiming and releasing stay heap-only updates.
CREATE INDEX sessions_newest ON sessions (tenant_id, created_at DESC, id DESC);
-- Last of the indexes: before a table's first ANALYZE they all seem to cost the same, and of equals the planner takes the
-- youngest. Any other would read all of the tenant's entries for a look-up by id.
ALTER TABLE sessions ADD PRIMARY KEY (tenant_id, id);

CREATE TABLE runs (
  tenant_id text NOT NULL,
  id text NOT NULL,
  session_id text NOT NULL,
  profile text NOT NULL,
  status text NOT NULL CHECK (status IN ('running', 'ok', 'error', 'cancelled', 'interrupted')),
  prompt text NOT NULL,
  -- json, not jsonb: text of a client or a model may hold \u0000, which jsonb refuses.
  metadata json,
  claim_owner text NOT NULL,
  claim_epoch bigint NOT NULL,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at timestamptz,
  result text,
  error_code text,
  error_message text,
  usage json,
  CONSTRAINT runs_finished CHECK ((status = 'running') = (finished_at IS NULL))
) WITH (fillfactor = 70);
CREATE INDEX runs_newest ON runs (tenant_id, started_at DESC, id DESC);
CREATE INDEX runs_of_session ON runs (tenant_id, session_id, started_at DESC, id DESC);
CREATE INDEX runs_of_profile ON runs (tenant_id, profile, started_at DESC, id DESC);
-- What a sweep looks for. Not partial on the status: a column in a predicate makes the end of a run rewrite every index.
CREATE INDEX runs_of_owner ON runs (tenant_id, claim_owner, started_at);
ALTER TABLE runs ADD PRIMARY KEY (tenant_id, id);

-- Append-only: one row per flush, holding the NDJSON bytes of consecutive events as every reader gets them.
CREATE TABLE run_events (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  first_seq integer NOT NULL,
  count integer NOT NULL CHECK (count > 0),
  lines bytea NOT NULL,
  PRIMARY KEY (tenant_id, run_id, first_seq)
);

-- The newest state bundle of a session, opaque to us.
CREATE TABLE session_state (
  tenant_id text NOT NULL,
  session_id text NOT NULL,
  content_type text NOT NULL,
  bytes bytea NOT NULL,
  runtime_session_id text,
  saved_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, session_id)
);

ALTER TABLE sessions ENABLE ROW LEVEL SECURITY;
ALTER TABLE sessions FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON sessions
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE runs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON runs
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE run_events ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_events FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_events
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE session_state ENABLE ROW LEVEL SECURITY;
ALTER TABLE session_state FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON session_state
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
