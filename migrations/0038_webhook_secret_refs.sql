-- owner: plugins/webhooks
-- A tenant may sign with a secret of its own: its reference, never its value. Null: the secret is derived, as before. The other one
-- is what the version before was, which signs as well for a while.
ALTER TABLE webhook_secrets
  ADD COLUMN ref text,
  ADD COLUMN previous_ref text;
