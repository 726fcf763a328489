-- owner: plugins/idempotency
-- The keys from before their runs were noted. A transaction of its own, because the column's holds up every request with a key.
DO $$
DECLARE
  tenant text;
BEGIN
  PERFORM set_config('enable_seqscan', 'off', true);
  FOR tenant IN SELECT id FROM tenants LOOP
    PERFORM set_config('app.tenant_id', tenant, true);
    UPDATE idempotency_keys SET run_id = plan ->> 'runId'
    WHERE tenant_id = tenant AND run_id IS NULL AND plan ->> 'runId' IS NOT NULL;
  END LOOP;
  PERFORM set_config('app.tenant_id', '', true);
END
$$;
