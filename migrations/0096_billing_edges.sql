-- owner: plugins/billing

-- A transaction has the time of its beginning, and may have waited for another one that began in the next period: what that one has
-- counted stays, and counts for both.
CREATE OR REPLACE FUNCTION billing_use(p_tenant text, p_budget text, p_subject text, p_run text, p_per text) RETURNS billing_budget_uses
LANGUAGE plpgsql AS $$
DECLARE
  use billing_budget_uses;
BEGIN
  INSERT INTO billing_budget_uses AS u (tenant_id, budget_id, subject, run_id, period)
  VALUES (p_tenant, p_budget, p_subject, p_run, billing_period(p_per))
  ON CONFLICT (tenant_id, budget_id, subject, run_id) DO UPDATE SET
    spent = CASE WHEN p_per = 'run' OR u.period >= excluded.period THEN u.spent ELSE 0 END,
    told = CASE WHEN p_per = 'run' OR u.period >= excluded.period THEN u.told ELSE 0 END,
    period = greatest(u.period, excluded.period)
  RETURNING * INTO use;
  RETURN use;
END
$$;

-- What a charge of a run is called that another run of the same id, which is gone by now, has not been charged under.
CREATE FUNCTION billing_reference(p_run text, p_started timestamptz) RETURNS text LANGUAGE sql STABLE AS $$
  SELECT p_run || '#' || floor(extract(epoch FROM p_started) * 1000000)
$$;

-- As before, for what a run is charged: whoever uses the id of a run again that retention has deleted is charged for both, in entries of
-- each. Other transfers are those of one reference once.
CREATE OR REPLACE FUNCTION ledger_post(p_tenant text, p_amount bigint, p_counter text, p_kind text, p_reference text, p_run text DEFAULT NULL,
  p_profile text DEFAULT NULL, p_note text DEFAULT NULL, p_prices text DEFAULT NULL, p_unpriced boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ledger_entries (tenant_id, account, amount, kind, reference, run_id, profile, note, prices, unpriced)
  VALUES (p_tenant, 'credit', p_amount, p_kind, p_reference, p_run, p_profile, p_note, p_prices, p_unpriced),
    (p_tenant, p_counter, -p_amount, p_kind, p_reference, p_run, p_profile, p_note, p_prices, p_unpriced)
  ON CONFLICT DO NOTHING;
  IF FOUND OR p_run IS DISTINCT FROM p_reference THEN
    RETURN FOUND;
  END IF;
  RETURN ledger_post(p_tenant, p_amount, p_counter, p_kind, billing_reference(r.id, r.started_at), p_run, p_profile, p_note, p_prices, p_unpriced)
  FROM runs r WHERE r.tenant_id = p_tenant AND r.id = p_run;
END
$$;
