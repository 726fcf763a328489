-- owner: plugins/billing
-- Whoever replaces the budgets of a tenant holds its account meanwhile, for which every run of the tenant waits that begins or ends. A budget of each
-- end user may have a million uses, so none of them is read or deleted then.

-- Budgets that are gone, until their uses are: those go in batches. A trigger writes it, so that a release before this one that goes on beside it does.
CREATE TABLE billing_former_budgets (
  tenant_id text NOT NULL,
  id text NOT NULL,
  -- What the uses are found by when a person is erased.
  scope text NOT NULL,
  per text NOT NULL,
  PRIMARY KEY (tenant_id, id)
);
ALTER TABLE billing_former_budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_former_budgets FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_former_budgets
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

CREATE FUNCTION note_former_budgets() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO billing_former_budgets (tenant_id, id, scope, per) SELECT tenant_id, id, scope, per FROM gone ON CONFLICT DO NOTHING;
  RETURN NULL;
END
$$;

-- As in 0096_billing_edges.sql. A cap that was raised above a mark that was told has that mark told again when spending reaches it anew: each use
-- learns of it when it is written next.
CREATE OR REPLACE FUNCTION billing_use(p_tenant text, p_budget text, p_subject text, p_run text, p_per text) RETURNS billing_budget_uses
LANGUAGE plpgsql AS $$
DECLARE
  use billing_budget_uses;
BEGIN
  INSERT INTO billing_budget_uses AS u (tenant_id, budget_id, subject, run_id, period)
  VALUES (p_tenant, p_budget, p_subject, p_run, billing_period(p_per))
  ON CONFLICT (tenant_id, budget_id, subject, run_id) DO UPDATE SET
    spent = CASE WHEN p_per = 'run' OR u.period >= excluded.period THEN u.spent ELSE 0 END,
    told = CASE WHEN p_per = 'run' OR u.period >= excluded.period THEN least(u.told, (
        SELECT CASE WHEN u.spent + u.running >= b.cap THEN 100 WHEN (u.spent + u.running) * 5 >= b.cap * 4 THEN 80 ELSE 0 END
        FROM billing_budgets b WHERE b.tenant_id = p_tenant AND b.id = p_budget)) ELSE 0 END,
    period = greatest(u.period, excluded.period)
  RETURNING * INTO use;
  RETURN use;
END
$$;

-- Last, because it waits for whoever starts or ends a run: these read budgets before their uses, so the lock of budgets comes first.
LOCK TABLE billing_budgets IN ACCESS EXCLUSIVE MODE;
CREATE TRIGGER note_former AFTER DELETE ON billing_budgets REFERENCING OLD TABLE AS gone FOR EACH STATEMENT
  EXECUTE FUNCTION note_former_budgets();
ALTER TABLE billing_budget_uses DROP CONSTRAINT billing_budget_uses_tenant_id_budget_id_fkey;
