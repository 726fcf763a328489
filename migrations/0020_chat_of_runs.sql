-- owner: plugins/run-store-postgres
-- A chat begins and ends with its run, in the statements of the run; conductors that stop hand their runs over.

-- The public run that ends with it.
ALTER TABLE runs ADD COLUMN public_run text;
-- A gateway owns no runs any more. Those of an earlier release still write it.
ALTER TABLE public_runs ALTER COLUMN owner_instance DROP NOT NULL;
-- A conductor that is about to stop takes nothing over.
ALTER TABLE instances ADD COLUMN stopping boolean NOT NULL DEFAULT false;
