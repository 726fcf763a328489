-- owner: plugins/kv
-- Nonces and rate limits that processes share. Service state from before a tenant is known, so untenanted, like `instances`.
-- Unlogged: rows live for two minutes, and nobody should wait for a disk for them. A crash of the server empties all three
-- tables together; kv_memory then tells since when the memory reaches.

CREATE UNLOGGED TABLE kv_memory (
  one boolean PRIMARY KEY DEFAULT true CHECK (one),
  begun_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
-- Dates of requests are whole seconds.
INSERT INTO kv_memory (begun_at) VALUES (date_trunc('second', clock_timestamp()));

CREATE UNLOGGED TABLE kv_claims (
  key text PRIMARY KEY,
  gone_at timestamptz NOT NULL
);

-- One row per key, because its lock is what makes the count exact. No index on gone_at: updates then stay on their page.
CREATE UNLOGGED TABLE kv_windows (
  key text PRIMARY KEY,
  -- The buckets: seconds of the epoch, and how many hits fell into each.
  seconds bigint[] NOT NULL,
  hits integer[] NOT NULL,
  gone_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- Counts up to `wanted` hits at once. A bucket counts until its last instant is a whole window ago, hence one bucket more
-- than the window has seconds. `granted` of the hits fit in, behind `total` that were there.
CREATE FUNCTION kv_hit(
  hit_key text, most integer, window_seconds integer, wanted integer,
  OUT granted integer, OUT total integer, OUT retry_after_ms integer
) LANGUAGE plpgsql AS $$
DECLARE
  kept kv_windows;
  instant timestamptz;
  this_second bigint;
BEGIN
  LOOP
    SELECT * INTO kept FROM kv_windows WHERE key = hit_key FOR UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO kv_windows (key, seconds, hits, gone_at)
    VALUES (hit_key, '{}', '{}', clock_timestamp() + make_interval(secs => window_seconds + 1))
    ON CONFLICT DO NOTHING;
  END LOOP;
  -- Not before the lock: whoever waited for it hits now, not when it asked.
  instant := clock_timestamp();
  this_second := floor(extract(epoch FROM instant));
  SELECT coalesce(array_agg(s ORDER BY s), '{}'), coalesce(array_agg(n ORDER BY s), '{}'), coalesce(sum(n), 0)
  INTO kept.seconds, kept.hits, total
  FROM unnest(kept.seconds, kept.hits) AS bucket (s, n) WHERE s >= this_second - window_seconds;
  granted := greatest(0, least(wanted, most - total));
  IF granted > 0 THEN
    IF this_second = ANY (kept.seconds) THEN
      kept.hits[array_position(kept.seconds, this_second)] := kept.hits[array_position(kept.seconds, this_second)] + granted;
    ELSE
      kept.seconds := kept.seconds || this_second;
      kept.hits := kept.hits || granted;
    END IF;
    UPDATE kv_windows
    SET seconds = kept.seconds, hits = kept.hits, gone_at = instant + make_interval(secs => window_seconds + 1)
    WHERE key = hit_key;
  END IF;
  retry_after_ms := 0;
  IF granted < wanted THEN
    retry_after_ms := ceil((coalesce(kept.seconds[1], this_second) + window_seconds + 1 - extract(epoch FROM instant)) * 1000);
  END IF;
END
$$;
