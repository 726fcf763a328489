-- owner: plugins/chat
-- What the public gateway keeps. No foreign keys: a conversation, its public run and the user's message are written by one
-- statement, rows are never deleted, and a key to the published agent would make every chat lock that agent's row.

CREATE TABLE conversations (
  tenant_id text NOT NULL,
  id text NOT NULL,
  published_id text NOT NULL,
  -- The runtime session that the conversation is pinned to; empty until its first run has one. Callers never see it.
  session_id text,
  end_user_id text,
  created_at timestamptz NOT NULL DEFAULT now(),
  updated_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, id)
) WITH (fillfactor = 80);

CREATE TABLE public_runs (
  tenant_id text NOT NULL,
  id text NOT NULL,
  published_id text NOT NULL,
  conversation_id text NOT NULL,
  -- The conductor's run, chosen by the gateway: a dispatch that is repeated is still one run.
  run_id text NOT NULL,
  status text NOT NULL DEFAULT 'dispatching' CHECK (status IN ('dispatching', 'running', 'ok', 'error', 'lost')),
  error_code text,
  error_message text,
  -- The sequence number of the terminal event, so that a reconstructed one carries the id of the original.
  last_seq integer NOT NULL DEFAULT 0,
  end_user_id text,
  -- The gateway process whose watcher will write the end; a sweep takes over only from dead ones.
  owner_instance text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  finished_at timestamptz,
  PRIMARY KEY (tenant_id, id),
  CONSTRAINT public_runs_finished CHECK ((status IN ('dispatching', 'running')) = (finished_at IS NULL))
) WITH (fillfactor = 80);
-- One run at a time in a conversation. Small, because it holds only what is open; the sweep reads it too.
CREATE UNIQUE INDEX public_runs_open ON public_runs (tenant_id, conversation_id)
  WHERE status IN ('dispatching', 'running');

-- One message of each role per run, so an answer can never be stored twice.
CREATE TABLE messages (
  tenant_id text NOT NULL,
  conversation_id text NOT NULL,
  public_run_id text NOT NULL,
  role text NOT NULL CHECK (role IN ('user', 'assistant')),
  content text NOT NULL,
  -- What the client was told when the run failed; shown only to those who ask for errors.
  failed boolean NOT NULL DEFAULT false,
  position bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (tenant_id, public_run_id, role)
);
CREATE INDEX messages_of_conversation ON messages (tenant_id, conversation_id, position);

ALTER TABLE conversations ENABLE ROW LEVEL SECURITY;
ALTER TABLE conversations FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON conversations
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE public_runs ENABLE ROW LEVEL SECURITY;
ALTER TABLE public_runs FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON public_runs
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));

ALTER TABLE messages ENABLE ROW LEVEL SECURITY;
ALTER TABLE messages FORCE ROW LEVEL SECURITY;
CREATE POLICY tenant ON messages
  USING (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''))
  WITH CHECK (tenant_id = NULLIF(current_setting('app.tenant_id', true), ''));
