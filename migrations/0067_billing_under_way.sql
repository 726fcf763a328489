-- owner: plugins/billing
-- What runs under way have spent counts where budgets are told of; a run takes fewer statements of the database, and holds its tenant's
-- account for a shorter time; a call without a price does not make the priced ones of its run free.

-- Of what is held, what was spent when it was looked at last.
ALTER TABLE billing_holds ADD COLUMN spent bigint NOT NULL DEFAULT 0;
ALTER TABLE billing_budget_uses ADD COLUMN running bigint NOT NULL DEFAULT 0;

CREATE OR REPLACE FUNCTION billing_hold_budgets(p_tenant text, p_budgets jsonb, p_amount bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF p_budgets IS NULL OR p_budgets = '[]' OR p_amount = 0 THEN
    RETURN;
  END IF;
  UPDATE billing_budget_uses u SET held = u.held + p_amount
  FROM jsonb_array_elements(p_budgets) b
  WHERE u.tenant_id = p_tenant AND u.budget_id = b ->> 0 AND u.subject = b ->> 1 AND u.run_id = b ->> 2;
END
$$;

-- As before, and `p_least`: what must be left of the credit for a run to begin.
DROP FUNCTION billing_hold(text, text, bigint, text, text, text, text, text, bigint, text);
CREATE FUNCTION billing_hold(p_tenant text, p_run text, p_amount bigint, p_session text, p_profile text, p_key text, p_end_user text,
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
    -- What is delegated counts for the person and the key that the parent counts for.
    subject := coalesce(subject_of ->> b.scope, (SELECT e ->> 1 FROM jsonb_array_elements(parent.budgets) e WHERE e ->> 0 = b.id
      AND b.scope IN ('key', 'end_user')));
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

-- Tells that a budget has come to a mark, once for each period. What runs under way have spent counts.
CREATE OR REPLACE FUNCTION billing_tell(p_budget billing_budgets, p_use billing_budget_uses) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  spent bigint := p_use.spent + p_use.running;
  mark integer := CASE WHEN spent >= p_budget.cap THEN 100 WHEN spent * 5 >= p_budget.cap * 4 THEN 80 ELSE 0 END;
BEGIN
  IF mark <= p_use.told THEN
    RETURN;
  END IF;
  UPDATE billing_budget_uses SET told = mark
  WHERE tenant_id = p_use.tenant_id AND budget_id = p_use.budget_id AND subject = p_use.subject AND run_id = p_use.run_id;
  IF p_budget.webhook_url IS NOT NULL THEN
    INSERT INTO webhook_deliveries (tenant_id, id, url, body)
    VALUES (p_use.tenant_id, 'msg_' || replace(gen_random_uuid()::text, '-', ''), p_budget.webhook_url, jsonb_build_object(
      'type', 'budget.alert', 'timestamp', to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
      'data', jsonb_build_object('budgetId', p_budget.id, 'scope', p_budget.scope, 'subject', p_use.subject, 'per', p_budget.per,
        'percent', mark, 'spentCents', spent / 1000000.0, 'capCents', p_budget.cap / 1000000.0))::text);
    PERFORM pg_notify('webhooks', p_use.tenant_id);
  END IF;
END
$$;

-- As before; `p_least`: what must be left of the credit and of each budget beyond what is spent, for the run to go on. Budgets count what
-- the run has spent by now, and are told of.
DROP FUNCTION billing_extend(text, text, bigint, bigint);
CREATE FUNCTION billing_extend(p_tenant text, p_run text, p_spent bigint, p_more bigint, p_least bigint DEFAULT 0) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  account billing_accounts;
  hold billing_holds;
  b billing_budgets;
  least_left billing_budgets;
  least_subject text;
  use billing_budget_uses;
  counted jsonb;
  available bigint;
  more bigint;
BEGIN
  SELECT * INTO account FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  SELECT * INTO hold FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_run;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  available := account.balance - billing_expire(p_tenant) - account.held;
  FOR counted IN SELECT jsonb_array_elements(hold.budgets) LOOP
    SELECT * INTO b FROM billing_budgets WHERE tenant_id = p_tenant AND id = counted ->> 0;
    CONTINUE WHEN NOT FOUND;
    use := billing_use(p_tenant, b.id, counted ->> 1, counted ->> 2, b.per);
    IF b.cap - use.spent - use.held < available THEN
      available := b.cap - use.spent - use.held;
      least_left := b;
      least_subject := use.subject;
    END IF;
  END LOOP;
  IF p_spent + p_least > hold.amount + greatest(available, 0) THEN
    IF least_left.id IS NOT NULL THEN
      PERFORM billing_refuse_budget(least_left, least_subject);
    END IF;
    RAISE EXCEPTION 'credits_exhausted' USING ERRCODE = 'AO402';
  END IF;
  more := least(greatest(p_spent + p_more - hold.amount, 0), greatest(available, 0));
  UPDATE billing_accounts SET held = held + more WHERE tenant_id = p_tenant AND more > 0;
  UPDATE billing_holds h SET amount = h.amount + more, spent = p_spent WHERE h.tenant_id = p_tenant AND h.run_id = p_run;
  FOR counted IN SELECT jsonb_array_elements(hold.budgets) LOOP
    UPDATE billing_budget_uses u SET held = u.held + more, running = u.running + p_spent - hold.spent
    WHERE u.tenant_id = p_tenant AND u.budget_id = counted ->> 0 AND u.subject = counted ->> 1 AND u.run_id = counted ->> 2
    RETURNING * INTO use;
    CONTINUE WHEN NOT FOUND;
    SELECT * INTO b FROM billing_budgets WHERE tenant_id = p_tenant AND id = use.budget_id;
    PERFORM billing_tell(b, use);
  END LOOP;
  RETURN hold.amount + more;
END
$$;

CREATE OR REPLACE FUNCTION billing_release(p_tenant text, p_run text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  hold billing_holds;
BEGIN
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  DELETE FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_run RETURNING * INTO hold;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  UPDATE billing_accounts SET held = held - hold.amount WHERE tenant_id = p_tenant;
  IF hold.budgets <> '[]' THEN
    UPDATE billing_budget_uses u SET held = u.held - hold.amount, running = u.running - hold.spent
    FROM jsonb_array_elements(hold.budgets) b
    WHERE u.tenant_id = p_tenant AND u.budget_id = b ->> 0 AND u.subject = b ->> 1 AND u.run_id = b ->> 2;
  END IF;
  RETURN hold.budgets;
END
$$;

-- Charges a run for what it has used, when it ends. `p_cost` is of the calls whose price is known; `p_unpriced`: there were others. Its
-- entries are written first: they ask nothing of the account, which is locked after them.
DROP FUNCTION billing_settle(text, text, text, bigint, bigint, bigint, text);
CREATE FUNCTION billing_settle(p_tenant text, p_run text, p_profile text, p_cost bigint, p_tools bigint, p_sandbox bigint, p_prices text,
  p_unpriced boolean DEFAULT NULL)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  cost bigint := coalesce(p_cost, 0);
  total bigint := cost + p_tools + p_sandbox;
  unpriced boolean := coalesce(p_unpriced, p_cost IS NULL);
  due bigint := total;
  part bigint;
  hold billing_holds;
  c record;
  counted jsonb;
  b billing_budgets;
  use billing_budget_uses;
BEGIN
  IF NOT EXISTS (SELECT 1 FROM billing_accounts WHERE tenant_id = p_tenant) THEN
    RETURN NULL;
  END IF;
  IF unpriced OR cost > 0 THEN
    PERFORM ledger_post(p_tenant, -cost, 'usage', 'model', p_run, p_run, p_profile, NULL, p_prices, unpriced);
  END IF;
  IF p_tools > 0 THEN
    PERFORM ledger_post(p_tenant, -p_tools, 'usage', 'tool_calls', p_run, p_run, p_profile, NULL, p_prices);
  END IF;
  IF p_sandbox > 0 THEN
    PERFORM ledger_post(p_tenant, -p_sandbox, 'usage', 'sandbox', p_run, p_run, p_profile, NULL, p_prices);
  END IF;
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  DELETE FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_run RETURNING * INTO hold;
  UPDATE billing_accounts SET balance = balance - total, held = held - coalesce(hold.amount, 0) WHERE tenant_id = p_tenant;
  IF due > 0 THEN
    FOR c IN
      SELECT id, remaining FROM billing_credits WHERE tenant_id = p_tenant AND remaining > 0
      ORDER BY priority, expires_at NULLS LAST, created_at, id
    LOOP
      part := least(due, c.remaining);
      UPDATE billing_credits SET remaining = remaining - part WHERE tenant_id = p_tenant AND id = c.id;
      due := due - part;
      EXIT WHEN due <= 0;
    END LOOP;
  END IF;
  IF hold.budgets IS NULL OR hold.budgets = '[]' THEN
    RETURN total;
  END IF;
  FOR counted IN SELECT jsonb_array_elements(hold.budgets) LOOP
    SELECT * INTO b FROM billing_budgets WHERE tenant_id = p_tenant AND id = counted ->> 0;
    CONTINUE WHEN NOT FOUND;
    use := billing_use(p_tenant, b.id, counted ->> 1, counted ->> 2, b.per);
    UPDATE billing_budget_uses u SET spent = u.spent + total, held = u.held - hold.amount, running = u.running - hold.spent
    WHERE u.tenant_id = p_tenant AND u.budget_id = use.budget_id AND u.subject = use.subject AND u.run_id = use.run_id
    RETURNING * INTO use;
    PERFORM billing_tell(b, use);
    -- Of a budget per run, when the run at the top has ended after those below it.
    DELETE FROM billing_budget_uses u
    WHERE p_run = use.run_id AND u.tenant_id = p_tenant AND u.budget_id = use.budget_id AND u.subject = use.subject AND u.run_id = p_run
      AND u.held = 0;
  END LOOP;
  RETURN total;
END
$$;
