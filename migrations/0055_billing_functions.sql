-- owner: plugins/billing

-- The money of runs is moved by the statements that start and end them, which call these functions: so no crash comes between a run and
-- its money, and a run costs no further round trip. Each locks the account first. A refusal has the SQLSTATE AO402: its message is the code
-- of the answer, and JSON for its sentence.

-- Two rows that add up to 0. `p_amount` is by what the tenant has more. False: this transfer was written before.
CREATE FUNCTION ledger_post(p_tenant text, p_amount bigint, p_counter text, p_kind text, p_reference text, p_run text DEFAULT NULL,
  p_profile text DEFAULT NULL, p_note text DEFAULT NULL, p_prices text DEFAULT NULL, p_unpriced boolean DEFAULT false)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ledger_entries (tenant_id, account, amount, kind, reference, run_id, profile, note, prices, unpriced)
  VALUES (p_tenant, 'credit', p_amount, p_kind, p_reference, p_run, p_profile, p_note, p_prices, p_unpriced),
    (p_tenant, p_counter, -p_amount, p_kind, p_reference, p_run, p_profile, p_note, p_prices, p_unpriced)
  ON CONFLICT DO NOTHING;
  RETURN FOUND;
END
$$;

-- Takes an amount out of the credits of a tenant, whose account is locked. What they do not have is owed: then the balance is below 0.
CREATE FUNCTION billing_spend(p_tenant text, p_amount bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  due bigint := p_amount;
  part bigint;
  c record;
BEGIN
  UPDATE billing_accounts SET balance = balance - p_amount WHERE tenant_id = p_tenant AND p_amount <> 0;
  FOR c IN
    SELECT id, remaining FROM billing_credits WHERE tenant_id = p_tenant AND remaining > 0
    ORDER BY priority, expires_at NULLS LAST, created_at, id
  LOOP
    EXIT WHEN due <= 0;
    part := least(due, c.remaining);
    UPDATE billing_credits SET remaining = remaining - part WHERE tenant_id = p_tenant AND id = c.id;
    due := due - part;
  END LOOP;
END
$$;

-- Writes off what has expired of the credits of a tenant, whose account is locked. Returns how much that was.
CREATE FUNCTION billing_expire(p_tenant text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  total bigint := 0;
  c record;
BEGIN
  FOR c IN SELECT id, remaining FROM billing_credits WHERE tenant_id = p_tenant AND remaining > 0 AND expires_at <= now() LOOP
    PERFORM ledger_post(p_tenant, -c.remaining, 'expired', 'expiry', c.id);
    UPDATE billing_credits SET remaining = 0 WHERE tenant_id = p_tenant AND id = c.id;
    total := total + c.remaining;
  END LOOP;
  UPDATE billing_accounts SET balance = balance - total WHERE tenant_id = p_tenant AND total > 0;
  RETURN total;
END
$$;

-- Gives a tenant credit, which first pays what it owes. False: this was given before.
CREATE FUNCTION billing_credit(p_tenant text, p_id text, p_amount bigint, p_counter text, p_kind text, p_reference text,
  p_priority integer DEFAULT 100, p_expires timestamptz DEFAULT NULL, p_note text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  had bigint;
BEGIN
  INSERT INTO billing_accounts (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  SELECT balance INTO had FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  IF NOT ledger_post(p_tenant, p_amount, p_counter, p_kind, p_reference, p_note => p_note) THEN
    RETURN false;
  END IF;
  UPDATE billing_accounts SET balance = balance + p_amount WHERE tenant_id = p_tenant;
  INSERT INTO billing_credits (tenant_id, id, kind, amount, remaining, priority, expires_at)
  VALUES (p_tenant, p_id, p_kind, p_amount, greatest(0, p_amount + least(had, 0)), p_priority, p_expires);
  RETURN true;
END
$$;

-- Takes credit back, by a refund or a correction. False: this was taken before.
CREATE FUNCTION billing_debit(p_tenant text, p_amount bigint, p_counter text, p_kind text, p_reference text, p_note text DEFAULT NULL,
  p_prices text DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO billing_accounts (tenant_id) VALUES (p_tenant) ON CONFLICT DO NOTHING;
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  IF NOT ledger_post(p_tenant, -p_amount, p_counter, p_kind, p_reference, p_note => p_note, p_prices => p_prices) THEN
    RETURN false;
  END IF;
  PERFORM billing_spend(p_tenant, p_amount);
  RETURN true;
END
$$;

CREATE FUNCTION billing_period(p_per text) RETURNS date LANGUAGE sql STABLE AS $$
  SELECT date_trunc(CASE p_per WHEN 'month' THEN 'month' ELSE 'day' END, now() AT TIME ZONE 'UTC')::date
$$;

-- The use of a budget in the period of now, as a row that is there.
CREATE FUNCTION billing_use(p_tenant text, p_budget text, p_subject text, p_run text, p_per text) RETURNS billing_budget_uses
LANGUAGE plpgsql AS $$
DECLARE
  use billing_budget_uses;
BEGIN
  INSERT INTO billing_budget_uses AS u (tenant_id, budget_id, subject, run_id, period)
  VALUES (p_tenant, p_budget, p_subject, p_run, billing_period(p_per))
  ON CONFLICT (tenant_id, budget_id, subject, run_id) DO UPDATE SET
    spent = CASE WHEN p_per = 'run' OR u.period = excluded.period THEN u.spent ELSE 0 END,
    told = CASE WHEN p_per = 'run' OR u.period = excluded.period THEN u.told ELSE 0 END,
    period = excluded.period
  RETURNING * INTO use;
  RETURN use;
END
$$;

CREATE FUNCTION billing_hold_budgets(p_tenant text, p_budgets jsonb, p_amount bigint) RETURNS void LANGUAGE sql AS $$
  UPDATE billing_budget_uses u SET held = u.held + p_amount
  FROM jsonb_array_elements(p_budgets) b
  WHERE u.tenant_id = p_tenant AND u.budget_id = b ->> 0 AND u.subject = b ->> 1 AND u.run_id = b ->> 2
$$;

CREATE FUNCTION billing_refuse_budget(p_budget billing_budgets, p_subject text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'budget_exceeded %', jsonb_build_object('id', p_budget.id, 'scope', p_budget.scope, 'subject', p_subject,
    'per', p_budget.per, 'cap', p_budget.cap) USING ERRCODE = 'AO402';
END
$$;

-- Holds up to an amount for a run that begins, and returns how much. A delegated run takes from what is held for the one that delegates,
-- and has not spent, and only what is missing from the credit.
CREATE FUNCTION billing_hold(p_tenant text, p_run text, p_amount bigint, p_session text, p_profile text, p_key text, p_end_user text,
  p_parent text, p_parent_spent bigint, p_root text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  account billing_accounts;
  parent billing_holds;
  b billing_budgets;
  use billing_budget_uses;
  subject_of jsonb := jsonb_build_object('tenant', '', 'profile', p_profile, 'key', p_key, 'end_user', p_end_user, 'session', p_session);
  subject text;
  counted jsonb := '[]';
  moved bigint := 0;
  amount bigint := greatest(p_amount, 1);
  available bigint;
BEGIN
  SELECT * INTO account FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'registration_pending' USING ERRCODE = 'AO402';
  END IF;
  account.balance := account.balance - billing_expire(p_tenant);
  IF p_parent IS NOT NULL THEN
    SELECT * INTO parent FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_parent;
    moved := least(amount, greatest(coalesce(parent.amount, 0) - coalesce(p_parent_spent, 0), 0));
    UPDATE billing_holds h SET amount = h.amount - moved WHERE h.tenant_id = p_tenant AND h.run_id = p_parent;
    PERFORM billing_hold_budgets(p_tenant, parent.budgets, -moved);
  END IF;
  available := account.balance - account.held + moved;
  IF available <= 0 THEN
    RAISE EXCEPTION 'credits_exhausted' USING ERRCODE = 'AO402';
  END IF;
  amount := least(amount, available);
  FOR b IN SELECT * FROM billing_budgets WHERE tenant_id = p_tenant ORDER BY id LOOP
    subject := subject_of ->> b.scope;
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

-- Has at least as much held for a run as it has spent, and `p_more` where there is as much. Returns what is held; null where nothing is
-- held for this run, because it began before its tenant had an account.
CREATE FUNCTION billing_extend(p_tenant text, p_run text, p_spent bigint, p_more bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
  IF p_spent > hold.amount + greatest(available, 0) THEN
    IF least_left.id IS NOT NULL THEN
      PERFORM billing_refuse_budget(least_left, least_subject);
    END IF;
    RAISE EXCEPTION 'credits_exhausted' USING ERRCODE = 'AO402';
  END IF;
  more := least(greatest(p_spent + p_more - hold.amount, 0), greatest(available, 0));
  IF more > 0 THEN
    UPDATE billing_accounts SET held = held + more WHERE tenant_id = p_tenant;
    UPDATE billing_holds h SET amount = h.amount + more WHERE h.tenant_id = p_tenant AND h.run_id = p_run;
    PERFORM billing_hold_budgets(p_tenant, hold.budgets, more);
  END IF;
  RETURN hold.amount + more;
END
$$;

-- Gives back what is held for a run that is over, or was never begun. Returns its budgets; null where nothing was held.
CREATE FUNCTION billing_release(p_tenant text, p_run text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  hold billing_holds;
BEGIN
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  DELETE FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_run RETURNING * INTO hold;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  UPDATE billing_accounts SET held = held - hold.amount WHERE tenant_id = p_tenant;
  PERFORM billing_hold_budgets(p_tenant, hold.budgets, -hold.amount);
  RETURN hold.budgets;
END
$$;

-- Tells that a budget has come to a mark, once for each period.
CREATE FUNCTION billing_tell(p_budget billing_budgets, p_use billing_budget_uses) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  mark integer := CASE WHEN p_use.spent >= p_budget.cap THEN 100 WHEN p_use.spent * 5 >= p_budget.cap * 4 THEN 80 ELSE 0 END;
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
        'percent', mark, 'spentCents', p_use.spent / 1000000.0, 'capCents', p_budget.cap / 1000000.0))::text);
    PERFORM pg_notify('webhooks', p_use.tenant_id);
  END IF;
END
$$;

-- Charges a run for what it has used, when it ends. `p_cost` is null where a price is not known.
CREATE FUNCTION billing_settle(p_tenant text, p_run text, p_profile text, p_cost bigint, p_tools bigint, p_sandbox bigint, p_prices text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  total bigint := coalesce(p_cost, 0) + p_tools + p_sandbox;
  budgets jsonb;
  counted jsonb;
  b billing_budgets;
  use billing_budget_uses;
BEGIN
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  budgets := billing_release(p_tenant, p_run);
  IF p_cost IS NULL OR p_cost > 0 THEN
    PERFORM ledger_post(p_tenant, -coalesce(p_cost, 0), 'usage', 'model', p_run, p_run, p_profile, NULL, p_prices, p_cost IS NULL);
  END IF;
  IF p_tools > 0 THEN
    PERFORM ledger_post(p_tenant, -p_tools, 'usage', 'tool_calls', p_run, p_run, p_profile, NULL, p_prices);
  END IF;
  IF p_sandbox > 0 THEN
    PERFORM ledger_post(p_tenant, -p_sandbox, 'usage', 'sandbox', p_run, p_run, p_profile, NULL, p_prices);
  END IF;
  PERFORM billing_spend(p_tenant, total);
  FOR counted IN SELECT jsonb_array_elements(budgets) LOOP
    SELECT * INTO b FROM billing_budgets WHERE tenant_id = p_tenant AND id = counted ->> 0;
    CONTINUE WHEN NOT FOUND;
    use := billing_use(p_tenant, b.id, counted ->> 1, counted ->> 2, b.per);
    UPDATE billing_budget_uses u SET spent = u.spent + total
    WHERE u.tenant_id = p_tenant AND u.budget_id = use.budget_id AND u.subject = use.subject AND u.run_id = use.run_id
    RETURNING * INTO use;
    PERFORM billing_tell(b, use);
  END LOOP;
  -- Of a budget per run, when the run at the top has ended after those below it.
  DELETE FROM billing_budget_uses WHERE tenant_id = p_tenant AND run_id = p_run AND held = 0;
  RETURN total;
END
$$;
