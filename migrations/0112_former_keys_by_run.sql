-- owner: plugins/idempotency
-- The keys from before their runs were noted. A transaction of its own, because the column's holds up every request with a key. Those of requests
-- under way are left out, which would wait for this one: they go after a day like all others.
DO $$
DECLARE
  tenant text;
BEGIN
  PERFORM set_config('enable_seqscan', 'off', true);
  FOR tenant IN SELECT id FROM tenants LOOP
    PERFORM set_config('app.tenant_id', tenant, true);
    UPDATE idempotency_keys SET run_id = plan ->> 'runId'
    WHERE tenant_id = tenant AND run_id IS NULL AND plan ->> 'runId' IS NOT NULL
      AND (locked_until IS NULL OR locked_until <= now());
  END LOOP;
  PERFORM set_config('app.tenant_id', '', true);
END
$$;
