-- The worker's contract: everything that a worker may do, and the only way to do it.
--
-- Each batch function takes parallel arrays, works in key order (so that two batches never deadlock) and answers one row
-- for each distinct key. A refusal is a status, never an exception. The planner switches make every plan a nested loop over
-- primary keys, whatever the statistics say: these statements see batches, never whole tables.

CREATE FUNCTION runherd.lease_chunks(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_token uuid,
    p_worker_id text, p_ttl interval)
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text, payload json, expires_at timestamptz,
        attempt int, generation int)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    IF p_token IS NULL OR p_worker_id IS NULL OR p_ttl IS NULL OR p_ttl <= interval '0' THEN
        RAISE EXCEPTION 'runherd: lease_chunks needs a token, a worker id and a positive ttl' USING ERRCODE = 'RH400';
    END IF;
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT DISTINCT u.run_shard, u.run_id, u.chunk_no
        FROM unnest(p_run_shards, p_run_ids, p_chunk_nos) AS u(run_shard, run_id, chunk_no)
        ORDER BY 1, 2, 3
    ), active AS MATERIALIZED (
        SELECT a.run_shard, a.run_id, a.chunk_no, a.lease_token, a.ready_at, a.expires_at, a.attempts, a.generation,
            g.status AS guard_status, g.lease_ttl_max
        FROM input i
        JOIN runherd.active_chunks a ON a.run_shard = i.run_shard AND a.run_id = i.run_id AND a.chunk_no = i.chunk_no
        LEFT JOIN runherd.run_guards g ON g.run_id = i.run_id
        ORDER BY i.run_shard, i.run_id, i.chunk_no
        FOR UPDATE OF a
    ), leased AS (
        UPDATE runherd.active_chunks a
        SET lease_token = p_token, worker_id = p_worker_id, leased_at = now(),
            expires_at = now() + least(p_ttl, x.lease_ttl_max)
        FROM active x
        WHERE a.run_shard = x.run_shard AND a.run_id = x.run_id AND a.chunk_no = x.chunk_no
            AND x.guard_status = 'open' AND x.lease_token IS NULL AND x.ready_at <= now()
        RETURNING a.run_shard, a.run_id, a.chunk_no, a.expires_at
    ), answered AS (
        SELECT i.run_id, i.run_shard, i.chunk_no, c.payload, x.attempts, x.generation,
            CASE
                WHEN l.chunk_no IS NOT NULL THEN 'leased'
                WHEN x.guard_status = 'open' AND x.lease_token = p_token THEN 'leased'
                WHEN c.status IS DISTINCT FROM 'open' AND c.status IS NOT NULL THEN 'finished'
                WHEN g.status IS NOT NULL AND g.status <> 'open' THEN 'run_closed'
                WHEN g.status IS NULL OR c.status IS NULL THEN 'unknown'
                WHEN x.lease_token IS NOT NULL THEN 'held'
                ELSE 'not_yet'
            END AS status,
            COALESCE(l.expires_at, x.expires_at, x.ready_at) AS expires_at
        FROM input i
        LEFT JOIN active x ON x.run_shard = i.run_shard AND x.run_id = i.run_id AND x.chunk_no = i.chunk_no
        LEFT JOIN leased l ON l.run_shard = i.run_shard AND l.run_id = i.run_id AND l.chunk_no = i.chunk_no
        LEFT JOIN runherd.chunks c ON c.run_shard = i.run_shard AND c.run_id = i.run_id AND c.chunk_no = i.chunk_no
        LEFT JOIN runherd.run_guards g ON g.run_id = i.run_id
    )
    SELECT r.run_id, r.run_shard, r.chunk_no, r.status,
        CASE WHEN r.status = 'leased' THEN r.payload END,
        CASE WHEN r.status IN ('leased', 'held', 'not_yet') THEN r.expires_at END,
        CASE WHEN r.status = 'leased' THEN r.attempts + 1 END,
        CASE WHEN r.status = 'leased' THEN r.generation END
    FROM answered r;
END $$;

CREATE FUNCTION runherd.renew_leases(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_tokens uuid[], p_ttl interval)
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text, expires_at timestamptz)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT DISTINCT ON (u.run_shard, u.run_id, u.chunk_no) u.run_shard, u.run_id, u.chunk_no, u.token
        FROM unnest(p_run_shards, p_run_ids, p_chunk_nos, p_tokens) AS u(run_shard, run_id, chunk_no, token)
        ORDER BY 1, 2, 3
    ), active AS MATERIALIZED (
        SELECT a.run_shard, a.run_id, a.chunk_no, a.leased_at + g.max_chunk_time AS ends_at, g.status AS guard_status,
            g.lease_ttl_max
        FROM input i
        JOIN runherd.active_chunks a ON a.run_shard = i.run_shard AND a.run_id = i.run_id AND a.chunk_no = i.chunk_no
            AND a.lease_token = i.token
        JOIN runherd.run_guards g ON g.run_id = i.run_id
        ORDER BY i.run_shard, i.run_id, i.chunk_no
        FOR UPDATE OF a
    ), renewed AS (
        UPDATE runherd.active_chunks a
        SET expires_at = least(now() + least(p_ttl, x.lease_ttl_max), x.ends_at)
        FROM active x
        WHERE a.run_shard = x.run_shard AND a.run_id = x.run_id AND a.chunk_no = x.chunk_no
            AND x.guard_status = 'open' AND x.ends_at > now()
        RETURNING a.run_shard, a.run_id, a.chunk_no, a.expires_at
    )
    SELECT i.run_id, i.run_shard, i.chunk_no,
        CASE
            WHEN r.chunk_no IS NOT NULL THEN 'ok'
            WHEN g.status IS NOT NULL AND g.status <> 'open' THEN 'run_closed'
            WHEN x.chunk_no IS NOT NULL THEN 'overtime'
            ELSE 'lost'
        END,
        r.expires_at
    FROM input i
    LEFT JOIN active x ON x.run_shard = i.run_shard AND x.run_id = i.run_id AND x.chunk_no = i.chunk_no
    LEFT JOIN renewed r ON r.run_shard = i.run_shard AND r.run_id = i.run_id AND r.chunk_no = i.chunk_no
    LEFT JOIN runherd.run_guards g ON g.run_id = i.run_id;
END $$;

-- A completion that arrives again with the token that finished the chunk succeeds again, and changes nothing.
CREATE FUNCTION runherd.complete_chunks(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_tokens uuid[],
    p_outcomes json[])
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT DISTINCT ON (u.run_shard, u.run_id, u.chunk_no) u.run_shard, u.run_id, u.chunk_no, u.token, u.outcome
        FROM unnest(p_run_shards, p_run_ids, p_chunk_nos, p_tokens, p_outcomes) AS u(run_shard, run_id, chunk_no, token, outcome)
        ORDER BY 1, 2, 3
    ), seen AS MATERIALIZED (
        SELECT i.run_shard, i.run_id, i.chunk_no, i.token, i.outcome, g.status AS guard_status,
            COALESCE(c.status = 'succeeded' AND c.finished_token = i.token, false) AS already
        FROM input i
        LEFT JOIN runherd.chunks c ON c.run_shard = i.run_shard AND c.run_id = i.run_id AND c.chunk_no = i.chunk_no
        LEFT JOIN runherd.run_guards g ON g.run_id = i.run_id
        ORDER BY i.run_shard, i.run_id, i.chunk_no
    ), locked AS MATERIALIZED (
        SELECT a.run_shard, a.run_id, a.chunk_no, a.attempts, a.recoveries, s.token, s.outcome
        FROM seen s
        JOIN runherd.active_chunks a ON a.run_shard = s.run_shard AND a.run_id = s.run_id AND a.chunk_no = s.chunk_no
            AND a.lease_token = s.token
        WHERE NOT s.already AND s.guard_status = 'open'
        ORDER BY s.run_shard, s.run_id, s.chunk_no
        FOR UPDATE OF a
    ), deleted AS MATERIALIZED (
        DELETE FROM runherd.active_chunks a USING locked l
        WHERE a.run_shard = l.run_shard AND a.run_id = l.run_id AND a.chunk_no = l.chunk_no
        RETURNING l.run_shard, l.run_id, l.chunk_no, l.attempts, l.recoveries, l.token, l.outcome
    ), finished AS (
        UPDATE runherd.chunks c
        SET status = 'succeeded', outcome = d.outcome, attempts = d.attempts + 1, recoveries = d.recoveries,
            finished_token = d.token, finished_at = now()
        FROM deleted d
        WHERE c.run_shard = d.run_shard AND c.run_id = d.run_id AND c.chunk_no = d.chunk_no AND c.status = 'open'
        RETURNING c.run_shard, c.run_id, c.chunk_no
    )
    SELECT s.run_id, s.run_shard, s.chunk_no,
        CASE
            WHEN s.already OR f.chunk_no IS NOT NULL THEN 'ok'
            WHEN d.chunk_no IS NOT NULL THEN runherd.raise_broken(s.run_id, s.run_shard, s.chunk_no,
                'was leased although it is finished')
            WHEN s.guard_status <> 'open' THEN 'run_closed'
            ELSE 'lost'
        END
    FROM seen s
    LEFT JOIN deleted d ON d.run_shard = s.run_shard AND d.run_id = s.run_id AND d.chunk_no = s.chunk_no
    LEFT JOIN finished f ON f.run_shard = s.run_shard AND f.run_id = s.run_id AND f.chunk_no = s.chunk_no;
END $$;

-- What fail_chunks and release_chunks share. `how`: `fatal` and `retryable` are failures that count as an attempt,
-- `release` hands the chunk out again at once without counting one, until the release limit makes it `retryable`.
CREATE FUNCTION runherd.give_back_chunks(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_tokens uuid[],
    p_errors text[], p_hows text[])
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text, next text, ready_at timestamptz)
    LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
    SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT DISTINCT ON (u.run_shard, u.run_id, u.chunk_no) u.run_shard, u.run_id, u.chunk_no, u.token, u.error, u.how
        FROM unnest(p_run_shards, p_run_ids, p_chunk_nos, p_tokens, p_errors, p_hows)
            AS u(run_shard, run_id, chunk_no, token, error, how)
        ORDER BY 1, 2, 3
    ), seen AS MATERIALIZED (
        SELECT i.*, g.status AS guard_status, g.queue, g.max_attempts, g.release_limit, g.retry_delay, g.retry_delay_max,
            COALESCE(c.status = 'failed' AND c.finished_token = i.token, false) AS already
        FROM input i
        LEFT JOIN runherd.chunks c ON c.run_shard = i.run_shard AND c.run_id = i.run_id AND c.chunk_no = i.chunk_no
        LEFT JOIN runherd.run_guards g ON g.run_id = i.run_id
        ORDER BY i.run_shard, i.run_id, i.chunk_no
    ), locked AS MATERIALIZED (
        SELECT a.run_shard, a.run_id, a.chunk_no, a.generation, a.attempts, a.recoveries, a.releases, s.token, s.error, s.how,
            s.queue, s.max_attempts, s.release_limit, s.retry_delay, s.retry_delay_max
        FROM seen s
        JOIN runherd.active_chunks a ON a.run_shard = s.run_shard AND a.run_id = s.run_id AND a.chunk_no = s.chunk_no
            AND a.lease_token = s.token
        WHERE NOT s.already AND s.guard_status = 'open'
        ORDER BY s.run_shard, s.run_id, s.chunk_no
        FOR UPDATE OF a
    ), decided AS MATERIALIZED (
        SELECT l.*,
            CASE
                WHEN l.how = 'release' AND l.releases < l.release_limit THEN 'release'
                WHEN l.how <> 'fatal' AND l.attempts + 1 < l.max_attempts THEN 'retry'
                ELSE 'failed'
            END AS next,
            COALESCE(l.error, CASE WHEN l.how = 'release' THEN 'released more often than the release limit allows' END) AS reason,
            now() + least(l.retry_delay * power(2, least(l.attempts, 30)), l.retry_delay_max) * (0.75 + random() / 2) AS retry_at
        FROM locked l
    ), events AS MATERIALIZED (
        SELECT d.run_shard, d.run_id, d.chunk_no, d.generation + 1 AS generation, d.next, d.queue,
            nextval('runherd.outbox_event_id') AS event_id, runherd.outbox_shard_of(d.run_id, d.run_shard) AS outbox_shard,
            CASE WHEN d.next = 'retry' THEN d.retry_at ELSE now() END AS ready_at
        FROM decided d WHERE d.next <> 'failed'
    ), again AS (
        UPDATE runherd.active_chunks a
        SET generation = e.generation, event_id = e.event_id, ready_at = e.ready_at,
            attempts = a.attempts + (e.next = 'retry')::int, releases = a.releases + (e.next = 'release')::int,
            lease_token = NULL, worker_id = NULL, leased_at = NULL, expires_at = NULL
        FROM events e
        WHERE a.run_shard = e.run_shard AND a.run_id = e.run_id AND a.chunk_no = e.chunk_no
        RETURNING e.outbox_shard, e.event_id, e.run_id, e.run_shard, e.chunk_no, e.generation, e.next, e.queue, e.ready_at
    ), ledger AS (
        INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload)
        SELECT g.outbox_shard, g.event_id,
            runherd.chunk_ready_key(g.run_id, g.run_shard, g.chunk_no, g.chunk_no, g.generation),
            'chunk.ready', 'chunk.ready.' || g.queue,
            runherd.chunk_ready_headers(i.name, g.generation, g.next),
            runherd.chunk_ready_payload(i.name, g.run_id, g.run_shard, g.chunk_no, g.chunk_no, g.generation)
        FROM again g CROSS JOIN runherd.placement_identity i
        RETURNING outbox_shard, event_id
    ), delivery AS (
        INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id, available_at)
        SELECT l.outbox_shard, l.event_id, e.ready_at FROM ledger l JOIN events e ON e.event_id = l.event_id
    ), deleted AS MATERIALIZED (
        DELETE FROM runherd.active_chunks a USING decided d
        WHERE d.next = 'failed' AND a.run_shard = d.run_shard AND a.run_id = d.run_id AND a.chunk_no = d.chunk_no
        RETURNING d.run_shard, d.run_id, d.chunk_no, d.attempts, d.recoveries, d.token, d.reason
    ), finished AS (
        UPDATE runherd.chunks c
        SET status = 'failed', error = left(COALESCE(d.reason, 'failed without a reason'), 16384), attempts = d.attempts + 1,
            recoveries = d.recoveries, finished_token = d.token, finished_at = now(), failed_at = now()
        FROM deleted d
        WHERE c.run_shard = d.run_shard AND c.run_id = d.run_id AND c.chunk_no = d.chunk_no AND c.status = 'open'
        RETURNING c.run_shard, c.run_id, c.chunk_no
    )
    SELECT s.run_id, s.run_shard, s.chunk_no,
        CASE
            WHEN s.already OR f.chunk_no IS NOT NULL OR g.chunk_no IS NOT NULL THEN 'ok'
            WHEN x.chunk_no IS NOT NULL THEN runherd.raise_broken(s.run_id, s.run_shard, s.chunk_no,
                'was leased although it is finished')
            WHEN s.guard_status <> 'open' THEN 'run_closed'
            ELSE 'lost'
        END,
        CASE WHEN s.already THEN 'failed' ELSE d.next END,
        g.ready_at
    FROM seen s
    LEFT JOIN decided d ON d.run_shard = s.run_shard AND d.run_id = s.run_id AND d.chunk_no = s.chunk_no
    LEFT JOIN again g ON g.run_shard = s.run_shard AND g.run_id = s.run_id AND g.chunk_no = s.chunk_no
    LEFT JOIN deleted x ON x.run_shard = s.run_shard AND x.run_id = s.run_id AND x.chunk_no = s.chunk_no
    LEFT JOIN finished f ON f.run_shard = s.run_shard AND f.run_id = s.run_id AND f.chunk_no = s.chunk_no;
END $$;

CREATE FUNCTION runherd.fail_chunks(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_tokens uuid[],
    p_errors text[], p_retryables boolean[])
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text, next text, ready_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM runherd.give_back_chunks(p_run_ids, p_run_shards, p_chunk_nos, p_tokens, p_errors,
        ARRAY(SELECT CASE WHEN u.retryable THEN 'retryable' ELSE 'fatal' END
              FROM unnest(p_retryables) WITH ORDINALITY AS u(retryable, ordinal) ORDER BY u.ordinal));
$$;

CREATE FUNCTION runherd.release_chunks(p_run_ids uuid[], p_run_shards int[], p_chunk_nos bigint[], p_tokens uuid[])
    RETURNS TABLE (run_id uuid, run_shard int, chunk_no bigint, status text, next text, ready_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT * FROM runherd.give_back_chunks(p_run_ids, p_run_shards, p_chunk_nos, p_tokens,
        array_fill(NULL::text, ARRAY[cardinality(p_run_ids)]), array_fill('release'::text, ARRAY[cardinality(p_run_ids)]));
$$;

-- The single forms.
CREATE FUNCTION runherd.lease_chunk(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_token uuid, p_worker_id text, p_ttl interval)
    RETURNS TABLE (status text, payload json, expires_at timestamptz, attempt int, generation int)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.status, l.payload, l.expires_at, l.attempt, l.generation
    FROM runherd.lease_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], p_token, p_worker_id, p_ttl) l;
$$;

CREATE FUNCTION runherd.renew_lease(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_token uuid, p_ttl interval)
    RETURNS TABLE (status text, expires_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status, r.expires_at
    FROM runherd.renew_leases(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], p_ttl) r;
$$;

CREATE FUNCTION runherd.complete_chunk(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_token uuid, p_outcome json)
    RETURNS text
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT c.status
    FROM runherd.complete_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], ARRAY[p_outcome]) c;
$$;

CREATE FUNCTION runherd.fail_chunk(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_token uuid, p_error text, p_retryable boolean)
    RETURNS TABLE (status text, next text, ready_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT f.status, f.next, f.ready_at
    FROM runherd.fail_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], ARRAY[p_error],
        ARRAY[p_retryable]) f;
$$;

CREATE FUNCTION runherd.release_chunk(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_token uuid)
    RETURNS TABLE (status text, next text, ready_at timestamptz)
    LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status, r.next, r.ready_at
    FROM runherd.release_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token]) r;
$$;

-- Rights. Functions are executable by everybody unless that is taken back.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA runherd FROM PUBLIC;
GRANT USAGE ON SCHEMA runherd TO runherd_coordinator, runherd_worker, runherd_readonly;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA runherd TO runherd_coordinator;
REVOKE INSERT, UPDATE, DELETE ON runherd.schema_version, runherd.placement_identity FROM runherd_coordinator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA runherd TO runherd_coordinator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA runherd TO runherd_coordinator;
GRANT SELECT ON ALL TABLES IN SCHEMA runherd TO runherd_readonly;
GRANT EXECUTE ON FUNCTION
    runherd.lease_chunk, runherd.lease_chunks, runherd.renew_lease, runherd.renew_leases, runherd.complete_chunk,
    runherd.complete_chunks, runherd.fail_chunk, runherd.fail_chunks, runherd.release_chunk, runherd.release_chunks
    TO runherd_worker;
-- What `runherd watch` and `runherd status` count. Columns only: whoever reads a lease token could finish the chunk.
GRANT USAGE ON SCHEMA runherd TO runherd_client;
GRANT SELECT ON runherd.shard_positions TO runherd_client;
GRANT SELECT (run_id, status) ON runherd.run_guards TO runherd_client;
GRANT SELECT (run_shard, run_id, chunk_no, expires_at) ON runherd.active_chunks TO runherd_client;
GRANT SELECT (run_shard, run_id, chunk_no, failed_at) ON runherd.chunks TO runherd_client;

UPDATE runherd.schema_version SET version = 2 WHERE component = 'placement';
