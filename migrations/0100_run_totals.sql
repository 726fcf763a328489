-- owner: plugins/runs
-- What the runs of all profiles together that ended in a span of time add up to. Figures of a tenant read these: by profile there are
-- as many rows of each span as profiles that ran.
CREATE TABLE run_totals (
  tenant_id text NOT NULL,
  -- Minutes: 1, 5, 60 or 1440.
  span integer NOT NULL,
  at timestamptz NOT NULL,
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
  PRIMARY KEY (tenant_id, span, at)
) WITH (fillfactor = 80);
ALTER TABLE run_totals ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_totals FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_totals
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- The roll-ups of profiles say what is added, also when a release before this one writes them. A step that only moves sessions changes no
-- counter, and nothing here. What is deleted for its age is deleted here as well, and is not taken away.
CREATE FUNCTION add_to_run_totals() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  counters constant text[] := '{ok,error,cancelled,interrupted,input_tokens,output_tokens,cached_tokens,tool_calls,cost_microcents,unpriced}';
BEGIN
  EXECUTE (
    SELECT format(
      'INSERT INTO run_totals AS t (tenant_id, span, at, %1$s)
       SELECT tenant_id, span, at, %2$s FROM (SELECT tenant_id, span, at, %1$s FROM added %3$s) change
       GROUP BY 1, 2, 3 HAVING sum(ok + error + cancelled + interrupted) <> 0
       ON CONFLICT (tenant_id, span, at) DO UPDATE SET %4$s',
      string_agg(c, ', '), string_agg(format('sum(%s)', c), ', '),
      CASE TG_OP WHEN 'UPDATE' THEN format('UNION ALL SELECT tenant_id, span, at, %s FROM before', string_agg('-' || c, ', ')) ELSE '' END,
      string_agg(format('%1$s = t.%1$s + excluded.%1$s', c), ', '))
    FROM unnest(counters) c
  );
  RETURN NULL;
END
$$;
-- They hold up steps of roll-ups, and nobody who reads, until this transaction has ended.
CREATE TRIGGER add_new_to_run_totals AFTER INSERT ON run_rollups REFERENCING NEW TABLE AS added FOR EACH STATEMENT
  EXECUTE FUNCTION add_to_run_totals();
CREATE TRIGGER add_changed_to_run_totals AFTER UPDATE ON run_rollups REFERENCING OLD TABLE AS before NEW TABLE AS added FOR EACH STATEMENT
  EXECUTE FUNCTION add_to_run_totals();

-- What was added up before, tenant by tenant: lifting row security would lock whoever reads figures out.
DO $$
DECLARE
  tenant text;
BEGIN
  FOR tenant IN SELECT id FROM tenants LOOP
    PERFORM set_config('app.tenant_id', tenant, true);
    INSERT INTO run_totals
    SELECT tenant_id, span, at, sum(ok), sum(error), sum(cancelled), sum(interrupted), sum(input_tokens), sum(output_tokens),
      sum(cached_tokens), sum(tool_calls), sum(cost_microcents), sum(unpriced)
    FROM run_rollups WHERE tenant_id = tenant GROUP BY tenant_id, span, at
    HAVING sum(ok + error + cancelled + interrupted) <> 0;
  END LOOP;
  PERFORM set_config('app.tenant_id', '', true);
END
$$;
