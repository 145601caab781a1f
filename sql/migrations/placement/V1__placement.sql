-- What every placement holds: guards, positions, chunks, leases and the outbox. The control database gets it too.
-- It relies on nothing that another database holds.

CREATE TABLE runherd.schema_version (
    component       text PRIMARY KEY CHECK (component IN ('control', 'placement')),
    version         int NOT NULL,
    -- The oldest coordinator generation that may work with this schema.
    min_coordinator int NOT NULL
);
INSERT INTO runherd.schema_version VALUES ('placement', 1, 1);

-- One row: which installation and which placement this database is. Checked on every new connection.
CREATE TABLE runherd.placement_identity (
    singleton       boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    installation_id uuid NOT NULL,
    placement_id    int NOT NULL,
    name            text NOT NULL
);

-- The placement's own authority for a run. A statement that hands out, leases or finishes restates that it is open.
CREATE TABLE runherd.run_guards (
    run_id               uuid PRIMARY KEY,
    status               text NOT NULL CHECK (status IN ('open', 'cancelled', 'closed')),
    -- What was meant when the guard was cancelled.
    outcome              text CHECK (outcome IN ('cancelled', 'failed')),
    queue                text NOT NULL DEFAULT '',
    dispatch_window      int NOT NULL DEFAULT 1000 CHECK (dispatch_window BETWEEN 1 AND 1000000),
    chunks_per_event     int NOT NULL DEFAULT 1 CHECK (chunks_per_event BETWEEN 1 AND 1000),
    max_attempts         int NOT NULL DEFAULT 3 CHECK (max_attempts BETWEEN 1 AND 1000),
    recovery_limit       int NOT NULL DEFAULT 5 CHECK (recovery_limit BETWEEN 0 AND 1000),
    release_limit        int NOT NULL DEFAULT 100 CHECK (release_limit BETWEEN 0 AND 1000000),
    retry_delay          interval NOT NULL DEFAULT '5 s',
    retry_delay_max      interval NOT NULL DEFAULT '10 min',
    lease_ttl_max        interval NOT NULL DEFAULT '5 min',
    max_chunk_time       interval NOT NULL DEFAULT '1 h',
    redelivery_after     interval NOT NULL DEFAULT '5 min',
    redelivery_after_max interval NOT NULL DEFAULT '1 h',
    created_at           timestamptz NOT NULL DEFAULT now(),
    closed_at            timestamptz,
    CHECK ((status = 'cancelled') <= (outcome IS NOT NULL))
) WITH (fillfactor = 70);
-- Serves the search for orphans: tombstones of ended runs are not in it.
CREATE INDEX run_guards_not_closed ON runherd.run_guards (run_id) WHERE status <> 'closed';

-- Written with each part, before its chunks: where a replay resumes.
CREATE TABLE runherd.seeded_parts (
    run_id      uuid NOT NULL,
    part_no     int NOT NULL,
    run_shard   int NOT NULL,
    chunk_count int NOT NULL,
    PRIMARY KEY (run_id, part_no)
);

-- The truth of how far a shard has been handed out. Below low_chunk_no every chunk is finished, and the totals count those.
CREATE TABLE runherd.shard_positions (
    run_id        uuid NOT NULL,
    run_shard     int NOT NULL,
    chunk_count   bigint NOT NULL DEFAULT 0,
    next_chunk_no bigint NOT NULL DEFAULT 0,
    low_chunk_no  bigint NOT NULL DEFAULT 0,
    drained_at    timestamptz,
    succeeded     bigint NOT NULL DEFAULT 0,
    failed        bigint NOT NULL DEFAULT 0,
    cancelled     bigint NOT NULL DEFAULT 0,
    lost          bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (run_id, run_shard),
    CHECK (0 <= low_chunk_no AND low_chunk_no <= chunk_count AND 0 <= next_chunk_no AND next_chunk_no <= chunk_count),
    CHECK (succeeded + failed + cancelled + lost = low_chunk_no)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Written once when seeded and once when finished; a batch finishes whole pages at once, so each page keeps room for both
-- versions of its rows and the index is not touched again. Payloads and outcomes are json: what comes back is what was given.
CREATE TABLE runherd.chunks (
    run_shard      int NOT NULL,
    run_id         uuid NOT NULL,
    chunk_no       bigint NOT NULL,
    status         text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'succeeded', 'failed', 'cancelled', 'lost')),
    attempts       int NOT NULL DEFAULT 0,
    recoveries     int NOT NULL DEFAULT 0,
    payload        json NOT NULL,
    outcome        json,
    error          text,
    finished_token uuid,
    finished_at    timestamptz,
    -- Set with status = 'failed' and never else. An index that named status would cost every finish its HOT update.
    failed_at      timestamptz,
    PRIMARY KEY (run_shard, run_id, chunk_no)
) PARTITION BY HASH (run_shard);

DO $$
BEGIN
    FOR i IN 0..7 LOOP
        EXECUTE format('CREATE TABLE runherd.chunks_p%s PARTITION OF runherd.chunks
            FOR VALUES WITH (MODULUS 8, REMAINDER %s) WITH (fillfactor = 45, autovacuum_analyze_scale_factor = 0.2)', i, i);
    END LOOP;
END $$;

-- Serves the bounded look at failures (finalizer) and the listing of failed chunks.
CREATE INDEX chunks_failed ON runherd.chunks (run_id, run_shard, chunk_no) WHERE failed_at IS NOT NULL;

-- Small and hot: a row exists exactly while a chunk is handed out and not finished. Leasing and renewing touch no index.
CREATE TABLE runherd.active_chunks (
    run_shard   int NOT NULL,
    run_id      uuid NOT NULL,
    chunk_no    bigint NOT NULL,
    generation  int NOT NULL DEFAULT 0,
    event_id    bigint NOT NULL,
    attempts    int NOT NULL DEFAULT 0,
    recoveries  int NOT NULL DEFAULT 0,
    releases    int NOT NULL DEFAULT 0,
    ready_at    timestamptz NOT NULL DEFAULT now(),
    lease_token uuid,
    worker_id   text,
    leased_at   timestamptz,
    expires_at  timestamptz,
    PRIMARY KEY (run_shard, run_id, chunk_no),
    CHECK ((lease_token IS NULL) = (expires_at IS NULL))
) WITH (fillfactor = 35, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

CREATE SEQUENCE runherd.outbox_event_id;

-- The ledger: every event that a state change committed, with its publication status.
CREATE TABLE runherd.outbox_events (
    outbox_shard smallint NOT NULL,
    event_id     bigint NOT NULL,
    dedupe_key   text COLLATE "C" NOT NULL CHECK (octet_length(dedupe_key) BETWEEN 1 AND 255),
    kind         text NOT NULL,
    exchange     text NOT NULL DEFAULT 'runherd' CHECK (octet_length(exchange) <= 255),
    routing_key  text NOT NULL CHECK (octet_length(routing_key) <= 255),
    headers      json NOT NULL CHECK (json_typeof(headers) = 'object'),
    payload      json NOT NULL,
    status       text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'published', 'parked')),
    redeliveries int NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    proof        text,
    PRIMARY KEY (outbox_shard, event_id),
    -- A published row says when, and what the broker answered.
    CHECK ((status = 'published') = (published_at IS NOT NULL AND proof IS NOT NULL))
) WITH (fillfactor = 45);
CREATE UNIQUE INDEX outbox_events_dedupe_key ON runherd.outbox_events (dedupe_key);

-- The hot queue: one row for each ledger event that is not published, and nothing else. Claiming touches no index.
CREATE TABLE runherd.outbox_delivery_queue (
    outbox_shard  smallint NOT NULL,
    event_id      bigint NOT NULL,
    available_at  timestamptz NOT NULL DEFAULT now(),
    attempts      int NOT NULL DEFAULT 0,
    claim_token   uuid NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000',
    -- The coordinator.
    claimed_by    uuid,
    claimed_until timestamptz NOT NULL DEFAULT 'epoch',
    last_error    text,
    parked_at     timestamptz,
    PRIMARY KEY (outbox_shard, event_id)
) WITH (fillfactor = 45, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0, autovacuum_analyze_threshold = 50000);

-- The modulus is part of the schema: rows written under one modulus are found only under the same.
CREATE FUNCTION runherd.outbox_shard_of(p_run_id uuid, p_run_shard int) RETURNS smallint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN ((((pg_catalog.uuid_hash(p_run_id) & 1023) + p_run_shard) & 7)::smallint);

-- The three texts of a chunk-ready event. Plain concatenation, so that the planner can inline them.
CREATE FUNCTION runherd.chunk_ready_key(p_run_id uuid, p_run_shard int, p_first bigint, p_last bigint, p_generation int)
    RETURNS text LANGUAGE sql STABLE PARALLEL SAFE
    RETURN 'chunk-ready/' || p_run_id::text || '/' || p_run_shard::text || '/' || p_first::text || '-' || p_last::text
        || '/' || p_generation::text;

CREATE FUNCTION runherd.chunk_ready_payload(p_placement text, p_run_id uuid, p_run_shard int, p_first bigint, p_last bigint,
    p_generation int) RETURNS json LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ('{"placement":"' || p_placement || '","run_id":"' || p_run_id::text || '","run_shard":' || p_run_shard::text
        || ',"first_chunk_no":' || p_first::text || ',"last_chunk_no":' || p_last::text
        || ',"generation":' || p_generation::text || '}')::json;

CREATE FUNCTION runherd.chunk_ready_headers(p_placement text, p_generation int, p_cause text) RETURNS json
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN ('{"placement":"' || p_placement || '","generation":' || p_generation::text || ',"cause":"' || p_cause || '"}')::json;

-- Ends a statement that met rows which contradict each other, with everything it did rolled back.
CREATE FUNCTION runherd.raise_broken(p_run_id uuid, p_run_shard int, p_chunk_no bigint, p_what text) RETURNS text
    LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'runherd: chunk %/%/% %', p_run_id, p_run_shard, p_chunk_no, p_what
        USING ERRCODE = 'RH500', HINT = 'Run `runherd verify` on this run.';
END $$;

-- Seeds one part: idempotent, and refused (`closed`) once the guard is not open. `body` is an array of payloads, or a
-- range {"start", "step", "end"} whose chunk k covers [start + k * step, min(start + (k + 1) * step, end)).
CREATE FUNCTION runherd.seed_part(p_run_id uuid, p_run_shard int, p_part_no int, p_first_chunk_no bigint, p_chunk_count int,
    p_body json, p_queue text, p_policy jsonb) RETURNS text
    LANGUAGE plpgsql SET jit = off AS $$
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
