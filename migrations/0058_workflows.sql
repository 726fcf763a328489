-- owner: plugins/workflows

-- What is to be done, as its tenant last wrote it. Each change is a version, and a run keeps the one that it began with.
CREATE TABLE workflow_definitions (
  tenant_id text NOT NULL,
  id text NOT NULL,
  name text NOT NULL,
  version integer NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);

CREATE TABLE workflow_versions (
  tenant_id text NOT NULL,
  definition_id text NOT NULL,
  version integer NOT NULL,
  document text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  created_by text NOT NULL,
  PRIMARY KEY (tenant_id, definition_id, version),
  FOREIGN KEY (tenant_id, definition_id) REFERENCES workflow_definitions (tenant_id, id) ON DELETE CASCADE
);

-- JSON of tenants is text here: a NUL in it is an escape that the types json and jsonb refuse now or when it is read.
CREATE TABLE workflow_runs (
  tenant_id text NOT NULL,
  id text NOT NULL,
  definition_id text,
  definition_version integer,
  name text NOT NULL,
  -- The definition without its nodes, which are rows.
  settings text NOT NULL,
  input text NOT NULL,
  -- 0 pending, 1 running, 2 paused, 3 completed, 4 failed, 5 cancelled.
  status smallint NOT NULL DEFAULT 0,
  -- Nodes that are not over, and failed ones that hold the run up.
  unfinished integer NOT NULL,
  failed integer NOT NULL DEFAULT 0,
  -- Whether any node may have a key of concurrency.
  keyed boolean NOT NULL DEFAULT false,
  -- The number of its newest event.
  seq integer NOT NULL DEFAULT 0,
  output text,
  error text,
  depth integer NOT NULL DEFAULT 0,
  parent_run text,
  parent_node text,
  -- The run at the top of a child.
  root_run text,
  rerun_of text,
  schedule_id text,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  started_at timestamptz,
  finished_at timestamptz,
  -- When anything of it changed last.
  moved_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX workflow_runs_newest ON workflow_runs (tenant_id, created_at DESC, id DESC);
CREATE INDEX workflow_runs_open ON workflow_runs (tenant_id, moved_at) WHERE status IN (1, 2);
CREATE INDEX workflow_runs_scheduled ON workflow_runs (tenant_id, schedule_id, status) WHERE schedule_id IS NOT NULL;

CREATE TABLE workflow_nodes (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  -- As its definition says; a part of a map or loop is <node>.<index>.
  id text NOT NULL,
  position integer NOT NULL,
  type text NOT NULL,
  -- As its definition has it; empty for a part, which is what its map or loop says.
  spec text NOT NULL,
  -- The map or loop that it is a part of, and what it has of it.
  parent text,
  part integer,
  item text,
  -- 0 pending, 1 ready, 2 running, 3 ok, 4 error, 5 skipped, 6 cancelled.
  status smallint NOT NULL DEFAULT 0,
  -- What it waits for: dependencies, or of a running map or loop its parts. And how many of the former were not skipped.
  waits integer NOT NULL DEFAULT 0,
  alive integer NOT NULL DEFAULT 0,
  attempt integer NOT NULL DEFAULT 0,
  -- Attempts that count for its retries, and those of which nobody knows how they ended.
  tries integer NOT NULL DEFAULT 0,
  lost integer NOT NULL DEFAULT 0,
  -- The attempt that its idempotency key names: the first of those that may have had an effect.
  effect integer NOT NULL DEFAULT 0,
  priority integer NOT NULL DEFAULT 0,
  -- Of a ready node when it may begin; of a running one that nobody executes here when it is to be looked at.
  due_at timestamptz,
  -- Who executes it, and until when that is believed.
  lease_owner text,
  lease_until timestamptz,
  concurrency_key text,
  -- The run, workflow run or approval that it waits for.
  waits_for text,
  output text,
  error text,
  -- What its agents cost, of all attempts, as far as that is known; and what of the run's `maxCostCents` is set aside for the one under way.
  cost_cents double precision NOT NULL DEFAULT 0,
  reserved_cents double precision NOT NULL DEFAULT 0,
  started_at timestamptz,
  finished_at timestamptz,
  PRIMARY KEY (tenant_id, run_id, id),
  FOREIGN KEY (tenant_id, run_id) REFERENCES workflow_runs (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 70);
CREATE INDEX workflow_nodes_open ON workflow_nodes (tenant_id, run_id, status, priority DESC, position) WHERE status IN (1, 2);
CREATE INDEX workflow_nodes_parts ON workflow_nodes (tenant_id, run_id, parent, part) WHERE parent IS NOT NULL;
CREATE INDEX workflow_nodes_waiting ON workflow_nodes (tenant_id, waits_for) WHERE waits_for IS NOT NULL AND status = 2;
CREATE INDEX workflow_nodes_keyed ON workflow_nodes (tenant_id, concurrency_key, status) WHERE concurrency_key IS NOT NULL AND status IN (1, 2);

CREATE TABLE workflow_edges (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  from_node text NOT NULL,
  to_node text NOT NULL,
  PRIMARY KEY (tenant_id, run_id, from_node, to_node),
  FOREIGN KEY (tenant_id, run_id) REFERENCES workflow_runs (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE workflow_events (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  seq integer NOT NULL,
  event text NOT NULL,
  PRIMARY KEY (tenant_id, run_id, seq),
  FOREIGN KEY (tenant_id, run_id) REFERENCES workflow_runs (tenant_id, id) ON DELETE CASCADE
);

-- Signals that came before anybody waited for them.
CREATE TABLE workflow_signals (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  name text NOT NULL,
  payload text NOT NULL,
  PRIMARY KEY (tenant_id, run_id, name),
  FOREIGN KEY (tenant_id, run_id) REFERENCES workflow_runs (tenant_id, id) ON DELETE CASCADE
);

CREATE TABLE approvals (
  tenant_id text NOT NULL,
  id text NOT NULL,
  workflow_run_id text NOT NULL,
  node_id text NOT NULL,
  message text NOT NULL,
  status text NOT NULL DEFAULT 'waiting' CHECK (status IN ('waiting', 'approved', 'rejected', 'cancelled')),
  expires_at timestamptz,
  on_expiry text NOT NULL CHECK (on_expiry IN ('reject', 'approve')),
  comment text,
  resolved_by text,
  created_at timestamptz NOT NULL DEFAULT now(),
  resolved_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  FOREIGN KEY (tenant_id, workflow_run_id) REFERENCES workflow_runs (tenant_id, id) ON DELETE CASCADE
);
CREATE INDEX approvals_newest ON approvals (tenant_id, created_at DESC, id DESC);

CREATE TABLE workflow_schedules (
  tenant_id text NOT NULL,
  id text NOT NULL,
  -- What a client wrote: what is run, when, and how.
  document text NOT NULL,
  definition_id text,
  status text NOT NULL CHECK (status IN ('active', 'paused')),
  -- The next time of its cron that has not been dealt with.
  next_at timestamptz,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX workflow_schedules_due ON workflow_schedules (tenant_id, next_at) WHERE status = 'active';

-- Each time of a schedule once, whatever became of it.
CREATE TABLE workflow_firings (
  tenant_id text NOT NULL,
  schedule_id text NOT NULL,
  at timestamptz NOT NULL,
  kind text NOT NULL CHECK (kind IN ('cron', 'manual')),
  outcome text NOT NULL CHECK (outcome IN ('started', 'queued', 'skipped', 'missed', 'failed')),
  run_id text,
  message text,
  PRIMARY KEY (tenant_id, schedule_id, at, kind),
  FOREIGN KEY (tenant_id, schedule_id) REFERENCES workflow_schedules (tenant_id, id) ON DELETE CASCADE
);

DO $$
DECLARE name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['workflow_definitions', 'workflow_versions', 'workflow_runs', 'workflow_nodes', 'workflow_edges',
    'workflow_events', 'workflow_signals', 'approvals', 'workflow_schedules', 'workflow_firings']
  LOOP
    EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
    EXECUTE format('ALTER TABLE %I FORCE ROW LEVEL SECURITY', name);
    EXECUTE format($policy$CREATE POLICY tenant ON %I
      USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
      WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))$policy$, name);
  END LOOP;
END
$$;

-- Whoever ends the run of an agent node, its workflow is woken by the same transaction. The condition is all that other runs pay.
CREATE FUNCTION tell_workflow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_notify('workflows', NEW.tenant_id || ' ' || NEW.id);
  RETURN NULL;
END
$$;
CREATE TRIGGER tell_workflow AFTER UPDATE OF finished_at ON runs FOR EACH ROW
  WHEN (NEW.id LIKE 'wfrun\_%' AND NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL)
  EXECUTE FUNCTION tell_workflow();
