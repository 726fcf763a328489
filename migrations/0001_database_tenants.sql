-- owner: plugins/database
-- Untenanted tables: who the tenants are, and which processes are alive.

CREATE TABLE tenants (
  id text PRIMARY KEY,
  name text NOT NULL,
  created_at timestamptz NOT NULL DEFAULT now(),
  deleted_at timestamptz
);

-- Development, and installations of one tenant, need no more than this one.
INSERT INTO tenants (id, name) VALUES ('default', 'Default');

-- One row per conductor or gateway process, renewed by its heartbeat in database time. The owner of a claim is dead when
-- its lease ran out or somebody marked it; only then may a sweep touch what it claimed.
CREATE TABLE instances (
  id text PRIMARY KEY,
  kind text NOT NULL,
  started_at timestamptz NOT NULL DEFAULT now(),
  lease_until timestamptz NOT NULL,
  dead boolean NOT NULL DEFAULT false
);
