//! creation_recovery on real databases: every sealed run opens with exactly its chunks, whoever dies in between.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

use std::time::Duration;

use runherd::store::creation_recovery::CreationRecoveryStore;
use runherd_actors::model::{ClaimToken, RunId};
use runherd_actors::stages::creation_recovery::{
    CreatingRun, CreationRecoveryPort, OpenResult, SeedPart, SeedResult, UnseededPlacement,
};
use runherd_integration_tests::stagehand::client::{Part, parts};
use runherd_integration_tests::stagehand::{Stagehand, tick};
use runherd_integration_tests::until;
use serde_json::json;
use tokio::task::JoinSet;

const LIMIT: Duration = Duration::from_secs(60);

/// `(run_shard, chunk_count, status)` of a run's cursors.
async fn cursors(hand: &Stagehand, run: RunId) -> Vec<(i32, i64, String)> {
    let sql = "SELECT run_shard, chunk_count, status FROM runherd.dispatch_cursors WHERE run_id = $1 ORDER BY 1";
    hand.control.rows(sql, &[&run.0]).await.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

/// The payloads of one shard, in order, as text.
async fn payloads(hand: &Stagehand, run: RunId, shard: i32) -> Vec<String> {
    let sql = "SELECT payload::text FROM runherd.chunks WHERE run_id = $1 AND run_shard = $2 ORDER BY chunk_no";
    let mut found = Vec::new();
    for placement in hand.placements.values() {
        found.extend(placement.column(sql, &[&run.0, &shard]).await);
    }
    found
}

async fn chunks(hand: &Stagehand, run: RunId) -> i64 {
    hand.sum("SELECT count(*) FROM runherd.chunks WHERE run_id = $1", &[&run.0]).await
}

#[tokio::test]
async fn a_submission_through_sql_alone_opens_with_every_byte() {
    let hand = Stagehand::new("a_submission_through_sql_alone", &[]).await;
    let odd = [
        r#"{"b" : 1,  "a":2 , "a": 3,"":{ }}"#,
        "[ 1 ,\t2 ]",
        "1.0e+05",
        r#""\u00e9é \ud83d\ude00 😀 \/""#,
        "null",
        r#"{"nested":{"deep":[[[]]], "x":   true}}"#,
        "-0",
    ];
    let run = hand.submit_sql(json!({"queue": "q", "shards": 3}), &format!("[{}]", odd.join(" ,\n ")), None).await;
    assert_eq!(hand.status(run).await, "creating");
    let report = tick(&mut hand.creation_recovery()).await;
    assert_eq!((report.counted("runs_opened"), report.counted("chunks")), (1, 7));

    assert_eq!(hand.status(run).await, "pending");
    let expected = [(0, 7, "open"), (1, 0, "drained"), (2, 0, "drained")].map(|(s, n, st)| (s, n, st.to_owned()));
    assert_eq!(cursors(&hand, run).await, expected);
    assert_eq!(payloads(&hand, run, 0).await, odd);
    assert_eq!(hand.run_events(run, "pending").await, 1);
    // What a worker gets is what the client gave.
    hand.dispatch().await;
    let lease = "SELECT payload::text FROM runherd.lease_chunk($1, 0, 3, gen_random_uuid(), 'w', '1 min')";
    assert_eq!(hand.control.value::<String>(lease, &[&run.0]).await, odd[3]);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn arrays_ranges_and_empty_shards_are_placed_as_they_were_sealed() {
    let hand = Stagehand::with_two_placements("arrays_ranges_and_empty_shards", &[]).await;
    let fewer = [Part::of(3), Part::range(0, 10, 95), Part::of(1)];
    let fewer = hand.submit(json!({"queue": "q", "shards": 5}), &fewer).await;
    let more = [Part::range(-5, 3, 1), Part::of(1), Part::of(2), Part::of(4), Part::range(7, 100, 8)];
    let more = hand.submit(json!({"queue": "q", "shards": 2}), &more).await;
    let empty = hand.submit(json!({"queue": "q", "shards": 4}), &[]).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counted("runs_opened"), 3);

    let counts =
        async |run| cursors(&hand, run).await.into_iter().map(|(_, n, status)| (n, status)).collect::<Vec<_>>();
    let named = |list: &[(i64, &str)]| list.iter().map(|(n, status)| (*n, (*status).to_owned())).collect::<Vec<_>>();
    assert_eq!(counts(fewer).await, named(&[(3, "open"), (10, "open"), (1, "open"), (0, "drained"), (0, "drained")]));
    assert_eq!(counts(more).await, named(&[(5, "open"), (5, "open")]));
    assert_eq!(counts(empty).await, named(&[(0, "drained"); 4]));
    assert_eq!(payloads(&hand, fewer, 1).await[9], r#"{"start":90,"end":95}"#);
    // A shard's parts follow each other: a range of two, an array of two, a range of one.
    let (first, last) = ([r#"{"start":-5,"end":-2}"#, r#"{"start":-2,"end":1}"#], r#"{"start":7,"end":8}"#);
    assert_eq!(payloads(&hand, more, 0).await, [first[0], first[1], "0", "1", last]);
    for run in [fewer, more, empty] {
        assert_eq!(hand.status(run).await, "pending");
    }
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_large_run_goes_on_in_the_next_pass_and_holds_up_no_small_one() {
    let hand = Stagehand::new("a_large_run_goes_on", &[("creation_recovery.parts_per_pass", "6")]).await;
    let large = hand.submit(json!({"queue": "q", "shards": 2}), &parts(8, 3)).await;
    let small = hand.submit(json!({"queue": "q", "shards": 1}), &parts(1, 1)).await;
    let report = tick(&mut hand.creation_recovery()).await;
    assert!(report.more);
    assert_eq!((report.counted("parts"), report.counted("runs_opened")), (4, 1));
    assert_eq!((hand.status(large).await, hand.status(small).await), ("creating".into(), "pending".into()));
    assert_eq!((chunks(&hand, large).await, cursors(&hand, large).await.len()), (9, 0));
    hand.assert_invariants().await;

    // Another process goes on where the first one stopped, without seeding anything again.
    let report = tick(&mut hand.creation_recovery()).await;
    assert_eq!((report.counted("parts"), report.counted("runs_opened")), (5, 1));
    assert_eq!((hand.status(large).await, chunks(&hand, large).await), ("pending".into(), 24));
    hand.assert_invariants().await;
}

/// A process that creates a run step by step, so that it can die after any of them.
struct Creator {
    port: CreationRecoveryStore,
    token: ClaimToken,
    run: CreatingRun,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Seed(UnseededPlacement, SeedPart),
    Record(UnseededPlacement),
    Open,
}

impl Creator {
    /// Claims the only run that there is to create, and lists the steps to take.
    async fn claim(hand: &Stagehand) -> Self {
        let (port, token) = (hand.creation_port(), ClaimToken::fresh());
        let run = port.claim_runs(token, 10).await.unwrap().pop().unwrap();
        let mut steps = Vec::new();
        for target in port.unseeded_placements(run.run_id).await.unwrap() {
            let parts = port.next_parts(run.run_id, target.placement, -1, 100).await.unwrap();
            steps.extend(parts.into_iter().map(|part| Step::Seed(target, part)));
            steps.push(Step::Record(target));
        }
        steps.push(Step::Open);
        Self { port, token, run, steps }
    }

    async fn take(&self, step: &Step) {
        match step {
            Step::Seed(target, part) => {
                let seeded = self.port.seed_part(target.placement, &self.run, part).await.unwrap();
                assert_eq!(seeded, SeedResult::Seeded);
            }
            Step::Record(target) => {
                assert!(self.port.record_placement(self.run.run_id, self.token, target.placement).await.unwrap());
            }
            Step::Open => {
                let opened = self.port.open_run(self.run.run_id, self.token).await.unwrap();
                assert!(matches!(opened, OpenResult::Opened(_)), "{opened:?}");
            }
        }
    }

    /// Takes every step after its token was lost: none has an effect.
    async fn haunt(&self) {
        let run_id = self.run.run_id;
        for step in &self.steps {
            match step {
                Step::Seed(target, part) => {
                    let seeded = self.port.seed_part(target.placement, &self.run, part).await.unwrap();
                    assert_eq!(seeded, SeedResult::Present);
                }
                Step::Record(target) => {
                    assert!(!self.port.record_placement(run_id, self.token, target.placement).await.unwrap());
                }
                Step::Open => assert_eq!(self.port.open_run(run_id, self.token).await.unwrap(), OpenResult::Lost),
            }
        }
        assert!(!self.port.renew(run_id, self.token).await.unwrap());
        self.port.yield_run(run_id, self.token, Duration::ZERO).await.unwrap();
    }
}

#[tokio::test]
async fn whoever_takes_over_after_a_death_at_any_step_creates_the_run_exactly() {
    let hand = Stagehand::with_two_placements("whoever_takes_over_after_a_death", &[]).await;
    for died_after in 0.. {
        let run = hand.submit_split(json!({"queue": "q", "shards": 3}), &parts(5, 4)).await;
        let dead = Creator::claim(&hand).await;
        if died_after == dead.steps.len() {
            break;
        }
        for step in &dead.steps[..died_after] {
            dead.take(step).await;
        }
        // Until its lease is over, nobody touches the run.
        assert_eq!(tick(&mut hand.creation_recovery()).await.counts, []);
        assert_eq!((hand.status(run).await, cursors(&hand, run).await.len()), ("creating".into(), 0));
        hand.assert_invariants().await;

        hand.expire_creation(run).await;
        assert_eq!(tick(&mut hand.creation_recovery()).await.counted("runs_opened"), 1, "died after {died_after}");
        let lease = "SELECT creation_expires_at::text FROM runherd.runs WHERE run_id = $1";
        let held: String = hand.control.value(lease, &[&run.0]).await;
        dead.haunt().await;
        assert_eq!(hand.control.value::<String>(lease, &[&run.0]).await, held);
        assert_eq!((hand.status(run).await, chunks(&hand, run).await), ("pending".into(), 20));
        assert_eq!(cursors(&hand, run).await.iter().map(|cursor| cursor.1).collect::<Vec<_>>(), [8, 8, 4]);
        assert_eq!(hand.run_events(run, "pending").await, 1);
        hand.assert_invariants().await;
    }
}

#[tokio::test]
async fn no_cursor_is_opened_before_every_placement_is_recorded() {
    let hand = Stagehand::with_two_placements("no_cursor_is_opened_before", &[]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 4}), &parts(4, 2)).await;
    let creator = Creator::claim(&hand).await;
    let mut recorded = 0;
    for step in &creator.steps {
        if let Step::Open = step {
            assert_eq!(recorded, 2);
        } else {
            let opened = creator.port.open_run(run, creator.token).await.unwrap();
            assert_eq!((opened, cursors(&hand, run).await.len()), (OpenResult::NotSeeded, 0));
        }
        creator.take(step).await;
        recorded += i32::from(matches!(step, Step::Record(_)));
    }
    assert_eq!((hand.status(run).await, cursors(&hand, run).await.len()), ("pending".into(), 4));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn whoever_lost_the_token_cannot_open_what_is_seeded() {
    let hand = Stagehand::new("whoever_lost_the_token", &[]).await;
    let run = hand.submit(json!({"queue": "q", "shards": 2}), &parts(2, 2)).await;
    let zombie = Creator::claim(&hand).await;
    let (open, seeding) = zombie.steps.split_last().unwrap();
    for step in seeding {
        zombie.take(step).await;
    }
    hand.expire_creation(run).await;
    let holder = Creator::claim(&hand).await;
    assert_eq!(zombie.port.open_run(run, zombie.token).await.unwrap(), OpenResult::Lost);
    assert!(!zombie.port.renew(run, zombie.token).await.unwrap());
    assert_eq!((hand.status(run).await, cursors(&hand, run).await.len()), ("creating".into(), 0));
    holder.take(open).await;
    assert_eq!(hand.status(run).await, "pending");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_run_that_somebody_holds_locked_is_passed_over_without_waiting() {
    let hand = Stagehand::new("a_run_that_somebody_holds_locked", &[]).await;
    let locked = hand.submit(json!({"queue": "q", "shards": 1}), &parts(1, 2)).await;
    let free = hand.submit(json!({"queue": "q", "shards": 1}), &parts(1, 2)).await;
    let other = hand.another().await;
    other.run("BEGIN", &[]).await;
    other.rows("SELECT 1 FROM runherd.runs WHERE run_id = $1 FOR UPDATE", &[&locked.0]).await;
    // Waiting would end in an error of the cycle.
    assert_eq!(tick(&mut hand.creation_recovery()).await.counted("runs_opened"), 1);
    assert_eq!((hand.status(locked).await, hand.status(free).await), ("creating".into(), "pending".into()));
    other.run("COMMIT", &[]).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counted("runs_opened"), 1);
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_closed_guard_stops_a_zombie_that_still_seeds() {
    let hand = Stagehand::with_two_placements("a_closed_guard_stops_a_zombie", &[]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 4}), &parts(4, 2)).await;
    let zombie = Creator::claim(&hand).await;
    zombie.take(&zombie.steps[0]).await;
    assert_eq!(hand.cancel(run).await, "creating");
    assert_eq!(tick(&mut hand.finalizer()).await.counted("runs_finished"), 1);
    assert_eq!(hand.status(run).await, "cancelled");

    for step in &zombie.steps {
        match step {
            Step::Seed(target, part) => {
                let seeded = zombie.port.seed_part(target.placement, &zombie.run, part).await.unwrap();
                assert_eq!(seeded, SeedResult::Closed);
            }
            Step::Record(target) => {
                assert!(!zombie.port.record_placement(run, zombie.token, target.placement).await.unwrap());
            }
            Step::Open => assert_eq!(zombie.port.open_run(run, zombie.token).await.unwrap(), OpenResult::Lost),
        }
    }
    assert_eq!((chunks(&hand, run).await, cursors(&hand, run).await.len()), (2, 0));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_guard_that_remembers_a_lost_cancel_ends_a_run_that_is_being_created() {
    let hand = Stagehand::new("a_guard_that_remembers_a_lost_cancel", &[]).await;
    let run = hand.submit(json!({"queue": "q", "shards": 2}), &parts(2, 2)).await;
    // The control database failed over and lost the cancel that had closed the guard.
    hand.control
        .run("INSERT INTO runherd.run_guards (run_id, status, outcome) VALUES ($1, 'cancelled', 'failed')", &[&run.0])
        .await;
    tick(&mut hand.creation_recovery()).await;
    let mut finalizer = hand.finalizer();
    tick(&mut finalizer).await;
    assert_eq!((hand.status(run).await, chunks(&hand, run).await), ("failed".into(), 0));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_run_that_nobody_seals_fails_and_frees_its_key() {
    let hand = Stagehand::new("a_run_that_nobody_seals_fails", &[("creation_recovery.abandon_after", "1h")]).await;
    let header = json!({"queue": "q", "shards": 2});
    let (run, token) = hand.begin(header.clone(), Some("order-7"), &parts(2, 2)).await;
    // A client that is only slow keeps its run.
    hand.expire_creation(run).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counts, []);
    let append = "SELECT runherd.append_part($1, $2, 2, 1, '[1]', '1 min')";
    assert_eq!(hand.control.value::<String>(append, &[&run.0, &token]).await, "appended");

    let long_ago = "UPDATE runherd.runs SET creation_expires_at = now() - interval '2 h' WHERE run_id = $1";
    hand.control.run(long_ago, &[&run.0]).await;
    let report = tick(&mut hand.creation_recovery()).await;
    assert_eq!(report.counted("abandoned"), 1);
    assert!(report.wakes.contains(&"finalizer"));
    tick(&mut hand.finalizer()).await;
    assert_eq!((hand.status(run).await.as_str(), hand.reason(run).await.contains("abandoned")), ("failed", true));
    let left = "SELECT count(*) FROM runherd.run_seeds WHERE run_id = $1";
    assert_eq!(hand.control.value::<i64>(left, &[&run.0]).await, 0);

    // The corrected submission may use the key, with another header even.
    let (again, token) = hand.begin(json!({"queue": "other", "shards": 1}), Some("order-7"), &parts(1, 3)).await;
    assert_ne!(again, run);
    hand.seal(again, token, 1).await;
    tick(&mut hand.creation_recovery()).await;
    assert_eq!((hand.status(again).await, chunks(&hand, again).await), ("pending".into(), 3));
    hand.assert_invariants().await;
}

#[tokio::test]
async fn instances_that_race_create_every_run_exactly_once() {
    let settings = [("creation_recovery.batch", "3"), ("creation_recovery.parts_per_pass", "5")];
    let hand = Stagehand::with_two_placements("instances_that_race_create", &settings).await;
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(hand.submit(json!({"queue": "q", "shards": 4}), &parts(5, 3)).await);
    }
    let mut racing = JoinSet::new();
    for _ in 0..4 {
        let mut stage = hand.creation_recovery();
        racing.spawn(async move {
            loop {
                let report = tick(&mut stage).await;
                if !report.more && !report.did_something() {
                    break;
                }
            }
        });
    }
    racing.join_all().await;
    until("every run to be pending", LIMIT, async || {
        tick(&mut hand.creation_recovery()).await;
        let left: i64 = hand.control.value("SELECT count(*) FROM runherd.runs WHERE status = 'creating'", &[]).await;
        (left == 0).then_some(())
    })
    .await;
    for run in runs {
        assert_eq!((hand.status(run).await, chunks(&hand, run).await), ("pending".into(), 15));
        assert_eq!(hand.run_events(run, "pending").await, 1);
    }
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_placement_that_is_offline_delays_only_what_lives_on_it() {
    let hand = Stagehand::with_two_placements("a_placement_that_is_offline", &[]).await;
    let split = hand.submit_split(json!({"queue": "q", "shards": 4}), &parts(4, 2)).await;
    let set = "UPDATE runherd.placements SET state = $1 WHERE name = 'p2'";
    hand.control.run(set, &[&"offline"]).await;
    let elsewhere = hand.submit(json!({"queue": "q", "shards": 4}), &parts(4, 2)).await;
    let blocked = until("the coordinator to see it offline", LIMIT, async || {
        hand.router.placements().await.unwrap().skipped.pop()
    })
    .await;
    assert_eq!(blocked.0.name, "p2");
    let report = tick(&mut hand.creation_recovery()).await;
    assert!(report.blocked_by.iter().any(|what| what.contains("p2") && what.contains("offline")), "{report:?}");
    assert_eq!((hand.status(split).await, hand.status(elsewhere).await), ("creating".into(), "pending".into()));
    hand.assert_invariants().await;

    hand.control.run(set, &[&"active"]).await;
    until("the run that waited to be pending", LIMIT, async || {
        hand.expire_creation(split).await;
        tick(&mut hand.creation_recovery()).await;
        (hand.status(split).await == "pending").then_some(())
    })
    .await;
    hand.assert_invariants().await;
}

/// What a failover of a placement loses of a run: with `keep_parts`, all that came after its last part but one was seeded.
async fn fail_over(hand: &Stagehand, placement: i32, run: RunId, keep_parts: bool) {
    let sql = &hand.placements[&placement];
    let events = "DELETE FROM runherd.outbox_events WHERE dedupe_key LIKE 'chunk-ready/' || $1::uuid || '/%'";
    let deliveries = "DELETE FROM runherd.outbox_delivery_queue q USING runherd.outbox_events e
        WHERE e.outbox_shard = q.outbox_shard AND e.event_id = q.event_id AND e.dedupe_key LIKE 'chunk-ready/' || $1::uuid || '/%'";
    for statement in [deliveries, events, "DELETE FROM runherd.active_chunks WHERE run_id = $1"] {
        sql.run(statement, &[&run.0]).await;
    }
    if !keep_parts {
        for table in ["run_guards", "seeded_parts", "shard_positions", "chunks"] {
            sql.run(&format!("DELETE FROM runherd.{table} WHERE run_id = $1"), &[&run.0]).await;
        }
        return;
    }
    let reset = "UPDATE runherd.chunks SET status = 'open', finished_at = NULL, finished_token = NULL, outcome = NULL WHERE run_id = $1";
    let position =
        "UPDATE runherd.shard_positions SET next_chunk_no = 0, low_chunk_no = 0, drained_at = NULL, succeeded = 0
        WHERE run_id = $1";
    let part = "WITH last AS (DELETE FROM runherd.seeded_parts WHERE run_id = $1 AND part_no =
            (SELECT max(part_no) FROM runherd.seeded_parts WHERE run_id = $1) RETURNING run_shard, chunk_count),
        moved AS (UPDATE runherd.shard_positions p SET chunk_count = p.chunk_count - l.chunk_count FROM last l
            WHERE p.run_id = $1 AND p.run_shard = l.run_shard RETURNING p.run_shard, p.chunk_count)
        DELETE FROM runherd.chunks c USING moved m
        WHERE c.run_id = $1 AND c.run_shard = m.run_shard AND c.chunk_no >= m.chunk_count";
    for statement in [reset, position, part] {
        assert!(sql.run(statement, &[&run.0]).await > 0, "{statement}");
    }
    let emptied = "DELETE FROM runherd.shard_positions WHERE run_id = $1 AND chunk_count = 0";
    sql.run(emptied, &[&run.0]).await;
}

#[tokio::test]
async fn a_placement_that_lost_a_run_is_seeded_again_when_the_dispatcher_finds_out() {
    let hand = Stagehand::with_two_placements("a_placement_that_lost_a_run", &[]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 6}), &parts(9, 5)).await;
    tick(&mut hand.creation_recovery()).await;
    let second = *hand.placements.keys().max().unwrap();
    fail_over(&hand, second, run, false).await;

    let report = tick(&mut hand.dispatcher()).await;
    assert!(report.counted("missing_positions") > 0, "{report:?}");
    hand.expire_creation(run).await;
    let report = tick(&mut hand.creation_recovery()).await;
    assert_eq!((report.counted("reseeded"), report.counted("placements")), (1, 1));
    assert_eq!(chunks(&hand, run).await, 45);
    // It is asked for once.
    hand.expire_creation(run).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counts, []);

    assert_eq!(hand.work_off(run).await, 45);
    hand.finalize_now().await;
    tick(&mut hand.finalizer()).await;
    assert_eq!(hand.status(run).await, "succeeded");
    hand.assert_invariants().await;
}

#[tokio::test]
async fn a_placement_that_lost_its_last_part_is_seeded_again_when_the_finalizer_finds_out() {
    let hand = Stagehand::with_two_placements("a_placement_that_lost_its_last_part", &[]).await;
    let run = hand.submit_split(json!({"queue": "q", "shards": 6}), &parts(9, 5)).await;
    tick(&mut hand.creation_recovery()).await;
    assert_eq!(hand.work_off(run).await, 45);
    let second = *hand.placements.keys().max().unwrap();
    fail_over(&hand, second, run, true).await;
    hand.assert_invariants().await;

    let report = tick(&mut hand.finalizer()).await;
    assert!(report.counted("reseeds_asked") > 0 && report.wakes.contains(&"creation_recovery"), "{report:?}");
    assert_eq!(hand.status(run).await, "running");
    hand.expire_creation(run).await;
    assert_eq!(tick(&mut hand.creation_recovery()).await.counted("parts"), 1);

    // The work on that placement is done again; what the other one holds stays done.
    until("the run to end", LIMIT, async || {
        hand.finalize_now().await;
        tick(&mut hand.finalizer()).await;
        hand.work_off(run).await;
        (hand.status(run).await == "succeeded").then_some(())
    })
    .await;
    let done: i64 = hand.control.value("SELECT succeeded FROM runherd.runs WHERE run_id = $1", &[&run.0]).await;
    assert_eq!(done, 45);
    hand.assert_invariants().await;
}
