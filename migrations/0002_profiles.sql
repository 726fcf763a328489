-- owner: plugins/profiles

CREATE TABLE profiles (
  tenant_id text NOT NULL,
  name text NOT NULL,
  id text NOT NULL,
  -- What the client wrote, defaults filled in. Name, id and times live in columns only.
  document jsonb NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, name),
  CONSTRAINT profiles_id UNIQUE (tenant_id, id)
);

ALTER TABLE profiles ENABLE ROW LEVEL SECURITY;
ALTER TABLE profiles FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON profiles
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
