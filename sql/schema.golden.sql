-- The schema after all migrations, for reviews. Written by RUNHERD_UPDATE=1 cargo test --test sql; PostgreSQL 15.
CREATE SCHEMA runherd;
CREATE FUNCTION runherd.abort_run(p_run_id uuid, p_creation_token uuid, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    PERFORM 1 FROM runherd.runs r
    WHERE r.run_id = p_run_id AND r.creation_token = p_creation_token AND r.sealed_at IS NULL AND r.status = 'creating' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: run % is not being submitted by this client', p_run_id USING ERRCODE = 'RH410';
    END IF;
    INSERT INTO runherd.run_intents (run_id, intent, requested_by, reason) VALUES (p_run_id, 'fail', session_user, p_reason)
    ON CONFLICT DO NOTHING;
    PERFORM pg_notify('runherd', 'finalizer');
END $$;
CREATE FUNCTION runherd.append_part(p_run_id uuid, p_creation_token uuid, p_part_no integer, p_chunk_count integer, p_body json, p_lease interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_run      runherd.runs;
    v_shard    int;
    v_before   runherd.run_seeds;
    v_same     runherd.run_seeds;
    v_digest   bytea;
    v_count    bigint;
BEGIN
    SELECT r.* INTO v_run FROM runherd.runs r WHERE r.run_id = p_run_id FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: no run %', p_run_id USING ERRCODE = 'RH404';
    END IF;
    IF v_run.sealed_at IS NOT NULL OR v_run.status <> 'creating' THEN
        RAISE EXCEPTION 'runherd: run % is % and takes no more parts', p_run_id,
            CASE WHEN v_run.status = 'creating' THEN 'sealed' ELSE v_run.status END USING ERRCODE = 'RH409';
    END IF;
    IF v_run.creation_token IS DISTINCT FROM p_creation_token THEN
        RAISE EXCEPTION 'runherd: another client has taken up run %', p_run_id USING ERRCODE = 'RH410';
    END IF;
    SELECT s.* INTO v_before FROM runherd.run_seeds s WHERE s.run_id = p_run_id AND s.part_no = p_part_no - 1;
    IF p_part_no < 0 OR (p_part_no > 0 AND NOT FOUND) THEN
        RAISE EXCEPTION 'runherd: part % of run % cannot come before part %', p_part_no, p_run_id, p_part_no - 1
            USING ERRCODE = 'RH400';
    END IF;
    v_digest := sha256(COALESCE(v_before.digest, ''::bytea) || convert_to(p_body::text, 'UTF8'));
    SELECT s.* INTO v_same FROM runherd.run_seeds s WHERE s.run_id = p_run_id AND s.part_no = p_part_no;
    IF FOUND THEN
        IF v_same.digest <> v_digest THEN
            RAISE EXCEPTION 'runherd: part % of run % is there already, with other content', p_part_no, p_run_id
                USING ERRCODE = 'RH409', DETAIL = p_run_id::text;
        END IF;
        RETURN 'present';
    END IF;
    v_count := CASE json_typeof(p_body)
        WHEN 'array' THEN json_array_length(p_body)
        WHEN 'object' THEN ((p_body->>'end')::bigint - (p_body->>'start')::bigint + (p_body->>'step')::bigint - 1)
            / NULLIF(greatest((p_body->>'step')::bigint, 0), 0)
    END;
    IF v_count IS DISTINCT FROM p_chunk_count OR p_chunk_count IS NULL OR p_chunk_count NOT BETWEEN 1 AND 100000 THEN
        RAISE EXCEPTION 'runherd: part % of run % holds % chunks, not % (1 to 100000 are allowed)', p_part_no, p_run_id,
            COALESCE(v_count::text, 'no countable'), p_chunk_count USING ERRCODE = 'RH400';
    END IF;
    v_shard := p_part_no % v_run.shard_count;
    SELECT s.* INTO v_before FROM runherd.run_seeds s WHERE s.run_id = p_run_id AND s.part_no = p_part_no - v_run.shard_count;
    INSERT INTO runherd.run_seeds (run_id, part_no, run_shard, placement_id, first_chunk_no, chunk_count, body, digest)
    VALUES (p_run_id, p_part_no, v_shard,
        COALESCE(v_before.placement_id, runherd.assign_placement(p_run_id, v_shard)),
        COALESCE(v_before.first_chunk_no + v_before.chunk_count, 0), p_chunk_count, p_body, v_digest);
    -- Renewed in the second half of the lease only: each renewal is a new version of the run's row.
    UPDATE runherd.runs r SET creation_expires_at = now() + p_lease
    WHERE r.run_id = p_run_id AND r.creation_expires_at < now() + p_lease / 2;
    RETURN 'appended';
END $$;
CREATE FUNCTION runherd.assign_placement(p_run_id uuid, p_run_shard integer) RETURNS integer
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    chosen int;
BEGIN
    SELECT p.placement_id INTO chosen
    FROM runherd.placements p
    WHERE p.state = 'active'
    ORDER BY -p.weight / ln(((hashtextextended(p_run_id::text || '/' || p_run_shard || '/' || p.name, 0)
        & 4503599627370495) + 1) / 4503599627370498.0) DESC, p.placement_id
    LIMIT 1;
    IF chosen IS NULL THEN
        RAISE EXCEPTION 'runherd: no placement is active' USING ERRCODE = 'RH409';
    END IF;
    RETURN chosen;
END $$;
CREATE FUNCTION runherd.begin_run(p_header jsonb, p_idempotency_key text, p_lease interval) RETURNS TABLE(run_id uuid, creation_token uuid, created boolean, sealed boolean, status text, shard_count integer, parts_present integer, chunks_present bigint, parts_digest bytea)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    v_digest bytea := sha256(convert_to(p_header::text, 'UTF8'));
    v_queue  text := p_header->>'queue';
    v_shards int;
    v_token  uuid := gen_random_uuid();
    v_run    runherd.runs;
    v_extra  text;
    v_new    boolean := false;
BEGIN
    IF jsonb_typeof(p_header) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'runherd: the header must be a JSON object' USING ERRCODE = 'RH400';
    END IF;
    SELECT k INTO v_extra FROM jsonb_object_keys(p_header) k
    WHERE k NOT IN ('queue', 'name', 'shards', 'priority', 'tolerated_failures', 'deadline_ms', 'policy') LIMIT 1;
    IF v_extra IS NOT NULL THEN
        RAISE EXCEPTION 'runherd: the header has an unknown key "%"', v_extra USING ERRCODE = 'RH400';
    END IF;
    IF v_queue IS NULL OR v_queue !~ '^[A-Za-z0-9._-]{1,200}$' THEN
        RAISE EXCEPTION 'runherd: queue name % is not 1 to 200 of the characters A-Z a-z 0-9 . _ -',
            COALESCE(quote_literal(v_queue), 'is missing:') USING ERRCODE = 'RH400';
    END IF;
    v_shards := COALESCE((p_header->>'shards')::int, 8);
    IF v_shards NOT BETWEEN 1 AND 4096 THEN
        RAISE EXCEPTION 'runherd: shards must be from 1 to 4096, not %', v_shards USING ERRCODE = 'RH400';
    END IF;
    PERFORM runherd.check_policy(COALESCE(p_header->'policy', '{}'));
    INSERT INTO runherd.queues (queue) VALUES (v_queue) ON CONFLICT DO NOTHING;
    INSERT INTO runherd.runs (run_id, idempotency_key, request_digest, name, queue, priority, policy, tolerated_failures,
        deadline_at, shard_count, creation_token, creation_expires_at)
    VALUES (gen_random_uuid(), p_idempotency_key, v_digest, COALESCE(p_header->>'name', ''), v_queue,
        COALESCE((p_header->>'priority')::int, 0), COALESCE(p_header->'policy', '{}'),
        (p_header->>'tolerated_failures')::bigint,
        now() + (p_header->>'deadline_ms')::bigint * interval '1 ms', v_shards, v_token, now() + p_lease)
    ON CONFLICT (idempotency_key) DO NOTHING
    RETURNING * INTO v_run;
    IF FOUND THEN
        v_new := true;
        INSERT INTO runherd.run_finalizations (run_id, look_after) VALUES (v_run.run_id, COALESCE(v_run.deadline_at, 'infinity'));
    ELSE
        SELECT r.* INTO v_run FROM runherd.runs r WHERE r.idempotency_key = p_idempotency_key FOR UPDATE;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'runherd: the run of this idempotency key has just ended; try again' USING ERRCODE = '40001';
        END IF;
        IF v_run.request_digest <> v_digest THEN
            RAISE EXCEPTION 'runherd: idempotency key % belongs to run %, which was submitted with another header',
                quote_literal(p_idempotency_key), v_run.run_id
                USING ERRCODE = 'RH409', DETAIL = v_run.run_id::text;
        END IF;
        -- Parts that were added now would end with the run, and the client would believe that they are being worked on.
        IF v_run.sealed_at IS NULL AND (v_run.status <> 'creating' OR EXISTS (
            SELECT 1 FROM runherd.run_intents i WHERE i.run_id = v_run.run_id AND i.intent IN ('cancel', 'fail'))) THEN
            RAISE EXCEPTION 'runherd: idempotency key % belongs to run %, which was given up before it was sealed; the key is free again when that run has ended',
                quote_literal(p_idempotency_key), v_run.run_id
                USING ERRCODE = 'RH409', DETAIL = v_run.run_id::text;
        END IF;
        IF v_run.sealed_at IS NULL THEN
            UPDATE runherd.runs r SET creation_token = v_token, creation_expires_at = now() + p_lease
            WHERE r.run_id = v_run.run_id;
        ELSE
            v_token := NULL;
        END IF;
    END IF;
    RETURN QUERY
    SELECT v_run.run_id, v_token, v_new, v_run.sealed_at IS NOT NULL, v_run.status, v_run.shard_count,
        COALESCE(v_run.part_count, last.part_no + 1, 0), COALESCE(v_run.chunk_count, present.chunks, 0),
        CASE WHEN v_run.sealed_at IS NOT NULL THEN v_run.parts_digest ELSE COALESCE(last.digest, ''::bytea) END
    FROM (SELECT 1) one
    LEFT JOIN LATERAL (SELECT s.part_no, s.digest FROM runherd.run_seeds s WHERE s.run_id = v_run.run_id
        ORDER BY s.part_no DESC LIMIT 1) last ON true
    LEFT JOIN LATERAL (SELECT sum(s.chunk_count)::bigint AS chunks FROM runherd.run_seeds s
        WHERE s.run_id = v_run.run_id AND NOT v_new AND v_run.sealed_at IS NULL) present ON true;
END $_$;
CREATE FUNCTION runherd.cancel_run(p_run_id uuid, p_reason text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_status text;
BEGIN
    SELECT r.status INTO v_status FROM runherd.runs r WHERE r.run_id = p_run_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: no run %', p_run_id USING ERRCODE = 'RH404';
    END IF;
    IF v_status IN ('succeeded', 'failed', 'cancelled') THEN
        RAISE EXCEPTION 'runherd: run % has ended as %', p_run_id, v_status USING ERRCODE = 'RH409';
    END IF;
    IF v_status NOT IN ('cancelling', 'failing') THEN
        INSERT INTO runherd.run_intents (run_id, intent, requested_by, reason) VALUES (p_run_id, 'cancel', session_user, p_reason)
        ON CONFLICT DO NOTHING;
        PERFORM pg_notify('runherd', 'finalizer');
    END IF;
    RETURN v_status;
END $$;
CREATE FUNCTION runherd.check_policy(p_policy jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    item record;
BEGIN
    IF p_policy IS NULL OR jsonb_typeof(p_policy) <> 'object' THEN
        RAISE EXCEPTION 'runherd: policy must be an object' USING ERRCODE = 'RH400';
    END IF;
    FOR item IN
        SELECT e.key, e.value, l.least, l.most
        FROM jsonb_each(p_policy) e
        LEFT JOIN (VALUES
            ('window', 1, 1000000), ('chunks_per_event', 1, 1000), ('max_attempts', 1, 1000), ('recovery_limit', 0, 1000),
            ('release_limit', 0, 100000), ('retry_delay_ms', 0, 86400000), ('retry_delay_max_ms', 0, 604800000),
            ('lease_ttl_max_ms', 100, 86400000), ('max_chunk_time_ms', 100, 2592000000),
            ('redelivery_after_ms', 100, 86400000), ('redelivery_after_max_ms', 100, 604800000)
        ) l(key, least, most) ON l.key = e.key
    LOOP
        IF item.least IS NULL THEN
            RAISE EXCEPTION 'runherd: policy has an unknown key "%"', item.key USING ERRCODE = 'RH400';
        END IF;
        IF jsonb_typeof(item.value) <> 'number' OR (item.value #>> '{}')::numeric % 1 <> 0
            OR (item.value #>> '{}')::numeric NOT BETWEEN item.least AND item.most THEN
            RAISE EXCEPTION 'runherd: policy.% must be a whole number from % to %, not %', item.key, item.least, item.most,
                item.value USING ERRCODE = 'RH400';
        END IF;
    END LOOP;
END $$;
CREATE FUNCTION runherd.chunk_ready_headers(p_placement text, p_generation integer, p_cause text) RETURNS json
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((((((('{"placement":"'::text || p_placement) || '","generation":'::text) || (p_generation)::text) || ',"cause":"'::text) || p_cause) || '"}'::text))::json;
CREATE FUNCTION runherd.chunk_ready_key(p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) RETURNS text
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((((((((('chunk-ready/'::text || (p_run_id)::text) || '/'::text) || (p_run_shard)::text) || '/'::text) || (p_first)::text) || '-'::text) || (p_last)::text) || '/'::text) || (p_generation)::text);
CREATE FUNCTION runherd.chunk_ready_payload(p_placement text, p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) RETURNS json
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ((((((((((((('{"placement":"'::text || p_placement) || '","run_id":"'::text) || (p_run_id)::text) || '","run_shard":'::text) || (p_run_shard)::text) || ',"first_chunk_no":'::text) || (p_first)::text) || ',"last_chunk_no":'::text) || (p_last)::text) || ',"generation":'::text) || (p_generation)::text) || '}'::text))::json;
CREATE FUNCTION runherd.complete_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_outcome json) RETURNS text
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT c.status
    FROM runherd.complete_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], ARRAY[p_outcome]) c;
$$;
CREATE FUNCTION runherd.complete_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_outcomes json[]) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
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
CREATE FUNCTION runherd.emit_run_event(p_run_id uuid, p_kind text, p_sequence integer, p_payload jsonb) RETURNS void
    LANGUAGE plpgsql
    AS $$
DECLARE
    shard smallint := runherd.outbox_shard_of(p_run_id, 0);
    event bigint := nextval('runherd.outbox_event_id');
BEGIN
    INSERT INTO runherd.outbox_events (outbox_shard, event_id, dedupe_key, kind, routing_key, headers, payload)
    SELECT shard, event, 'run/' || p_run_id || '/' || p_kind, 'run.' || p_kind, 'run.' || p_kind,
        json_build_object('placement', i.name, 'cause', 'run'),
        (jsonb_build_object('run_id', p_run_id, 'event', p_kind, 'sequence', p_sequence, 'at', now()) || p_payload)::json
    FROM runherd.placement_identity i;
    INSERT INTO runherd.outbox_delivery_queue (outbox_shard, event_id) VALUES (shard, event);
END $$;
CREATE FUNCTION runherd.fail_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_error text, p_retryable boolean) RETURNS TABLE(status text, next text, ready_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT f.status, f.next, f.ready_at
    FROM runherd.fail_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], ARRAY[p_error],
        ARRAY[p_retryable]) f;
$$;
CREATE FUNCTION runherd.fail_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_retryables boolean[]) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text, next text, ready_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM runherd.give_back_chunks(p_run_ids, p_run_shards, p_chunk_nos, p_tokens, p_errors,
        ARRAY(SELECT CASE WHEN u.retryable THEN 'retryable' ELSE 'fatal' END
              FROM unnest(p_retryables) WITH ORDINALITY AS u(retryable, ordinal) ORDER BY u.ordinal));
$$;
CREATE FUNCTION runherd.give_back_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_hows text[]) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text, next text, ready_at timestamp with time zone)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
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
CREATE FUNCTION runherd.lease_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_worker_id text, p_ttl interval) RETURNS TABLE(status text, payload json, expires_at timestamp with time zone, attempt integer, generation integer)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT l.status, l.payload, l.expires_at, l.attempt, l.generation
    FROM runherd.lease_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], p_token, p_worker_id, p_ttl) l;
$$;
CREATE FUNCTION runherd.lease_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_token uuid, p_worker_id text, p_ttl interval) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text, payload json, expires_at timestamp with time zone, attempt integer, generation integer)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
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
CREATE FUNCTION runherd.outbox_shard_of(p_run_id uuid, p_run_shard integer) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((((uuid_hash(p_run_id) & 1023) + p_run_shard) & 7))::smallint;
CREATE FUNCTION runherd.pause_run(p_run_id uuid) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_status text;
BEGIN
    SELECT r.status INTO v_status FROM runherd.runs r WHERE r.run_id = p_run_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: no run %', p_run_id USING ERRCODE = 'RH404';
    END IF;
    IF v_status NOT IN ('creating', 'pending', 'running') THEN
        RAISE EXCEPTION 'runherd: run % is % and cannot be paused', p_run_id, v_status USING ERRCODE = 'RH409';
    END IF;
    INSERT INTO runherd.run_intents (run_id, intent, requested_by) VALUES (p_run_id, 'pause', session_user) ON CONFLICT DO NOTHING;
    PERFORM pg_notify('runherd', 'finalizer');
    RETURN v_status;
END $$;
CREATE FUNCTION runherd.raise_broken(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_what text) RETURNS text
    LANGUAGE plpgsql
    AS $$
BEGIN
    RAISE EXCEPTION 'runherd: chunk %/%/% %', p_run_id, p_run_shard, p_chunk_no, p_what
        USING ERRCODE = 'RH500', HINT = 'Run `runherd verify` on this run.';
END $$;
CREATE FUNCTION runherd.release_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid) RETURNS TABLE(status text, next text, ready_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT r.status, r.next, r.ready_at
    FROM runherd.release_chunks(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token]) r;
$$;
CREATE FUNCTION runherd.release_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[]) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text, next text, ready_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT * FROM runherd.give_back_chunks(p_run_ids, p_run_shards, p_chunk_nos, p_tokens,
        array_fill(NULL::text, ARRAY[cardinality(p_run_ids)]), array_fill('release'::text, ARRAY[cardinality(p_run_ids)]));
$$;
CREATE FUNCTION runherd.renew_lease(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_ttl interval) RETURNS TABLE(status text, expires_at timestamp with time zone)
    LANGUAGE sql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT r.status, r.expires_at
    FROM runherd.renew_leases(ARRAY[p_run_id], ARRAY[p_run_shard], ARRAY[p_chunk_no], ARRAY[p_token], p_ttl) r;
$$;
CREATE FUNCTION runherd.renew_leases(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_ttl interval) RETURNS TABLE(run_id uuid, run_shard integer, chunk_no bigint, status text, expires_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET enable_hashjoin TO 'off'
    SET enable_mergejoin TO 'off'
    SET enable_seqscan TO 'off'
    SET jit TO 'off'
    AS $$
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
CREATE FUNCTION runherd.resume_run(p_run_id uuid) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_run    runherd.runs;
    v_intent int;
BEGIN
    SELECT r.* INTO v_run FROM runherd.runs r WHERE r.run_id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: no run %', p_run_id USING ERRCODE = 'RH404';
    END IF;
    DELETE FROM runherd.run_intents i WHERE i.run_id = p_run_id AND i.intent = 'pause';
    GET DIAGNOSTICS v_intent = ROW_COUNT;
    IF v_intent = 0 AND NOT v_run.paused THEN
        RAISE EXCEPTION 'runherd: run % is not paused', p_run_id USING ERRCODE = 'RH409';
    END IF;
    UPDATE runherd.runs r SET paused = false WHERE r.run_id = p_run_id AND r.paused;
    PERFORM pg_notify('runherd', 'shard_dispatcher');
    RETURN v_run.status;
END $$;
CREATE FUNCTION runherd.seal_run(p_run_id uuid, p_creation_token uuid, p_part_count integer, p_parts_digest bytea) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_run    runherd.runs;
    v_parts  int;
    v_chunks bigint;
    v_digest bytea;
BEGIN
    SELECT r.* INTO v_run FROM runherd.runs r WHERE r.run_id = p_run_id FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'runherd: no run %', p_run_id USING ERRCODE = 'RH404';
    END IF;
    IF v_run.sealed_at IS NOT NULL THEN
        IF v_run.part_count = p_part_count AND v_run.parts_digest = p_parts_digest THEN
            RETURN v_run.chunk_count;
        END IF;
        RAISE EXCEPTION 'runherd: run % is sealed with other content (% parts)', p_run_id, v_run.part_count
            USING ERRCODE = 'RH409', DETAIL = p_run_id::text;
    END IF;
    IF v_run.status <> 'creating' THEN
        RAISE EXCEPTION 'runherd: run % is % and cannot be sealed', p_run_id, v_run.status USING ERRCODE = 'RH409';
    END IF;
    IF v_run.creation_token IS DISTINCT FROM p_creation_token THEN
        RAISE EXCEPTION 'runherd: another client has taken up run %', p_run_id USING ERRCODE = 'RH410';
    END IF;
    SELECT count(*)::int, COALESCE(sum(s.chunk_count), 0)::bigint INTO v_parts, v_chunks
    FROM runherd.run_seeds s WHERE s.run_id = p_run_id;
    SELECT s.digest INTO v_digest FROM runherd.run_seeds s WHERE s.run_id = p_run_id ORDER BY s.part_no DESC LIMIT 1;
    IF v_parts <> p_part_count OR COALESCE(v_digest, ''::bytea) <> p_parts_digest THEN
        RAISE EXCEPTION 'runherd: run % holds % parts; the client sealed % parts, or other content', p_run_id, v_parts, p_part_count
            USING ERRCODE = 'RH409', DETAIL = p_run_id::text;
    END IF;
    INSERT INTO runherd.run_placements (run_id, placement_id, expected_chunks)
    SELECT s.run_id, s.placement_id, sum(s.chunk_count) FROM runherd.run_seeds s WHERE s.run_id = p_run_id
    GROUP BY s.run_id, s.placement_id ORDER BY s.placement_id;
    UPDATE runherd.runs r SET sealed_at = now(), part_count = v_parts, chunk_count = v_chunks, parts_digest = p_parts_digest,
        creation_expires_at = now()
    WHERE r.run_id = p_run_id;
    PERFORM pg_notify('runherd', 'creation_recovery');
    RETURN v_chunks;
END $$;
CREATE FUNCTION runherd.seed_part(p_run_id uuid, p_run_shard integer, p_part_no integer, p_first_chunk_no bigint, p_chunk_count integer, p_body json, p_queue text, p_policy jsonb) RETURNS text
    LANGUAGE plpgsql
    SET jit TO 'off'
    AS $$
DECLARE
    written bigint;
BEGIN
    INSERT INTO runherd.run_guards (run_id, status, queue, dispatch_window, chunks_per_event, max_attempts, recovery_limit,
        release_limit, retry_delay, retry_delay_max, lease_ttl_max, max_chunk_time, redelivery_after, redelivery_after_max)
    SELECT p_run_id, 'open', p_queue, (p_policy->>'window')::int, (p_policy->>'chunks_per_event')::int,
        (p_policy->>'max_attempts')::int, (p_policy->>'recovery_limit')::int, (p_policy->>'release_limit')::int,
        (p_policy->>'retry_delay_ms')::bigint * interval '1 ms', (p_policy->>'retry_delay_max_ms')::bigint * interval '1 ms',
        (p_policy->>'lease_ttl_max_ms')::bigint * interval '1 ms', (p_policy->>'max_chunk_time_ms')::bigint * interval '1 ms',
        (p_policy->>'redelivery_after_ms')::bigint * interval '1 ms',
        (p_policy->>'redelivery_after_max_ms')::bigint * interval '1 ms'
    ON CONFLICT (run_id) DO NOTHING;
    -- A statement of its own: locking a row that does not exist yet would lock nothing.
    PERFORM 1 FROM runherd.run_guards g WHERE g.run_id = p_run_id AND g.status = 'open' FOR SHARE;
    IF NOT FOUND THEN
        RETURN 'closed';
    END IF;
    INSERT INTO runherd.seeded_parts (run_id, part_no, run_shard, chunk_count)
    VALUES (p_run_id, p_part_no, p_run_shard, p_chunk_count) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'present';
    END IF;
    INSERT INTO runherd.shard_positions AS p (run_id, run_shard, chunk_count) VALUES (p_run_id, p_run_shard, p_chunk_count)
    ON CONFLICT (run_id, run_shard) DO UPDATE SET chunk_count = p.chunk_count + excluded.chunk_count;
    IF json_typeof(p_body) = 'array' THEN
        INSERT INTO runherd.chunks (run_shard, run_id, chunk_no, payload)
        SELECT p_run_shard, p_run_id, p_first_chunk_no + e.ordinal - 1, e.value
        FROM json_array_elements(p_body) WITH ORDINALITY AS e(value, ordinal);
    ELSE
        INSERT INTO runherd.chunks (run_shard, run_id, chunk_no, payload)
        SELECT p_run_shard, p_run_id, p_first_chunk_no + k,
            ('{"start":' || (r.first + k * r.step)::text || ',"end":' || least(r.first + (k + 1) * r.step, r.until)::text || '}')::json
        FROM (SELECT (p_body->>'start')::bigint AS first, (p_body->>'step')::bigint AS step, (p_body->>'end')::bigint AS until) r
        CROSS JOIN LATERAL generate_series(0, (r.until - r.first - 1) / r.step) AS k;
    END IF;
    GET DIAGNOSTICS written = ROW_COUNT;
    IF written <> p_chunk_count THEN
        RAISE EXCEPTION 'runherd: part % of run % holds % chunks, its seed says %', p_part_no, p_run_id, written, p_chunk_count
            USING ERRCODE = 'RH500';
    END IF;
    RETURN 'seeded';
END $$;
CREATE FUNCTION runherd.submit_run(p_header jsonb, p_chunks json, p_idempotency_key text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    v_run    record;
    v_part   record;
    v_digest bytea := '';
    v_parts  int := 0;
BEGIN
    IF json_typeof(p_chunks) IS DISTINCT FROM 'array' THEN
        RAISE EXCEPTION 'runherd: chunks must be a JSON array' USING ERRCODE = 'RH400';
    END IF;
    SELECT * INTO v_run FROM runherd.begin_run(p_header, p_idempotency_key, interval '1 min');
    FOR v_part IN
        SELECT count(*)::int AS chunks, ('[' || string_agg(e.value::text, ',' ORDER BY e.ordinal) || ']')::json AS body
        FROM json_array_elements(p_chunks) WITH ORDINALITY AS e(value, ordinal)
        GROUP BY (e.ordinal - 1) / 1000 ORDER BY (e.ordinal - 1) / 1000
    LOOP
        IF NOT v_run.sealed THEN
            PERFORM runherd.append_part(v_run.run_id, v_run.creation_token, v_parts, v_part.chunks, v_part.body, interval '1 min');
        END IF;
        v_digest := sha256(v_digest || convert_to(v_part.body::text, 'UTF8'));
        v_parts := v_parts + 1;
    END LOOP;
    PERFORM runherd.seal_run(v_run.run_id, v_run.creation_token, v_parts, v_digest);
    RETURN v_run.run_id;
END $$;
CREATE TABLE runherd.active_chunks (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    generation integer DEFAULT 0 NOT NULL,
    event_id bigint NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    releases integer DEFAULT 0 NOT NULL,
    ready_at timestamp with time zone DEFAULT now() NOT NULL,
    lease_token uuid,
    worker_id text,
    leased_at timestamp with time zone,
    expires_at timestamp with time zone,
    CONSTRAINT active_chunks_check CHECK (((lease_token IS NULL) = (expires_at IS NULL)))
)
WITH (fillfactor='35', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000');
CREATE TABLE runherd.chunks (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
PARTITION BY HASH (run_shard);
CREATE TABLE runherd.chunks_p0 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p1 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p2 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p3 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p4 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p5 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p6 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.chunks_p7 (
    run_shard integer NOT NULL,
    run_id uuid NOT NULL,
    chunk_no bigint NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    recoveries integer DEFAULT 0 NOT NULL,
    payload json NOT NULL,
    outcome json,
    error text,
    finished_token uuid,
    finished_at timestamp with time zone,
    failed_at timestamp with time zone,
    CONSTRAINT chunks_status_check CHECK ((status = ANY (ARRAY['open'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text, 'lost'::text])))
)
WITH (fillfactor='45', autovacuum_analyze_scale_factor='0.2');
CREATE TABLE runherd.control_migrations (
    version integer NOT NULL,
    name character varying(255),
    applied_on character varying(255),
    checksum character varying(255)
);
CREATE TABLE runherd.coordinators (
    coordinator_id uuid NOT NULL,
    host text NOT NULL,
    version text NOT NULL,
    started_at timestamp with time zone DEFAULT now() NOT NULL,
    seen_at timestamp with time zone DEFAULT now() NOT NULL
);
CREATE TABLE runherd.dispatch_cursors (
    run_id uuid NOT NULL,
    run_shard integer NOT NULL,
    placement_id integer NOT NULL,
    chunk_count bigint NOT NULL,
    next_chunk_no bigint DEFAULT 0 NOT NULL,
    status text DEFAULT 'open'::text NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    next_dispatch_at timestamp with time zone DEFAULT now() NOT NULL,
    dispatch_slot integer GENERATED ALWAYS AS (((uuid_hash(run_id) & 4095) + run_shard)) STORED NOT NULL,
    lease_token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    lease_expires_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    succeeded bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    cancelled bigint DEFAULT 0 NOT NULL,
    lost bigint DEFAULT 0 NOT NULL,
    CONSTRAINT dispatch_cursors_status_check CHECK ((status = ANY (ARRAY['open'::text, 'exhausted'::text, 'drained'::text])))
)
WITH (fillfactor='60', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE runherd.outbox_delivery_queue (
    outbox_shard smallint NOT NULL,
    event_id bigint NOT NULL,
    available_at timestamp with time zone DEFAULT now() NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    claim_token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    claimed_by uuid,
    claimed_until timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    last_error text,
    parked_at timestamp with time zone
)
WITH (fillfactor='45', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='20000', autovacuum_vacuum_cost_delay='0', autovacuum_analyze_scale_factor='0', autovacuum_analyze_threshold='50000');
CREATE SEQUENCE runherd.outbox_event_id
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
CREATE TABLE runherd.outbox_events (
    outbox_shard smallint NOT NULL,
    event_id bigint NOT NULL,
    dedupe_key text NOT NULL COLLATE pg_catalog."C",
    kind text NOT NULL,
    exchange text DEFAULT 'runherd'::text NOT NULL,
    routing_key text NOT NULL,
    headers json NOT NULL,
    payload json NOT NULL,
    status text DEFAULT 'pending'::text NOT NULL,
    redeliveries integer DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    published_at timestamp with time zone,
    proof text,
    CONSTRAINT outbox_events_check CHECK (((status = 'published'::text) = ((published_at IS NOT NULL) AND (proof IS NOT NULL)))),
    CONSTRAINT outbox_events_dedupe_key_check CHECK (((octet_length(dedupe_key) >= 1) AND (octet_length(dedupe_key) <= 255))),
    CONSTRAINT outbox_events_exchange_check CHECK ((octet_length(exchange) <= 255)),
    CONSTRAINT outbox_events_headers_check CHECK ((json_typeof(headers) = 'object'::text)),
    CONSTRAINT outbox_events_routing_key_check CHECK ((octet_length(routing_key) <= 255)),
    CONSTRAINT outbox_events_status_check CHECK ((status = ANY (ARRAY['pending'::text, 'published'::text, 'parked'::text])))
)
WITH (fillfactor='45');
CREATE TABLE runherd.placement_identity (
    singleton boolean DEFAULT true NOT NULL,
    installation_id uuid NOT NULL,
    placement_id integer NOT NULL,
    name text NOT NULL,
    CONSTRAINT placement_identity_singleton_check CHECK (singleton)
);
CREATE TABLE runherd.placement_migrations (
    version integer NOT NULL,
    name character varying(255),
    applied_on character varying(255),
    checksum character varying(255)
);
CREATE TABLE runherd.placements (
    placement_id integer NOT NULL,
    name text NOT NULL,
    weight integer DEFAULT 100 NOT NULL,
    state text DEFAULT 'active'::text NOT NULL,
    added_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT placements_name_check CHECK ((name ~ '^[a-z0-9][a-z0-9_-]{0,62}$'::text)),
    CONSTRAINT placements_state_check CHECK ((state = ANY (ARRAY['active'::text, 'draining'::text, 'offline'::text]))),
    CONSTRAINT placements_weight_check CHECK (((weight >= 1) AND (weight <= 10000)))
);
ALTER TABLE runherd.placements ALTER COLUMN placement_id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME runherd.placements_placement_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE runherd.queues (
    queue text NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT queues_queue_check CHECK ((queue ~ '^[A-Za-z0-9._-]{1,200}$'::text))
);
CREATE TABLE runherd.run_finalizations (
    run_id uuid NOT NULL,
    token uuid DEFAULT '00000000-0000-0000-0000-000000000000'::uuid NOT NULL,
    expires_at timestamp with time zone DEFAULT '1970-01-01 00:00:00+00'::timestamp with time zone NOT NULL,
    look_after timestamp with time zone DEFAULT 'infinity'::timestamp with time zone NOT NULL
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
CREATE TABLE runherd.run_guards (
    run_id uuid NOT NULL,
    status text NOT NULL,
    outcome text,
    queue text DEFAULT ''::text NOT NULL,
    dispatch_window integer DEFAULT 1000 NOT NULL,
    chunks_per_event integer DEFAULT 1 NOT NULL,
    max_attempts integer DEFAULT 3 NOT NULL,
    recovery_limit integer DEFAULT 5 NOT NULL,
    release_limit integer DEFAULT 100 NOT NULL,
    retry_delay interval DEFAULT '00:00:05'::interval NOT NULL,
    retry_delay_max interval DEFAULT '00:10:00'::interval NOT NULL,
    lease_ttl_max interval DEFAULT '00:05:00'::interval NOT NULL,
    max_chunk_time interval DEFAULT '01:00:00'::interval NOT NULL,
    redelivery_after interval DEFAULT '00:05:00'::interval NOT NULL,
    redelivery_after_max interval DEFAULT '01:00:00'::interval NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    closed_at timestamp with time zone,
    CONSTRAINT run_guards_check CHECK (((status = 'cancelled'::text) <= (outcome IS NOT NULL))),
    CONSTRAINT run_guards_chunks_per_event_check CHECK (((chunks_per_event >= 1) AND (chunks_per_event <= 1000))),
    CONSTRAINT run_guards_dispatch_window_check CHECK (((dispatch_window >= 1) AND (dispatch_window <= 1000000))),
    CONSTRAINT run_guards_max_attempts_check CHECK (((max_attempts >= 1) AND (max_attempts <= 1000))),
    CONSTRAINT run_guards_outcome_check CHECK ((outcome = ANY (ARRAY['cancelled'::text, 'failed'::text]))),
    CONSTRAINT run_guards_recovery_limit_check CHECK (((recovery_limit >= 0) AND (recovery_limit <= 1000))),
    CONSTRAINT run_guards_release_limit_check CHECK (((release_limit >= 0) AND (release_limit <= 1000000))),
    CONSTRAINT run_guards_status_check CHECK ((status = ANY (ARRAY['open'::text, 'cancelled'::text, 'closed'::text])))
)
WITH (fillfactor='70');
CREATE TABLE runherd.run_intents (
    run_id uuid NOT NULL,
    intent text NOT NULL,
    requested_at timestamp with time zone DEFAULT now() NOT NULL,
    requested_by text NOT NULL,
    reason text,
    CONSTRAINT run_intents_intent_check CHECK ((intent = ANY (ARRAY['cancel'::text, 'fail'::text, 'pause'::text])))
);
CREATE TABLE runherd.run_placements (
    run_id uuid NOT NULL,
    placement_id integer NOT NULL,
    expected_chunks bigint NOT NULL,
    seeded_at timestamp with time zone,
    reseed_at timestamp with time zone
);
CREATE TABLE runherd.run_seeds (
    run_id uuid NOT NULL,
    part_no integer NOT NULL,
    run_shard integer NOT NULL,
    placement_id integer NOT NULL,
    first_chunk_no bigint NOT NULL,
    chunk_count integer NOT NULL,
    body json NOT NULL,
    digest bytea NOT NULL,
    CONSTRAINT run_seeds_chunk_count_check CHECK ((chunk_count > 0)),
    CONSTRAINT run_seeds_part_no_check CHECK ((part_no >= 0))
);
CREATE TABLE runherd.runs (
    run_id uuid NOT NULL,
    idempotency_key text,
    request_digest bytea NOT NULL,
    parts_digest bytea DEFAULT '\x'::bytea NOT NULL,
    name text DEFAULT ''::text NOT NULL,
    queue text NOT NULL,
    status text DEFAULT 'creating'::text NOT NULL,
    priority integer DEFAULT 0 NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    policy jsonb DEFAULT '{}'::jsonb NOT NULL,
    tolerated_failures bigint,
    deadline_at timestamp with time zone,
    shard_count integer NOT NULL,
    part_count integer,
    chunk_count bigint,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    sealed_at timestamp with time zone,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    creation_token uuid NOT NULL,
    creation_expires_at timestamp with time zone NOT NULL,
    guards_closed_at timestamp with time zone,
    succeeded bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    cancelled bigint DEFAULT 0 NOT NULL,
    lost bigint DEFAULT 0 NOT NULL,
    reason text,
    CONSTRAINT runs_check CHECK (((status = ANY (ARRAY['succeeded'::text, 'failed'::text, 'cancelled'::text])) = (finished_at IS NOT NULL))),
    CONSTRAINT runs_check1 CHECK (((status <> ALL (ARRAY['pending'::text, 'running'::text, 'succeeded'::text])) OR (sealed_at IS NOT NULL))),
    CONSTRAINT runs_idempotency_key_check CHECK (((octet_length(idempotency_key) >= 1) AND (octet_length(idempotency_key) <= 255))),
    CONSTRAINT runs_priority_check CHECK (((priority >= '-1000'::integer) AND (priority <= 1000))),
    CONSTRAINT runs_shard_count_check CHECK (((shard_count >= 1) AND (shard_count <= 4096))),
    CONSTRAINT runs_status_check CHECK ((status = ANY (ARRAY['creating'::text, 'pending'::text, 'running'::text, 'cancelling'::text, 'failing'::text, 'succeeded'::text, 'failed'::text, 'cancelled'::text]))),
    CONSTRAINT runs_tolerated_failures_check CHECK ((tolerated_failures >= 0))
)
WITH (fillfactor='70');
CREATE TABLE runherd.schema_version (
    component text NOT NULL,
    version integer NOT NULL,
    min_coordinator integer NOT NULL,
    CONSTRAINT schema_version_component_check CHECK ((component = ANY (ARRAY['control'::text, 'placement'::text])))
);
CREATE TABLE runherd.seeded_parts (
    run_id uuid NOT NULL,
    part_no integer NOT NULL,
    run_shard integer NOT NULL,
    chunk_count integer NOT NULL
);
CREATE TABLE runherd.shard_positions (
    run_id uuid NOT NULL,
    run_shard integer NOT NULL,
    chunk_count bigint DEFAULT 0 NOT NULL,
    next_chunk_no bigint DEFAULT 0 NOT NULL,
    low_chunk_no bigint DEFAULT 0 NOT NULL,
    drained_at timestamp with time zone,
    succeeded bigint DEFAULT 0 NOT NULL,
    failed bigint DEFAULT 0 NOT NULL,
    cancelled bigint DEFAULT 0 NOT NULL,
    lost bigint DEFAULT 0 NOT NULL,
    CONSTRAINT shard_positions_check CHECK (((0 <= low_chunk_no) AND (low_chunk_no <= chunk_count) AND (0 <= next_chunk_no) AND (next_chunk_no <= chunk_count))),
    CONSTRAINT shard_positions_check1 CHECK (((((succeeded + failed) + cancelled) + lost) = low_chunk_no))
)
WITH (fillfactor='50', autovacuum_vacuum_scale_factor='0', autovacuum_vacuum_threshold='5000');
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p0 FOR VALUES WITH (modulus 8, remainder 0);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p1 FOR VALUES WITH (modulus 8, remainder 1);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p2 FOR VALUES WITH (modulus 8, remainder 2);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p3 FOR VALUES WITH (modulus 8, remainder 3);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p4 FOR VALUES WITH (modulus 8, remainder 4);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p5 FOR VALUES WITH (modulus 8, remainder 5);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p6 FOR VALUES WITH (modulus 8, remainder 6);
ALTER TABLE ONLY runherd.chunks ATTACH PARTITION runherd.chunks_p7 FOR VALUES WITH (modulus 8, remainder 7);
ALTER TABLE ONLY runherd.active_chunks
    ADD CONSTRAINT active_chunks_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks
    ADD CONSTRAINT chunks_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p0
    ADD CONSTRAINT chunks_p0_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p1
    ADD CONSTRAINT chunks_p1_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p2
    ADD CONSTRAINT chunks_p2_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p3
    ADD CONSTRAINT chunks_p3_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p4
    ADD CONSTRAINT chunks_p4_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p5
    ADD CONSTRAINT chunks_p5_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p6
    ADD CONSTRAINT chunks_p6_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.chunks_p7
    ADD CONSTRAINT chunks_p7_pkey PRIMARY KEY (run_shard, run_id, chunk_no);
ALTER TABLE ONLY runherd.control_migrations
    ADD CONSTRAINT control_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY runherd.coordinators
    ADD CONSTRAINT coordinators_pkey PRIMARY KEY (coordinator_id);
ALTER TABLE ONLY runherd.dispatch_cursors
    ADD CONSTRAINT dispatch_cursors_pkey PRIMARY KEY (run_id, run_shard);
ALTER TABLE ONLY runherd.outbox_delivery_queue
    ADD CONSTRAINT outbox_delivery_queue_pkey PRIMARY KEY (outbox_shard, event_id);
ALTER TABLE ONLY runherd.outbox_events
    ADD CONSTRAINT outbox_events_pkey PRIMARY KEY (outbox_shard, event_id);
ALTER TABLE ONLY runherd.placement_identity
    ADD CONSTRAINT placement_identity_pkey PRIMARY KEY (singleton);
ALTER TABLE ONLY runherd.placement_migrations
    ADD CONSTRAINT placement_migrations_pkey PRIMARY KEY (version);
ALTER TABLE ONLY runherd.placements
    ADD CONSTRAINT placements_name_key UNIQUE (name);
ALTER TABLE ONLY runherd.placements
    ADD CONSTRAINT placements_pkey PRIMARY KEY (placement_id);
ALTER TABLE ONLY runherd.queues
    ADD CONSTRAINT queues_pkey PRIMARY KEY (queue);
ALTER TABLE ONLY runherd.run_finalizations
    ADD CONSTRAINT run_finalizations_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY runherd.run_guards
    ADD CONSTRAINT run_guards_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY runherd.run_intents
    ADD CONSTRAINT run_intents_pkey PRIMARY KEY (run_id, intent);
ALTER TABLE ONLY runherd.run_placements
    ADD CONSTRAINT run_placements_pkey PRIMARY KEY (run_id, placement_id);
ALTER TABLE ONLY runherd.run_seeds
    ADD CONSTRAINT run_seeds_pkey PRIMARY KEY (run_id, part_no);
ALTER TABLE ONLY runherd.runs
    ADD CONSTRAINT runs_idempotency_key_key UNIQUE (idempotency_key);
ALTER TABLE ONLY runherd.runs
    ADD CONSTRAINT runs_pkey PRIMARY KEY (run_id);
ALTER TABLE ONLY runherd.schema_version
    ADD CONSTRAINT schema_version_pkey PRIMARY KEY (component);
ALTER TABLE ONLY runherd.seeded_parts
    ADD CONSTRAINT seeded_parts_pkey PRIMARY KEY (run_id, part_no);
ALTER TABLE ONLY runherd.shard_positions
    ADD CONSTRAINT shard_positions_pkey PRIMARY KEY (run_id, run_shard);
CREATE INDEX chunks_failed ON ONLY runherd.chunks USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p0_run_id_run_shard_chunk_no_idx ON runherd.chunks_p0 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p1_run_id_run_shard_chunk_no_idx ON runherd.chunks_p1 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p2_run_id_run_shard_chunk_no_idx ON runherd.chunks_p2 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p3_run_id_run_shard_chunk_no_idx ON runherd.chunks_p3 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p4_run_id_run_shard_chunk_no_idx ON runherd.chunks_p4 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p5_run_id_run_shard_chunk_no_idx ON runherd.chunks_p5 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p6_run_id_run_shard_chunk_no_idx ON runherd.chunks_p6 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX chunks_p7_run_id_run_shard_chunk_no_idx ON runherd.chunks_p7 USING btree (run_id, run_shard, chunk_no) WHERE (failed_at IS NOT NULL);
CREATE INDEX dispatch_cursors_open ON runherd.dispatch_cursors USING btree (priority DESC, next_dispatch_at) WHERE (status = 'open'::text);
CREATE INDEX dispatch_cursors_undrained ON runherd.dispatch_cursors USING btree (run_id, status) WHERE (status <> 'drained'::text);
CREATE UNIQUE INDEX outbox_events_dedupe_key ON runherd.outbox_events USING btree (dedupe_key);
CREATE INDEX run_finalizations_look_after ON runherd.run_finalizations USING btree (look_after);
CREATE INDEX run_guards_not_closed ON runherd.run_guards USING btree (run_id) WHERE (status <> 'closed'::text);
CREATE INDEX run_placements_reseed ON runherd.run_placements USING btree (reseed_at) WHERE (reseed_at IS NOT NULL);
CREATE INDEX runs_created_at ON runherd.runs USING btree (created_at);
CREATE INDEX runs_creating ON runherd.runs USING btree (creation_expires_at) WHERE (status = 'creating'::text);
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p0_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p0_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p1_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p1_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p2_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p2_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p3_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p3_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p4_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p4_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p5_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p5_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p6_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p6_run_id_run_shard_chunk_no_idx;
ALTER INDEX runherd.chunks_pkey ATTACH PARTITION runherd.chunks_p7_pkey;
ALTER INDEX runherd.chunks_failed ATTACH PARTITION runherd.chunks_p7_run_id_run_shard_chunk_no_idx;
ALTER TABLE ONLY runherd.dispatch_cursors
    ADD CONSTRAINT dispatch_cursors_placement_id_fkey FOREIGN KEY (placement_id) REFERENCES runherd.placements(placement_id);
ALTER TABLE ONLY runherd.dispatch_cursors
    ADD CONSTRAINT dispatch_cursors_run_id_fkey FOREIGN KEY (run_id) REFERENCES runherd.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY runherd.run_finalizations
    ADD CONSTRAINT run_finalizations_run_id_fkey FOREIGN KEY (run_id) REFERENCES runherd.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY runherd.run_placements
    ADD CONSTRAINT run_placements_placement_id_fkey FOREIGN KEY (placement_id) REFERENCES runherd.placements(placement_id);
ALTER TABLE ONLY runherd.run_placements
    ADD CONSTRAINT run_placements_run_id_fkey FOREIGN KEY (run_id) REFERENCES runherd.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY runherd.run_seeds
    ADD CONSTRAINT run_seeds_placement_id_fkey FOREIGN KEY (placement_id) REFERENCES runherd.placements(placement_id);
ALTER TABLE ONLY runherd.run_seeds
    ADD CONSTRAINT run_seeds_run_id_fkey FOREIGN KEY (run_id) REFERENCES runherd.runs(run_id) ON DELETE CASCADE;
ALTER TABLE ONLY runherd.runs
    ADD CONSTRAINT runs_queue_fkey FOREIGN KEY (queue) REFERENCES runherd.queues(queue);
GRANT USAGE ON SCHEMA runherd TO runherd_coordinator;
GRANT USAGE ON SCHEMA runherd TO runherd_worker;
GRANT USAGE ON SCHEMA runherd TO runherd_readonly;
GRANT USAGE ON SCHEMA runherd TO runherd_client;
REVOKE ALL ON FUNCTION runherd.abort_run(p_run_id uuid, p_creation_token uuid, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.abort_run(p_run_id uuid, p_creation_token uuid, p_reason text) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.abort_run(p_run_id uuid, p_creation_token uuid, p_reason text) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.append_part(p_run_id uuid, p_creation_token uuid, p_part_no integer, p_chunk_count integer, p_body json, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.append_part(p_run_id uuid, p_creation_token uuid, p_part_no integer, p_chunk_count integer, p_body json, p_lease interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.append_part(p_run_id uuid, p_creation_token uuid, p_part_no integer, p_chunk_count integer, p_body json, p_lease interval) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.assign_placement(p_run_id uuid, p_run_shard integer) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.assign_placement(p_run_id uuid, p_run_shard integer) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.begin_run(p_header jsonb, p_idempotency_key text, p_lease interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.begin_run(p_header jsonb, p_idempotency_key text, p_lease interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.begin_run(p_header jsonb, p_idempotency_key text, p_lease interval) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.cancel_run(p_run_id uuid, p_reason text) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.cancel_run(p_run_id uuid, p_reason text) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.cancel_run(p_run_id uuid, p_reason text) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.check_policy(p_policy jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.check_policy(p_policy jsonb) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.chunk_ready_headers(p_placement text, p_generation integer, p_cause text) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.chunk_ready_headers(p_placement text, p_generation integer, p_cause text) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.chunk_ready_key(p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.chunk_ready_key(p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.chunk_ready_payload(p_placement text, p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.chunk_ready_payload(p_placement text, p_run_id uuid, p_run_shard integer, p_first bigint, p_last bigint, p_generation integer) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.complete_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_outcome json) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.complete_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_outcome json) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.complete_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_outcome json) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.complete_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_outcomes json[]) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.complete_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_outcomes json[]) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.complete_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_outcomes json[]) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.emit_run_event(p_run_id uuid, p_kind text, p_sequence integer, p_payload jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.emit_run_event(p_run_id uuid, p_kind text, p_sequence integer, p_payload jsonb) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.fail_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_error text, p_retryable boolean) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.fail_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_error text, p_retryable boolean) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.fail_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_error text, p_retryable boolean) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.fail_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_retryables boolean[]) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.fail_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_retryables boolean[]) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.fail_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_retryables boolean[]) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.give_back_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_hows text[]) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.give_back_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_errors text[], p_hows text[]) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.lease_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_worker_id text, p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.lease_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_worker_id text, p_ttl interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.lease_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_worker_id text, p_ttl interval) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.lease_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_token uuid, p_worker_id text, p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.lease_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_token uuid, p_worker_id text, p_ttl interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.lease_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_token uuid, p_worker_id text, p_ttl interval) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.outbox_shard_of(p_run_id uuid, p_run_shard integer) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.outbox_shard_of(p_run_id uuid, p_run_shard integer) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.pause_run(p_run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.pause_run(p_run_id uuid) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.pause_run(p_run_id uuid) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.raise_broken(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_what text) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.raise_broken(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_what text) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.release_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.release_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.release_chunk(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.release_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[]) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.release_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[]) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.release_chunks(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[]) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.renew_lease(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.renew_lease(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_ttl interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.renew_lease(p_run_id uuid, p_run_shard integer, p_chunk_no bigint, p_token uuid, p_ttl interval) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.renew_leases(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_ttl interval) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.renew_leases(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_ttl interval) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.renew_leases(p_run_ids uuid[], p_run_shards integer[], p_chunk_nos bigint[], p_tokens uuid[], p_ttl interval) TO runherd_worker;
REVOKE ALL ON FUNCTION runherd.resume_run(p_run_id uuid) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.resume_run(p_run_id uuid) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.resume_run(p_run_id uuid) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.seal_run(p_run_id uuid, p_creation_token uuid, p_part_count integer, p_parts_digest bytea) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.seal_run(p_run_id uuid, p_creation_token uuid, p_part_count integer, p_parts_digest bytea) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.seal_run(p_run_id uuid, p_creation_token uuid, p_part_count integer, p_parts_digest bytea) TO runherd_client;
REVOKE ALL ON FUNCTION runherd.seed_part(p_run_id uuid, p_run_shard integer, p_part_no integer, p_first_chunk_no bigint, p_chunk_count integer, p_body json, p_queue text, p_policy jsonb) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.seed_part(p_run_id uuid, p_run_shard integer, p_part_no integer, p_first_chunk_no bigint, p_chunk_count integer, p_body json, p_queue text, p_policy jsonb) TO runherd_coordinator;
REVOKE ALL ON FUNCTION runherd.submit_run(p_header jsonb, p_chunks json, p_idempotency_key text) FROM PUBLIC;
GRANT ALL ON FUNCTION runherd.submit_run(p_header jsonb, p_chunks json, p_idempotency_key text) TO runherd_coordinator;
GRANT ALL ON FUNCTION runherd.submit_run(p_header jsonb, p_chunks json, p_idempotency_key text) TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.active_chunks TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.active_chunks TO runherd_readonly;
GRANT SELECT(run_shard) ON TABLE runherd.active_chunks TO runherd_client;
GRANT SELECT(run_id) ON TABLE runherd.active_chunks TO runherd_client;
GRANT SELECT(chunk_no) ON TABLE runherd.active_chunks TO runherd_client;
GRANT SELECT(expires_at) ON TABLE runherd.active_chunks TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks TO runherd_readonly;
GRANT SELECT(run_shard) ON TABLE runherd.chunks TO runherd_client;
GRANT SELECT(run_id) ON TABLE runherd.chunks TO runherd_client;
GRANT SELECT(chunk_no) ON TABLE runherd.chunks TO runherd_client;
GRANT SELECT(failed_at) ON TABLE runherd.chunks TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p0 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p0 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p1 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p1 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p2 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p2 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p3 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p3 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p4 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p4 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p5 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p5 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p6 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p6 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.chunks_p7 TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.chunks_p7 TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.control_migrations TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.control_migrations TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.coordinators TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.coordinators TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.dispatch_cursors TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.dispatch_cursors TO runherd_readonly;
GRANT SELECT ON TABLE runherd.dispatch_cursors TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.outbox_delivery_queue TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.outbox_delivery_queue TO runherd_readonly;
GRANT USAGE ON SEQUENCE runherd.outbox_event_id TO runherd_coordinator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.outbox_events TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.outbox_events TO runherd_readonly;
GRANT SELECT ON TABLE runherd.placement_identity TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.placement_identity TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.placement_migrations TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.placement_migrations TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.placements TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.placements TO runherd_readonly;
GRANT SELECT ON TABLE runherd.placements TO runherd_client;
GRANT USAGE ON SEQUENCE runherd.placements_placement_id_seq TO runherd_coordinator;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.queues TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.queues TO runherd_readonly;
GRANT SELECT ON TABLE runherd.queues TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.run_finalizations TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.run_finalizations TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.run_guards TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.run_guards TO runherd_readonly;
GRANT SELECT(run_id) ON TABLE runherd.run_guards TO runherd_client;
GRANT SELECT(status) ON TABLE runherd.run_guards TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.run_intents TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.run_intents TO runherd_readonly;
GRANT SELECT ON TABLE runherd.run_intents TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.run_placements TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.run_placements TO runherd_readonly;
GRANT SELECT ON TABLE runherd.run_placements TO runherd_client;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.run_seeds TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.run_seeds TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.runs TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.runs TO runherd_readonly;
GRANT SELECT ON TABLE runherd.runs TO runherd_client;
GRANT SELECT ON TABLE runherd.schema_version TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.schema_version TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.seeded_parts TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.seeded_parts TO runherd_readonly;
GRANT SELECT,INSERT,DELETE,UPDATE ON TABLE runherd.shard_positions TO runherd_coordinator;
GRANT SELECT ON TABLE runherd.shard_positions TO runherd_readonly;
GRANT SELECT ON TABLE runherd.shard_positions TO runherd_client;
