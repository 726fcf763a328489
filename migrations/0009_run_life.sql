-- owner: plugins/run-store-postgres
-- Runs that wait for their session, runs that are tried again, and what a finished run used.

-- `queued`: accepted while its session was busy. It belongs to nobody until it is claimed, and its epoch is 0.
ALTER TABLE runs
  ADD COLUMN queued_at timestamptz,
  -- The number of the run in its session, in the order in which runs were claimed: what orders a session's events.
  ADD COLUMN ordinal integer,
  -- How many times it was begun; more than one when its profile has it tried again after a crash.
  ADD COLUMN attempt integer NOT NULL DEFAULT 1,
  DROP CONSTRAINT runs_status_check,
  DROP CONSTRAINT runs_finished,
  ADD CONSTRAINT runs_status_check CHECK (status IN ('queued', 'running', 'ok', 'error', 'cancelled', 'interrupted')),
  ADD CONSTRAINT runs_finished CHECK ((status IN ('queued', 'running')) = (finished_at IS NULL));

-- Runs from before are numbered by their start. The owner of a table is bound by forced row security too, so it is lifted
-- for this statement; nobody sees that, because the transaction holds the table.
ALTER TABLE runs NO FORCE ROW LEVEL SECURITY;
UPDATE runs r SET ordinal = n.ordinal
FROM (
  SELECT tenant_id, id, row_number() OVER (PARTITION BY tenant_id, session_id ORDER BY started_at, id) AS ordinal FROM runs
) n
WHERE r.tenant_id = n.tenant_id AND r.id = n.id;
ALTER TABLE runs FORCE ROW LEVEL SECURITY;

-- The line in front of each busy session. Rows are deleted when they are claimed: the table is nearly always empty, and
-- looking into it costs the end of a run nothing.
CREATE TABLE run_queue (
  tenant_id text NOT NULL,
  session_id text NOT NULL,
  position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  run_id text NOT NULL,
  -- An interrupt: it goes before all that wait, and whatever executes in the session is ended for it.
  front boolean NOT NULL DEFAULT false,
  PRIMARY KEY (tenant_id, session_id, position),
  CONSTRAINT run_queue_run UNIQUE (tenant_id, run_id)
);

-- Tenants with a queue, for those who look after all of them: row security hides the queues themselves from such a look.
-- A row is deleted by its stamp once its tenant's queues were seen empty, so that a run that came since is not forgotten.
CREATE TABLE run_queue_tenants (
  tenant_id text PRIMARY KEY,
  stamp timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row per finished run, written by the statement that finishes it: a crash neither loses nor doubles what it used.
-- Append-only. One index: every run pays for it.
CREATE TABLE run_meters (
  tenant_id text NOT NULL,
  recorded_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  run_id text NOT NULL,
  session_id text NOT NULL,
  profile text NOT NULL,
  status text NOT NULL,
  started_at timestamptz NOT NULL,
  model text,
  input_tokens bigint NOT NULL DEFAULT 0,
  output_tokens bigint NOT NULL DEFAULT 0,
  cached_tokens bigint NOT NULL DEFAULT 0,
  tool_calls integer NOT NULL DEFAULT 0,
  -- Millionths of a cent. Null: tokens were used and no price is known for the model, which is not the same as free.
  cost_microcents bigint,
  PRIMARY KEY (tenant_id, recorded_at, run_id)
);

-- Amounts that are no run's: ingress requests of a published agent, seconds of a sandbox. A writer sets the whole amount
-- of a minute, so that a write repeated after a crash changes nothing.
CREATE TABLE usage_meters (
  tenant_id text NOT NULL,
  meter text NOT NULL,
  -- What it is counted for: the published agent, the session.
  subject text NOT NULL,
  minute timestamptz NOT NULL,
  amount bigint NOT NULL CHECK (amount >= 0),
  recorded_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, meter, subject, minute)
);
CREATE INDEX usage_meters_recorded ON usage_meters (tenant_id, meter, recorded_at);

ALTER TABLE run_queue ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_queue FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_queue
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE run_meters ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_meters FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_meters
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE usage_meters ENABLE ROW LEVEL SECURITY;
ALTER TABLE usage_meters FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON usage_meters
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
