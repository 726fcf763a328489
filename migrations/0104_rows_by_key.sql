-- owner: plugins/database
-- Statements that know the key of a row find it by that key, whatever PostgreSQL knows of the size of the table (ADR 99).

-- A line is found by its session, and one of its runs among the few of that line. With one index there is none to take instead: while the
-- table is empty, as it is nearly always, two of them cost the same, and by the other one all lines of the tenant were read. A row of the
-- line is written only by the statement that inserts its run, whose id is unique.
ALTER TABLE run_queue DROP CONSTRAINT run_queue_run;

-- What a run counts for, one budget after the other, as the other functions of billing do: joined, PostgreSQL expects a hundred budgets and
-- reads all uses of the tenant, while its account is locked.
CREATE OR REPLACE FUNCTION billing_hold_budgets(p_tenant text, p_budgets jsonb, p_amount bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  counted jsonb;
BEGIN
  IF p_budgets IS NULL OR p_budgets = '[]' OR p_amount = 0 THEN
    RETURN;
  END IF;
  FOR counted IN SELECT jsonb_array_elements(p_budgets) LOOP
    UPDATE billing_budget_uses u SET held = u.held + p_amount
    WHERE u.tenant_id = p_tenant AND u.budget_id = counted ->> 0 AND u.subject = counted ->> 1 AND u.run_id = counted ->> 2;
  END LOOP;
END
$$;
CREATE OR REPLACE FUNCTION billing_release(p_tenant text, p_run text) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
  hold billing_holds;
  counted jsonb;
BEGIN
  PERFORM 1 FROM billing_accounts WHERE tenant_id = p_tenant FOR UPDATE;
  DELETE FROM billing_holds WHERE tenant_id = p_tenant AND run_id = p_run RETURNING * INTO hold;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  UPDATE billing_accounts SET held = held - hold.amount WHERE tenant_id = p_tenant;
  FOR counted IN SELECT jsonb_array_elements(hold.budgets) LOOP
    UPDATE billing_budget_uses u SET held = u.held - hold.amount, running = u.running - hold.spent
    WHERE u.tenant_id = p_tenant AND u.budget_id = counted ->> 0 AND u.subject = counted ->> 1 AND u.run_id = counted ->> 2;
  END LOOP;
  RETURN hold.budgets;
END
$$;

-- Without a tenant no setting of a transaction forbids to read the whole table. The function keeps the plan that its process made while the
-- table was small.
ALTER FUNCTION kv_hit(text, integer, integer, integer) SET enable_seqscan = off;
