use runherd_actors::model::Totals;

use super::*;
use crate::store::explain::{Coordinators, FullShard, Intent, Lease};

const HOUR: i64 = 3_600_000;

/// A running run on one placement: 10 of 100 chunks handed out, all of them leased, nothing late.
fn running() -> Facts {
    let run = RunRow {
        queue: "q".to_owned(),
        status: "running".to_owned(),
        sealed: true,
        chunk_count: Some(100),
        creation_lease_ms: -HOUR,
        look_in_ms: Some(1000),
        ..RunRow::default()
    };
    let coordinators =
        Coordinators { known: 1, alive: 1, last_seen_ms_ago: Some(100), last_host: Some("h".to_owned()) };
    let here = Here {
        guard: Some("open".to_owned()),
        window: 20,
        seeded_chunks: 100,
        chunks: 100,
        handed_out: 10,
        in_flight: 10,
        leased: 10,
        lease_ms: Some(5000),
        ..Here::default()
    };
    let placement = PlacementRow {
        name: "p1".to_owned(),
        state: "active".to_owned(),
        seeded: true,
        expected_chunks: 100,
        reseed_ms_ago: None,
        open: 2,
        exhausted: 0,
        drained: 0,
        to_hand_out: 90,
        claimed: 0,
        due: 0,
        due_for_ms: None,
        here: Ok(here),
        progress: String::new(),
    };
    Facts { run, coordinators, placements: vec![placement], ..Facts::default() }
}

fn here(facts: &mut Facts) -> &mut Here {
    facts.placements[0].here.as_mut().unwrap()
}

/// Nothing leased, nothing in flight: whatever is set next is alone.
fn idle() -> Facts {
    let mut facts = running();
    let idle = here(&mut facts);
    (idle.in_flight, idle.leased, idle.lease_ms) = (0, 0, None);
    facts
}

fn creating() -> Facts {
    let mut facts = idle();
    facts.run.status = "creating".to_owned();
    facts.run.creation_lease_ms = 20_000;
    let placement = &mut facts.placements[0];
    (placement.seeded, placement.open) = (false, 0);
    facts
}

fn unsealed() -> Facts {
    let mut facts = creating();
    facts.run.sealed = false;
    facts.placements.clear();
    facts
}

fn stopping() -> Facts {
    let mut facts = idle();
    facts.run.status = "cancelling".to_owned();
    here(&mut facts).guard = Some("cancelled".to_owned());
    facts
}

fn finished() -> Facts {
    let mut facts = idle();
    let placement = &mut facts.placements[0];
    (placement.open, placement.exhausted, placement.to_hand_out) = (0, 2, 0);
    facts
}

fn found(findings: &[Finding]) -> Vec<(&'static str, Bearing)> {
    findings.iter().map(|finding| (finding.code, finding.bearing)).collect()
}

use Bearing::{Blocks, Fine, Waits};

/// A change of facts, and the finding that must come first after it.
type Case = (fn() -> Facts, Change, &'static str, Bearing);

#[test]
fn each_reason_is_found_first() {
    let cases: [Case; 36] = [
        (running, |_| (), "leased", Waits),
        (idle, |_| (), "quiet", Waits),
        (running, |f| f.run.finished_ms_ago = Some(1), "ended", Fine),
        (running, |f| f.coordinators = Coordinators::default(), "no_coordinator", Blocks),
        (running, |f| f.coordinators.alive = 0, "no_coordinator", Blocks),
        (running, |f| f.intents.push(Intent { ms_ago: 100, ..Intent::default() }), "intent_waiting", Waits),
        (running, |f| f.intents.push(Intent { ms_ago: HOUR, ..Intent::default() }), "intent_waiting", Blocks),
        (running, |f| f.run.paused = true, "paused", Blocks),
        (unsealed, |_| (), "unsealed", Waits),
        (unsealed, |f| f.run.creation_lease_ms = -1, "unsealed", Blocks),
        (creating, |_| (), "seeding", Waits),
        (creating, |f| f.run.creation_lease_ms = -1000, "seeding", Waits),
        (creating, |f| f.run.creation_lease_ms = -HOUR, "seeding", Blocks),
        (creating, |f| f.placements[0].seeded = true, "opening", Waits),
        (idle, |f| f.placements[0].reseed_ms_ago = Some(HOUR), "reseeding", Blocks),
        (idle, |f| f.placements[0].state = "offline".to_owned(), "placement_offline", Blocks),
        (idle, |f| f.placements[0].here = Err(Unreadable::NotConfigured), "placement_not_configured", Blocks),
        (idle, |f| f.placements[0].here = Err(Unreadable::Unreachable("x".to_owned())), "placement_down", Blocks),
        (idle, |f| here(f).guard = Some("cancelled".to_owned()), "guard_closed", Blocks),
        (idle, |f| here(f).guard = None, "guard_missing", Blocks),
        (stopping, |_| (), "stopping", Waits),
        (stopping, |f| f.run.look_in_ms = Some(-HOUR), "stopping", Blocks),
        (idle, |f| f.run.deadline_in_ms = Some(-HOUR), "deadline_passed", Blocks),
        (idle, |f| f.run_events.pending = 1, "events_pending", Waits),
        (idle, |f| here(f).events = late(Events { pending: 3, ..Events::default() }), "events_pending", Blocks),
        (idle, |f| here(f).events = late(Events { parked: 3, ..Events::default() }), "events_parked", Blocks),
        (idle, |f| here(f).unleased = 1, "unannounced", Blocks),
        (idle, |f| announced(f, 100), "unleased", Waits),
        (idle, |f| announced(f, HOUR), "no_worker", Blocks),
        (idle, |f| (here(f).expired, here(f).expired_for_ms) = (1, Some(100)), "leases_expired", Waits),
        (idle, |f| (here(f).expired, here(f).expired_for_ms) = (1, Some(HOUR)), "leases_expired", Blocks),
        (idle, |f| here(f).full = Some(FullShard::default()), "window_full", Waits),
        (idle, |f| (f.placements[0].due, f.placements[0].due_for_ms) = (1, Some(HOUR)), "not_dispatched", Blocks),
        (idle, |f| (here(f).waiting, here(f).ready_in_ms) = (1, Some(100)), "retries_waiting", Waits),
        (finished, |_| (), "finalizing", Waits),
        (finished, |f| f.run.look_in_ms = Some(-HOUR), "finalizing", Blocks),
    ];
    for (facts, change, code, bearing) in cases {
        let mut facts = facts();
        change(&mut facts);
        let findings = findings(&facts, false, &BrokerView::Connected);
        assert_eq!(found(&findings).first(), Some(&(code, bearing)), "{findings:#?}");
        let told = findings.iter().all(|finding| finding.bearing != Blocks || !finding.advice.is_empty());
        assert!(told, "what blocks comes with what to do: {findings:#?}");
    }
}

fn late(events: Events) -> Events {
    Events { oldest_ms: Some(HOUR), ..events }
}

fn announced(facts: &mut Facts, ms_ago: i64) {
    here(facts).unleased = 5;
    here(facts).events = Events { published: 5, published_ms_ago: Some(ms_ago), ..Events::default() };
}

type Change = fn(&mut Facts);

/// Facts that are no reason to worry where the run stands.
#[test]
fn what_is_in_order_is_not_found() {
    let cases: [(fn() -> Facts, Change); 7] = [
        // Placements that the run needs no more, or whose shards are done.
        (idle, |f| f.placements[0].state = "draining".to_owned()),
        (finished, |f| {
            let placement = &mut f.placements[0];
            (placement.exhausted, placement.drained) = (0, 2);
            placement.here = Err(Unreadable::NotConfigured);
        }),
        // A dispatcher that takes nothing because the run is paused.
        (idle, |f| {
            f.run.paused = true;
            (f.placements[0].due, f.placements[0].due_for_ms) = (1, Some(HOUR));
        }),
        (stopping, |f| f.run.deadline_in_ms = Some(-HOUR)),
        (idle, |f| f.run.deadline_in_ms = Some(HOUR)),
        (creating, |f| here(f).guard = None),
        // A finalizer holds it.
        (finished, |f| (f.run.look_in_ms, f.run.finalizer_lease_ms) = (Some(-HOUR), Some(100))),
    ];
    for (facts, change) in cases {
        let mut facts = facts();
        change(&mut facts);
        let findings = findings(&facts, false, &BrokerView::Connected);
        assert!(findings.iter().all(|finding| finding.bearing != Blocks || finding.code == "paused"), "{findings:#?}");
    }
}

#[test]
fn a_run_that_moves_is_not_called_stuck() {
    assert_eq!(found(&findings(&running(), true, &BrokerView::NotAsked)), [("moving", Fine)]);
    let mut facts = running();
    facts.placements.push(PlacementRow { here: Err(Unreadable::NotConfigured), ..facts.placements[0].clone() });
    let findings = findings(&facts, true, &BrokerView::NotAsked);
    assert_eq!(found(&findings), [("placement_not_configured", Blocks), ("moving", Fine)]);
}

#[test]
fn nothing_runs_before_the_coordinator_that_is_missing() {
    let mut facts = running();
    facts.coordinators.alive = 0;
    facts.coordinators.last_seen_ms_ago = Some(61_000);
    facts.run.paused = true;
    here(&mut facts).events = late(Events { pending: 3, ..Events::default() });
    let findings = findings(&facts, false, &BrokerView::Obstacle("refused".to_owned()));
    let codes: Vec<&str> = findings.iter().map(|finding| finding.code).collect();
    assert_eq!(codes, ["no_coordinator", "paused", "broker_down", "events_pending", "leased"]);
    assert_eq!(findings[0].facts, ["the last one was seen 1m 1s ago, on h"]);
    assert_eq!(findings[2].facts, ["refused", "3 events of this run wait to be published"]);
}

#[test]
fn a_full_window_names_who_fills_it() {
    let mut facts = running();
    let oldest = Lease { chunk_no: 7, worker_id: "w1".to_owned(), held_for_ms: 61_000, lease_ms: 2000 };
    here(&mut facts).full =
        Some(FullShard { shards: 2, run_shard: 3, in_flight: 20, window: 20, oldest: Some(oldest) });
    let findings = findings(&facts, false, &BrokerView::NotAsked);
    assert_eq!(findings[0].code, "window_full");
    assert_eq!(
        findings[0].facts,
        ["20 of 20 in flight on shard 3", "chunk 3/7, leased by w1 for 1m 1s, expires in 2s"]
    );
}

#[test]
fn a_missing_worker_comes_with_the_queue_to_look_at() {
    let mut facts = idle();
    announced(&mut facts, HOUR);
    let findings = findings(&facts, false, &BrokerView::Connected);
    assert!(findings[0].summary.contains("runherd.chunks.q"), "{findings:?}");
    assert!(findings[0].advice.contains("rabbitmqctl list_queues"), "{findings:?}");
}

#[test]
fn an_ended_run_says_when_why_and_with_what() {
    let mut facts = running();
    facts.run.status = "failed".to_owned();
    facts.run.finished_ms_ago = Some(1);
    facts.run.finished_at = Some("2030-01-02T03:04:05Z".to_owned());
    facts.run.reason = Some("3 chunks failed, 2 are tolerated".to_owned());
    facts.run.totals = Totals { succeeded: 97, failed: 3, ..Totals::default() };
    let findings = findings(&facts, false, &BrokerView::NotAsked);
    let summary =
        "nothing is wrong: the run ended as failed at 2030-01-02T03:04:05Z (3 chunks failed, 2 are tolerated)";
    assert_eq!((findings.len(), findings[0].summary.as_str()), (1, summary));
    assert_eq!(findings[0].facts, ["97 succeeded, 3 failed, 0 cancelled, 0 lost"]);
}

#[test]
fn the_broker_is_asked_only_if_something_waits_for_it() {
    let mut facts = running();
    assert!(!needs_broker(&facts));
    facts.run_events.pending = 1;
    assert!(needs_broker(&facts));
    let mut facts = idle();
    announced(&mut facts, 1);
    assert!(needs_broker(&facts));
}

#[test]
fn spans_are_for_people() {
    assert_eq!([span(0), span(-250), span(61_999), span(-HOUR)], ["0s", "250ms", "1m 1s", "1h"]);
}
