-- owner: plugins/billing
-- What is delegated counts for the session of the run that delegates, as it does for its person and key: otherwise an agent could spend
-- any amount beyond the cap of its session by having others do its work.

CREATE OR REPLACE FUNCTION billing_hold(p_tenant text, p_run text, p_amount bigint, p_session text, p_profile text, p_key text, p_end_user text,
  p_parent text, p_parent_spent bigint, p_root text, p_least bigint DEFAULT 1)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  account billing_accounts;
  parent billing_holds;
  b billing_budgets;
  use billing_budget_uses;
  subject_of jsonb;
  subject text;
  counted jsonb := '[]';
  moved bigint := 0;
  amount bigint := greatest(p_amount, 1);
  available bigint;
BEGIN
  -- Where there is nothing to look at but the credit, and enough of it, the account is locked by what changes it, at the end.
  IF p_parent IS NULL AND NOT EXISTS (SELECT 1 FROM billing_budgets WHERE tenant_id = p_tenant) AND NOT EXISTS (
    SELECT 1 FROM billing_credits WHERE tenant_id = p_tenant AND remaining > 0 AND expires_at <= now()
  ) THEN
    UPDATE billing_accounts SET held = held + amount WHERE tenant_id = p_tenant AND balance - held >= greatest(amount, p_least);
    IF FOUND THEN
      INSERT INTO billing_holds (tenant_id, run_id, amount, budgets) VALUES (p_tenant, p_run, amount, '[]');
      RETURN amount;
    END IF;
  END IF;
  SELECT * INTO account FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'registration_pending' USING ERRCODE = 'AO402';
  END IF;
  account.balance := account.balance - billing_expire(p_tenant);
  IF p_parent IS NOT NULL THEN
    SELECT * INTO parent FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_parent;
    moved := least(amount, greatest(coalesce(parent.amount, 0) - coalesce(p_parent_spent, 0), 0));
    UPDATE billing_holds h SET amount = h.amount - moved WHERE h.tenant_id = p_tenant AND h.run_id = p_parent AND moved > 0;
    PERFORM billing_hold_budgets(p_tenant, parent.budgets, -moved);
  END IF;
  available := account.balance - account.held + moved;
  IF available < greatest(p_least, 1) THEN
    RAISE EXCEPTION 'credits_exhausted' USING ERRCODE = 'AO402';
  END IF;
  amount := least(amount, available);
  subject_of := jsonb_build_object('tenant', '', 'profile', p_profile, 'key', p_key, 'end_user', p_end_user, 'session', p_session);
  FOR b IN SELECT * FROM billing_budgets WHERE tenant_id = p_tenant ORDER BY id LOOP
    -- What is delegated counts for the person, the key and the session that the parent counts for.
    subject := coalesce((SELECT e ->> 1 FROM jsonb_array_elements(parent.budgets) e WHERE e ->> 0 = b.id
      AND b.scope IN ('key', 'end_user', 'session')), subject_of ->> b.scope);
    CONTINUE WHEN subject IS NULL OR b.subject NOT IN ('*', subject);
    use := billing_use(p_tenant, b.id, subject, CASE b.per WHEN 'run' THEN coalesce(p_root, p_run) ELSE '' END, b.per);
    available := b.cap - use.spent - use.held;
    IF available <= 0 THEN
      PERFORM billing_refuse_budget(b, subject);
    END IF;
    amount := least(amount, available);
    counted := counted || jsonb_build_array(jsonb_build_array(use.budget_id, use.subject, use.run_id));
  END LOOP;
  UPDATE billing_accounts SET held = held + amount - moved WHERE tenant_id = p_tenant;
  PERFORM billing_hold_budgets(p_tenant, counted, amount);
  INSERT INTO billing_holds (tenant_id, run_id, amount, budgets) VALUES (p_tenant, p_run, amount, counted);
  RETURN amount;
END
$$;
