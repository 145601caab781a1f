use std::collections::BTreeMap;

use runherd_actors::model::Totals;
use uuid::Uuid;

use super::*;
use crate::store::verify::{CursorFacts, EventGroup, RunFacts, ShardFacts, Tally};

fn id() -> Uuid {
    Uuid::from_u128(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)
}

/// A running run of two shards on one placement; nothing is wrong with it.
fn run() -> RunFacts {
    let cursor = |chunk_count| CursorFacts { placement_id: 1, chunk_count, given_up: false };
    RunFacts {
        run_id: id(),
        status: "running".to_owned(),
        sealed: true,
        shard_count: 2,
        chunk_count: Some(10),
        expected: BTreeMap::from([(1, 10)]),
        cursors: BTreeMap::from([(0, cursor(10)), (1, cursor(0))]),
        ..RunFacts::default()
    }
}

/// Its first shard: 4 finished, 3 in flight, 3 to be handed out.
fn shard() -> ShardFacts {
    let succeeded = Totals { succeeded: 4, ..Totals::default() };
    ShardFacts {
        run_id: id(),
        run_shard: 0,
        guard: Some("open".to_owned()),
        window: Some(3),
        run_has_positions: true,
        part_chunks: 10,
        chunk_count: Some(10),
        next_chunk_no: 7,
        low_chunk_no: 4,
        low_totals: succeeded,
        counted: succeeded,
        chunks: 10,
        numbered: true,
        totals: succeeded,
        open: Tally { count: 6, first: Some(4) },
        active: Tally { count: 3, first: Some(4) },
        ..ShardFacts::default()
    }
}

fn found(violations: &[Violation]) -> Vec<(Invariant, &'static str, &str)> {
    violations.iter().map(|violation| (violation.invariant, violation.check, violation.key.as_str())).collect()
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    assert_eq!(found(&judge::run(&run())), []);
    assert_eq!(found(&judge::shard(&run(), "control", &shard())), []);
}

#[test]
fn each_fault_of_a_run_is_found() {
    type Break = fn(&mut RunFacts);
    let cases: [(Break, Invariant, &str); 9] = [
        (|run| run.sealed = false, Invariant::I2, "unsealed"),
        (|run| run.status = "creating".to_owned(), Invariant::I2, "creating"),
        (|run| run.unseeded = 1, Invariant::I2, "unseeded"),
        (|run| run.expected = BTreeMap::from([(1, 10), (2, 0)]), Invariant::I2, "placements"),
        (|run| run.cursors.clear(), Invariant::I1, "cursors"),
        (|run| run.shard_count = 3, Invariant::I1, "cursors"),
        (|run| run.chunk_count = Some(11), Invariant::I1, "chunks"),
        (|run| run.expected = BTreeMap::from([(1, 11)]), Invariant::I1, "expected"),
        (|run| run.finished_events = 1, Invariant::I6, "finished_event"),
    ];
    for (damage, invariant, check) in cases {
        let mut run = run();
        damage(&mut run);
        assert_eq!(found(&judge::run(&run)), [(invariant, check, id().to_string().as_str())]);
    }
}

#[test]
fn each_fault_of_a_shard_is_found_under_one_invariant_with_its_first_chunk() {
    type Break = fn(&mut ShardFacts);
    let cases: [(Break, Invariant, &str, &str); 13] = [
        (|shard| shard.chunks = 9, Invariant::I1, "rows", ""),
        (|shard| shard.part_chunks = 9, Invariant::I1, "parts", ""),
        (|shard| shard.numbered = false, Invariant::I1, "gap", ""),
        (|shard| shard.counted.succeeded = 3, Invariant::I1, "low", ""),
        (|shard| shard.low_totals.failed = 1, Invariant::I1, "low", ""),
        (|shard| shard.guard = None, Invariant::I1, "guard", ""),
        (|shard| shard.forgotten = Tally { count: 2, first: Some(5) }, Invariant::I1, "forgotten", "/5"),
        (|shard| shard.early = Tally { count: 1, first: Some(8) }, Invariant::I1, "early", "/8"),
        (|shard| shard.stray = Tally { count: 1, first: Some(11) }, Invariant::I1, "stray", "/11"),
        (|shard| shard.undead = Tally { count: 1, first: Some(0) }, Invariant::I3, "undead", "/0"),
        (|shard| shard.wrong_fields = Tally { count: 1, first: Some(1) }, Invariant::I4, "fields", "/1"),
        (|shard| shard.window = Some(2), Invariant::I5, "window", ""),
        (|shard| shard.active.count = 4, Invariant::I5, "window", ""),
    ];
    for (damage, invariant, check, chunk) in cases {
        let mut shard = shard();
        damage(&mut shard);
        let key = format!("{}/0{chunk}", id());
        assert_eq!(found(&judge::shard(&run(), "control", &shard)), [(invariant, check, key.as_str())]);
    }
}

#[test]
fn a_stopped_placement_may_have_open_chunks_that_are_not_active() {
    let mut shard = shard();
    shard.guard = Some("cancelled".to_owned());
    shard.forgotten = Tally { count: 3, first: Some(4) };
    assert_eq!(found(&judge::shard(&run(), "control", &shard)), []);
}

#[test]
fn an_ended_run_has_nothing_open_and_its_own_totals() {
    let mut run = run();
    run.status = "succeeded".to_owned();
    run.finished_events = 1;
    run.totals = Totals { succeeded: 10, ..Totals::default() };
    assert_eq!(found(&judge::run(&run)), []);
    let key = format!("{}/0/4", id());
    let expected = [(Invariant::I6, "open", key.as_str()), (Invariant::I6, "active", key.as_str())];
    assert_eq!(found(&judge::shard(&run, "control", &shard())), expected);
    assert_eq!(judge::ended(&run, run.totals), None);
    let violation = judge::ended(&run, Totals { succeeded: 9, failed: 1, ..Totals::default() }).unwrap();
    assert_eq!((violation.invariant, violation.check), (Invariant::I6, "totals"));
    assert!(violation.detail.contains("10 succeeded") && violation.detail.contains("1 failed"), "{}", violation.detail);
}

#[test]
fn what_retention_has_begun_to_remove_is_left_alone() {
    let mut run = run();
    let mut shard = ShardFacts { guard: Some("closed".to_owned()), ..shard() };
    assert!(!judge::is_removed(&run, &shard));
    run.status = "failed".to_owned();
    assert!(!judge::is_removed(&run, &shard));
    shard.run_has_positions = false;
    assert!(judge::is_removed(&run, &shard));
    shard.guard = Some("open".to_owned());
    assert!(!judge::is_removed(&run, &shard));
}

#[test]
fn event_groups_belong_to_the_queue_or_to_the_proof() {
    let group = |fault: Option<&str>| EventGroup {
        fault: fault.map(str::to_owned),
        bucket: 1,
        events: 3,
        published: 0,
        first_name: "run/x/pending".to_owned(),
    };
    assert_eq!(judge::events("p1", &group(None)), None);
    for (fault, invariant) in [
        ("not_queued", Invariant::I7),
        ("queued_without_event", Invariant::I7),
        ("queued_although_published", Invariant::I7),
        ("unproven", Invariant::I8),
    ] {
        let violation = judge::events("p1", &group(Some(fault))).unwrap();
        assert_eq!((violation.invariant, violation.check, violation.count), (invariant, fault, 3));
        assert_eq!((violation.database.as_str(), violation.key.as_str()), ("p1", "run/x/pending"));
    }
}

fn sample(violations: Vec<Violation>) -> Sample {
    let violations = violations.into_iter().map(|violation| (violation.id(), violation)).collect();
    Sample { violations, ..Sample::default() }
}

#[test]
fn only_what_both_samples_show_is_reported() {
    let mut broken = run();
    broken.sealed = false;
    broken.finished_events = 1;
    let both = judge::run(&broken);
    assert_eq!(both.len(), 2);
    let report = report(sample(both.clone()), Some(sample(both[..1].to_vec())));
    assert_eq!((report.violations.as_slice(), report.passing), (&both[..1], 1));
    assert!(!report.is_ok());
    assert_eq!((report.count(Invariant::I2), report.count(Invariant::I6)), (1, 0));
}

#[test]
fn what_could_not_be_read_a_second_time_is_unchecked_and_not_ok() {
    let mut broken = run();
    broken.sealed = false;
    let mut second = sample(Vec::new());
    second.unchecked.insert("p1".to_owned(), "gone".to_owned());
    let report = report(sample(judge::run(&broken)), Some(second));
    assert_eq!(report.violations, []);
    assert_eq!(report.unchecked, [Unchecked { database: "p1".to_owned(), reason: "gone".to_owned() }]);
    assert!(!report.is_ok());
}

#[test]
fn the_second_sample_looks_only_where_the_first_found_something() {
    let mut broken = run();
    broken.sealed = false;
    let group = EventGroup {
        fault: Some("not_queued".to_owned()),
        bucket: 0,
        events: 1,
        published: 0,
        first_name: "x".to_owned(),
    };
    let events = judge::events("p1", &group);
    let first = sample(judge::run(&broken).into_iter().chain(events).collect());
    let plan = again(&Plan { runs: None, outboxes: Outboxes::All }, &first);
    assert_eq!(plan.runs, Some(vec![id()]));
    assert!(matches!(plan.outboxes, Outboxes::Of(names) if names == BTreeSet::from(["p1".to_owned()])));
}
