-- owner: plugins/database
-- Which migrations of plugins from outside were applied. A table of its own: a process of the release before reads
-- schema_migrations by number alone, and would take the first migration of a plugin for our own first one.

CREATE TABLE plugin_migrations (
  plugin text NOT NULL,
  number integer NOT NULL,
  name text NOT NULL,
  checksum text NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (plugin, number)
);
