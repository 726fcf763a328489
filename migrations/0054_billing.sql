-- owner: plugins/billing

-- Money is counted in millionths of a cent. What a tenant has, and what of it is held for runs that have not ended: whoever
-- changes anything of the money of a tenant holds this row, so that one change is over before the next begins.
CREATE TABLE billing_accounts (
  tenant_id text PRIMARY KEY,
  balance bigint NOT NULL DEFAULT 0,
  held bigint NOT NULL DEFAULT 0 CHECK (held >= 0),
  -- By billing provider, what the provider calls this tenant.
  customers jsonb NOT NULL DEFAULT '{}',
  registered_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);

-- The ledger. Every transfer is two rows of one kind and reference that add up to 0, and there is at most one of each.
CREATE TABLE ledger_entries (
  tenant_id text NOT NULL,
  id bigint GENERATED ALWAYS AS IDENTITY,
  -- credit: what the tenant has. The others are where it comes from, and where it goes.
  account text NOT NULL CHECK (account IN ('credit', 'payments', 'grants', 'usage', 'expired', 'adjustments')),
  amount bigint NOT NULL,
  kind text NOT NULL,
  reference text NOT NULL,
  run_id text,
  profile text,
  note text,
  -- The prices by which an amount was computed. Later ones never change it.
  prices text,
  -- No price was known for a model of the run, so that nothing was charged for its calls.
  unpriced boolean NOT NULL DEFAULT false,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT ledger_entries_once UNIQUE (tenant_id, kind, reference, account)
);
CREATE INDEX ledger_entries_newest ON ledger_entries (tenant_id, created_at DESC, id DESC);

-- What the credit of a tenant is made of: spent by priority, and then what expires first.
CREATE TABLE billing_credits (
  tenant_id text NOT NULL,
  id text NOT NULL,
  kind text NOT NULL,
  amount bigint NOT NULL CHECK (amount > 0),
  remaining bigint NOT NULL CHECK (remaining BETWEEN 0 AND amount),
  priority integer NOT NULL,
  expires_at timestamptz,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
);
CREATE INDEX billing_credits_left ON billing_credits (tenant_id, priority, expires_at, created_at, id) WHERE remaining > 0;

-- Caps. The subject `*` stands for each one by itself: of a scope `end_user`, every person who chats.
CREATE TABLE billing_budgets (
  tenant_id text NOT NULL,
  id text NOT NULL,
  scope text NOT NULL CHECK (scope IN ('tenant', 'profile', 'key', 'end_user', 'session')),
  subject text NOT NULL,
  per text NOT NULL CHECK (per IN ('run', 'day', 'month')),
  cap bigint NOT NULL CHECK (cap >= 0),
  webhook_url text,
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT billing_budgets_once UNIQUE (tenant_id, scope, subject, per)
);

-- What was spent of a budget in the period that was written last, and what is held for runs. `run_id` is the run at the top of its
-- tree where a budget is per run.
CREATE TABLE billing_budget_uses (
  tenant_id text NOT NULL,
  budget_id text NOT NULL,
  subject text NOT NULL,
  run_id text NOT NULL DEFAULT '',
  period date NOT NULL,
  spent bigint NOT NULL DEFAULT 0,
  held bigint NOT NULL DEFAULT 0,
  -- The highest mark, in percent, that was told.
  told integer NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, budget_id, subject, run_id),
  FOREIGN KEY (tenant_id, budget_id) REFERENCES billing_budgets (tenant_id, id) ON DELETE CASCADE
) WITH (fillfactor = 70);

-- What is held for a run that has not ended, of the credit and of the budgets that it counts for.
CREATE TABLE billing_holds (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  amount bigint NOT NULL CHECK (amount >= 0),
  -- [budget id, subject, run id] of each budget.
  budgets jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, run_id)
);

-- Payments that were asked for.
CREATE TABLE billing_checkouts (
  tenant_id text NOT NULL,
  id text NOT NULL,
  provider text NOT NULL,
  cents bigint NOT NULL CHECK (cents > 0),
  state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'paid', 'expired')),
  url text,
  created_by text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  paid_at timestamptz,
  PRIMARY KEY (tenant_id, id)
);

ALTER TABLE billing_accounts ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_accounts FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_accounts
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE ledger_entries ENABLE ROW LEVEL SECURITY;
ALTER TABLE ledger_entries FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON ledger_entries
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE billing_credits ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_credits FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_credits
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE billing_budgets ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_budgets FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_budgets
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE billing_budget_uses ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_budget_uses FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_budget_uses
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE billing_holds ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_holds FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_holds
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
ALTER TABLE billing_checkouts ENABLE ROW LEVEL SECURITY;
ALTER TABLE billing_checkouts FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON billing_checkouts
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

-- What is wrong is put right by another entry. Only the erasure of a deleted tenant takes its ledger along.
CREATE FUNCTION ledger_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'DELETE' AND EXISTS (SELECT 1 FROM tenants WHERE id = OLD.tenant_id AND deleted_at IS NOT NULL) THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION 'entries of the ledger are never changed: write another one';
END
$$;
CREATE TRIGGER ledger_is_append_only BEFORE UPDATE OR DELETE ON ledger_entries FOR EACH ROW
  EXECUTE FUNCTION ledger_is_append_only();
