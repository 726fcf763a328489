-- owner: plugins/run-store-postgres
-- A run that answers a chat: its public run and message begin and end in the statements of the run, and belong to no gateway.

ALTER TABLE public_runs ALTER COLUMN owner_instance DROP NOT NULL;
ALTER TABLE runs ADD COLUMN public_run text;
