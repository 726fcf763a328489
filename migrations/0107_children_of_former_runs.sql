-- owner: plugins/runs
-- The runs that were delegated before there was `run_children`, tenant by tenant: lifting row security would lock whoever starts a run out. A
-- transaction of its own, because the trigger's holds up starts. They are read by `runs_parent`, which stays for a release before this one.
DO $$
DECLARE
  tenant text;
BEGIN
  -- What is entered meanwhile is not seen by an erasure of a tenant, which would prove that nothing is left: it waits. Nobody works for these.
  PERFORM 1 FROM tenants WHERE deleted_at IS NOT NULL AND erased_at IS NULL FOR SHARE;
  -- Not all runs of all tenants once for each tenant.
  PERFORM set_config('enable_seqscan', 'off', true);
  FOR tenant IN SELECT id FROM tenants LOOP
    PERFORM set_config('app.tenant_id', tenant, true);
    INSERT INTO run_children (tenant_id, parent_id, run_id)
    SELECT tenant_id, parent ->> 'runId', id FROM runs
    WHERE tenant_id = tenant AND parent IS NOT NULL AND parent ->> 'runId' IS NOT NULL
    ON CONFLICT DO NOTHING;
  END LOOP;
  -- Whoever has deleted a run meanwhile did not see its entry. Of a run that is deleted between this and the commit three ids stay: runs are looked up
  -- before they are shown or added up, and where those of a tree are counted it was one of them.
  FOR tenant IN SELECT id FROM tenants LOOP
    PERFORM set_config('app.tenant_id', tenant, true);
    DELETE FROM run_children c WHERE c.tenant_id = tenant
      AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = tenant AND r.id = c.run_id);
  END LOOP;
  PERFORM set_config('app.tenant_id', '', true);
END
$$;
