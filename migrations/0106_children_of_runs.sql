-- owner: plugins/runs
-- Which run delegated which (ADR 107). Under row security `parent ->> 'runId'` finds nothing by the index of runs: the operator is not marked as
-- safe, so all runs of the tenant that have a parent were read for the children of one. A column of runs with an index would hold up every start
-- while it is built. So the entries are in a table of their own, which a trigger fills: runs without a parent pay for its condition.
CREATE TABLE run_children (
  tenant_id text NOT NULL,
  -- A run, or the workflow run of a node.
  parent_id text NOT NULL,
  run_id text NOT NULL,
  -- The only index: there is none that a plan from when the table was small could take instead.
  PRIMARY KEY (tenant_id, parent_id, run_id)
);
ALTER TABLE run_children ENABLE ROW LEVEL SECURITY;
ALTER TABLE run_children FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON run_children
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

CREATE FUNCTION note_parent() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO run_children (tenant_id, parent_id, run_id) VALUES (NEW.tenant_id, NEW.parent ->> 'runId', NEW.id) ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;

-- As in 0103_runs_of_end_users.sql, and the entry below its parent. One after the other, so that each is found by its key: joined, all entries of
-- the tenant may be read.
CREATE OR REPLACE FUNCTION forget_people() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
  lost record;
BEGIN
  DELETE FROM run_people p USING gone WHERE p.tenant_id = gone.tenant_id AND p.run_id = gone.id;
  FOR lost IN SELECT tenant_id, id, parent ->> 'runId' AS parent_id FROM gone WHERE parent IS NOT NULL LOOP
    DELETE FROM run_children c WHERE c.tenant_id = lost.tenant_id AND c.parent_id = lost.parent_id AND c.run_id = lost.id;
  END LOOP;
  RETURN NULL;
END
$$;

-- Last, because it waits for whoever is writing runs, and holds up who begins to until this transaction has ended. What is committed before has no
-- entry, and is entered by the next migration; a release before this one that goes on beside it enters what it starts.
CREATE TRIGGER note_parent AFTER INSERT ON runs FOR EACH ROW WHEN (NEW.parent ->> 'runId' IS NOT NULL) EXECUTE FUNCTION note_parent();
