-- The client's contract: everything that a client may do. Refusals are exceptions, since a client has to act on them:
-- RH400 bad request · RH404 no such run · RH409 conflicts with what is there · RH410 the creation token was lost.

-- Weighted rendezvous hashing over the active placements: adding a placement moves no shard that is already placed.
CREATE FUNCTION runherd.assign_placement(p_run_id uuid, p_run_shard int) RETURNS int
    LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION runherd.check_policy(p_policy jsonb) RETURNS void
    LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
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

-- Begins a run, or takes up one that the same idempotency key began. `p_header`: {"queue", "name", "shards", "priority",
-- "tolerated_failures", "deadline_ms", "policy"}; only "queue" is needed. A client that tries again gets a fresh token (an
-- earlier holder's is lost), and learns how many parts are there and the digest of their chain. A run that was given up before
-- it was sealed is not taken up.
CREATE FUNCTION runherd.begin_run(p_header jsonb, p_idempotency_key text, p_lease interval)
    RETURNS TABLE (run_id uuid, creation_token uuid, created boolean, sealed boolean, status text, shard_count int,
        parts_present int, chunks_present bigint, parts_digest bytea)
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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
END $$;

-- Appends part `p_part_no` (the next one; one that is present already is compared). Renews the creation lease.
-- Answers `appended` or `present`.
CREATE FUNCTION runherd.append_part(p_run_id uuid, p_creation_token uuid, p_part_no int, p_chunk_count int, p_body json,
    p_lease interval) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Seals a run: from here on it holds exactly these parts, and creation_recovery may take it up. Sealing again with the same
-- parts succeeds again; with others it is refused.
CREATE FUNCTION runherd.seal_run(p_run_id uuid, p_creation_token uuid, p_part_count int, p_parts_digest bytea) RETURNS bigint
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- The whole of a submission in one call, for clients that speak SQL alone. `p_chunks` is an array of payloads.
CREATE FUNCTION runherd.submit_run(p_header jsonb, p_chunks json, p_idempotency_key text DEFAULT NULL) RETURNS uuid
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Gives up a run that was not sealed (bad input, a client that will not return). It becomes failed with this reason.
CREATE FUNCTION runherd.abort_run(p_run_id uuid, p_creation_token uuid, p_reason text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Asks for a run to be cancelled; answers the status that it found. A terminal run is refused.
CREATE FUNCTION runherd.cancel_run(p_run_id uuid, p_reason text DEFAULT NULL) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION runherd.pause_run(p_run_id uuid) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

CREATE FUNCTION runherd.resume_run(p_run_id uuid) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
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

-- Rights. A client reads what `runherd status` and `runherd runs` show, and writes through the functions alone.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA runherd FROM PUBLIC;
GRANT USAGE ON SCHEMA runherd TO runherd_client;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA runherd TO runherd_coordinator;
REVOKE INSERT, UPDATE, DELETE ON runherd.schema_version, runherd.placement_identity FROM runherd_coordinator;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA runherd TO runherd_coordinator;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA runherd TO runherd_coordinator;
GRANT SELECT ON ALL TABLES IN SCHEMA runherd TO runherd_readonly;
GRANT EXECUTE ON FUNCTION runherd.begin_run, runherd.append_part, runherd.seal_run, runherd.submit_run, runherd.abort_run,
    runherd.cancel_run, runherd.pause_run, runherd.resume_run TO runherd_client;
GRANT SELECT ON runherd.runs, runherd.run_intents, runherd.dispatch_cursors, runherd.run_placements, runherd.placements,
    runherd.queues TO runherd_client;

UPDATE runherd.schema_version SET version = 2 WHERE component = 'control';
