//! The protocol's invariants as this crate reads them, in SQL of its own: each query answers what breaks one.

use super::Stagehand;

/// On each placement.
const ON_A_PLACEMENT: [(&str, &str); 6] = [
    (
        "I1: seeded = present, without a gap",
        "SELECT format('%s/%s: %s chunks of parts, %s in the position, %s rows from %s to %s', p.run_id, p.run_shard,
             s.chunks, p.chunk_count, c.chunks, c.least, c.most)
         FROM runherd.shard_positions p
         LEFT JOIN LATERAL (SELECT COALESCE(sum(s.chunk_count), 0) AS chunks FROM runherd.seeded_parts s
             WHERE s.run_id = p.run_id AND s.run_shard = p.run_shard) s ON true
         LEFT JOIN LATERAL (SELECT count(*) AS chunks, min(c.chunk_no) AS least, max(c.chunk_no) AS most
             FROM runherd.chunks c WHERE c.run_id = p.run_id AND c.run_shard = p.run_shard) c ON true
         WHERE s.chunks <> p.chunk_count OR c.chunks <> p.chunk_count OR c.least <> 0 OR c.most <> p.chunk_count - 1",
    ),
    (
        "I1: an active row exactly for each open chunk below the position",
        "SELECT format('%s/%s/%s: %s, position %s, active %s', c.run_id, c.run_shard, c.chunk_no, c.status,
             p.next_chunk_no, a.chunk_no IS NOT NULL)
         FROM runherd.chunks c
         JOIN runherd.run_guards g ON g.run_id = c.run_id AND g.status = 'open'
         JOIN runherd.shard_positions p ON p.run_id = c.run_id AND p.run_shard = c.run_shard
         LEFT JOIN runherd.active_chunks a
             ON a.run_id = c.run_id AND a.run_shard = c.run_shard AND a.chunk_no = c.chunk_no
         WHERE (c.status = 'open' AND c.chunk_no < p.next_chunk_no) <> (a.chunk_no IS NOT NULL)",
    ),
    (
        "I3: no active row for a finished chunk, or for none",
        "SELECT format('%s/%s/%s: %s', a.run_id, a.run_shard, a.chunk_no, COALESCE(c.status, 'no chunk'))
         FROM runherd.active_chunks a
         LEFT JOIN runherd.chunks c ON c.run_id = a.run_id AND c.run_shard = a.run_shard AND c.chunk_no = a.chunk_no
         WHERE c.status IS DISTINCT FROM 'open'",
    ),
    (
        "I5: in flight <= window",
        "SELECT format('%s/%s: %s in flight', a.run_id, a.run_shard, count(*))
         FROM runherd.active_chunks a JOIN runherd.run_guards g ON g.run_id = a.run_id
         GROUP BY a.run_id, a.run_shard, g.dispatch_window HAVING count(*) > g.dispatch_window",
    ),
    (
        "I7: a delivery row exactly for each event that is not published",
        "SELECT format('event %s: %s, in the queue: %s', COALESCE(e.event_id, q.event_id), COALESCE(e.status, 'none'),
             q.event_id IS NOT NULL)
         FROM runherd.outbox_events e
         FULL JOIN runherd.outbox_delivery_queue q ON q.outbox_shard = e.outbox_shard AND q.event_id = e.event_id
         WHERE (COALESCE(e.status, 'none') IN ('pending', 'parked')) <> (q.event_id IS NOT NULL)",
    ),
    (
        "the totals below the watermark are those of the chunk rows",
        "SELECT format('%s/%s: low %s, %s rows below it are open or counted otherwise', p.run_id, p.run_shard,
             p.low_chunk_no, c.open)
         FROM runherd.shard_positions p
         CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE c.status = 'open') AS open,
                 count(*) FILTER (WHERE c.status = 'succeeded') AS succeeded,
                 count(*) FILTER (WHERE c.status = 'failed') AS failed,
                 count(*) FILTER (WHERE c.status = 'cancelled') AS cancelled
             FROM runherd.chunks c
             WHERE c.run_id = p.run_id AND c.run_shard = p.run_shard AND c.chunk_no < p.low_chunk_no) c
         WHERE (c.open, c.succeeded, c.failed, c.cancelled) <> (0, p.succeeded, p.failed, p.cancelled)",
    ),
];

/// On the control database.
const ON_CONTROL: [(&str, &str); 3] = [
    (
        "I2: no cursor before the run is sealed and every placement recorded",
        "SELECT DISTINCT c.run_id::text FROM runherd.dispatch_cursors c JOIN runherd.runs r ON r.run_id = c.run_id
         WHERE r.sealed_at IS NULL OR EXISTS (SELECT 1 FROM runherd.run_placements p
             WHERE p.run_id = r.run_id AND p.seeded_at IS NULL)",
    ),
    (
        "I6: one finished event exactly for each terminal run, and no more than one of any other",
        "SELECT format('%s: %s, %s events %s', r.run_id, r.status, e.events, k.kind)
         FROM runherd.runs r
         CROSS JOIN (VALUES ('pending'), ('started'), ('finished')) AS k(kind)
         CROSS JOIN LATERAL (SELECT count(*) AS events FROM runherd.outbox_events e
             WHERE e.dedupe_key = 'run/' || r.run_id || '/' || k.kind) e
         WHERE e.events > 1 OR (k.kind = 'finished' AND (e.events = 1) <> (r.finished_at IS NOT NULL))",
    ),
    (
        "cursors and shards are as many, and hold as many chunks as were sealed",
        "SELECT format('%s: %s cursors of %s shards, %s chunks of %s', r.run_id, count(*), r.shard_count,
             sum(c.chunk_count), r.chunk_count)
         FROM runherd.runs r JOIN runherd.dispatch_cursors c ON c.run_id = r.run_id
         GROUP BY r.run_id HAVING count(*) <> r.shard_count OR sum(c.chunk_count) <> r.chunk_count",
    ),
];

impl Stagehand {
    /// Asserts that what must hold between any two transactions holds now.
    ///
    /// # Panics
    /// If something does not, with all that does not.
    pub async fn assert_invariants(&self) {
        let mut broken = Vec::new();
        for (placement, sql) in &self.placements {
            for (name, query) in ON_A_PLACEMENT {
                let found: Vec<String> = sql.column(query, &[]).await;
                broken.extend(found.iter().map(|what| format!("placement {placement}: {name}: {what}")));
            }
        }
        for (name, query) in ON_CONTROL {
            broken.extend(self.control.column::<String>(query, &[]).await.iter().map(|what| format!("{name}: {what}")));
        }
        broken.extend(self.broken_ends().await);
        assert!(broken.is_empty(), "invariants do not hold:\n{}", broken.join("\n"));
    }

    /// I6 over the placements: a terminal run has no open chunk and no active row, and its totals are those of its chunks.
    async fn broken_ends(&self) -> Vec<String> {
        let terminal = "SELECT run_id, status, ARRAY[succeeded, failed, cancelled, lost] FROM runherd.runs
            WHERE finished_at IS NOT NULL";
        let count =
            "SELECT ARRAY[count(*) FILTER (WHERE status = 'succeeded'), count(*) FILTER (WHERE status = 'failed'),
                count(*) FILTER (WHERE status = 'cancelled'), count(*) FILTER (WHERE status = 'lost'),
                count(*) FILTER (WHERE status = 'open'),
                (SELECT count(*) FROM runherd.active_chunks a WHERE a.run_id = $1)]
            FROM runherd.chunks WHERE run_id = $1";
        let mut broken = Vec::new();
        for row in self.control.rows(terminal, &[]).await {
            let (run, status): (uuid::Uuid, String) = (row.get(0), row.get(1));
            let mut expected: Vec<i64> = row.get(2);
            expected.extend([0, 0]);
            let mut found = vec![0; 6];
            for placement in self.placements.values() {
                let here: Vec<i64> = placement.value(count, &[&run]).await;
                found.iter_mut().zip(here).for_each(|(total, here)| *total += here);
            }
            if found != expected {
                broken.push(format!(
                    "I6: run {run} is {status}: succeeded, failed, cancelled, lost, open, active are {found:?}, not {expected:?}"
                ));
            }
        }
        broken
    }
}
