-- owner: plugins/memory
-- What agents remember. Rows are never changed but for who superseded them: a newer statement is a row of its own.

-- The memories of one profile together. Figures are kept by the triggers of the next migration.
CREATE TABLE memory_banks (
  tenant_id text NOT NULL,
  profile text NOT NULL,
  -- Stands for the profile in postings, which are many.
  bank integer GENERATED ALWAYS AS IDENTITY,
  records bigint NOT NULL DEFAULT 0,
  words bigint NOT NULL DEFAULT 0,
  bytes bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (tenant_id, profile)
) WITH (fillfactor = 50);
CREATE UNIQUE INDEX memory_banks_bank ON memory_banks (tenant_id, bank);

CREATE TABLE memories (
  tenant_id text NOT NULL,
  id text NOT NULL,
  -- Stands for the id in postings.
  number bigint GENERATED ALWAYS AS IDENTITY,
  bank integer NOT NULL,
  profile text NOT NULL,
  end_user_id text,
  -- A hash of end_user_id by which postings are found; 0: nobody's.
  person integer NOT NULL,
  session_id text,
  -- The run that it came from.
  run_id text,
  category text,
  raw_input text,
  content text NOT NULL,
  summary text,
  -- Somebody chose the words (curated), or they were taken from a text by rules or a model (mined).
  source text NOT NULL CHECK (source IN ('curated', 'mined')),
  confidence real NOT NULL CHECK (confidence BETWEEN 0 AND 1),
  language text NOT NULL,
  event_at timestamptz,
  ttl_seconds integer,
  expires_at timestamptz,
  supersedes text,
  superseded_by text,
  superseded_at timestamptz,
  -- Subject and attribute of a statement that has one value at a time, e.g. `ann|home`.
  fact text,
  -- SHA-256 of the content as it is compared.
  digest bytea NOT NULL,
  -- What it is found by, and how much each term says (hundredths).
  terms text[] NOT NULL,
  weights smallint[] NOT NULL,
  -- Words of the content.
  length smallint NOT NULL,
  -- Of its texts.
  bytes integer NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id),
  UNIQUE (tenant_id, number)
);
CREATE INDEX memories_list ON memories (tenant_id, bank, created_at, id);
CREATE INDEX memories_all ON memories (tenant_id, created_at, id);
CREATE INDEX memories_digest ON memories (tenant_id, bank, person, digest);
CREATE INDEX memories_fact ON memories (tenant_id, bank, person, fact) WHERE fact IS NOT NULL AND superseded_by IS NULL;
CREATE INDEX memories_person ON memories (tenant_id, end_user_id) WHERE end_user_id IS NOT NULL;
CREATE INDEX memories_session ON memories (tenant_id, session_id, number) WHERE session_id IS NOT NULL;
CREATE INDEX memories_expiry ON memories (tenant_id, expires_at) WHERE expires_at IS NOT NULL;

-- What was put before the message of a run, so that a conversation that is restored begins as it did.
CREATE TABLE memory_recalls (
  tenant_id text NOT NULL,
  run_id text NOT NULL,
  place smallint NOT NULL,
  memory_id text NOT NULL,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, run_id, memory_id)
);

-- What was not worth keeping, counted by why.
CREATE TABLE memory_refusals (
  tenant_id text NOT NULL,
  reason text NOT NULL,
  count bigint NOT NULL,
  last_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, reason)
) WITH (fillfactor = 50);

ALTER TABLE memory_banks ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_banks FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_banks
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE memories ENABLE ROW LEVEL SECURITY;
ALTER TABLE memories FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memories
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE memory_recalls ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_recalls FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_recalls
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE memory_refusals ENABLE ROW LEVEL SECURITY;
ALTER TABLE memory_refusals FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON memory_refusals
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
