//! `runherd verify` and `runherd explain` against real PostgreSQL: verify passes at every step of a run's life, and each kind of
//! damage is reported under its own invariant, with the key of what was damaged; explain finds each step's own reason.
#![allow(clippy::unwrap_used, reason = "what is unexpected in a test fails it")]

#[path = "verify/damage.rs"]
mod damage;
#[path = "verify/explaining.rs"]
mod explaining;
#[path = "verify/life.rs"]
mod life;

use life::{
    Books, advance, finish, hand_out, one, open, publish_all, run_sql, running, seed, settings, sql, start, submit,
    work,
};
use runherd::cli::run_arg::RunArg;
use runherd::store::client::ClientStore;
use runherd::store::verify::Installation;
use runherd::verify::{Options, Report, Scope, verify};
use tokio_postgres::types::ToSql;
use uuid::Uuid;

#[tokio::test]
async fn it_passes_at_every_step_of_a_run() {
    let books = Books::new("it_passes_at_every_step_of_a_run").await;
    let run = submit(&books).await;
    books.assert_ok(run, "submitted").await;
    seed(&books, run).await;
    books.assert_ok(run, "seeded").await;
    open(&books, run).await;
    books.assert_ok(run, "opened").await;
    start(&books, run).await;
    hand_out(&books, run, 0, 4).await;
    books.assert_ok(run, "handed out").await;
    work(&books, run, 0, true).await;
    work(&books, run, 1, false).await;
    publish_all(&books).await;
    books.assert_ok(run, "published").await;
    advance(&books, run).await;
    let report = books.assert_ok(run, "half done").await;
    let checked = report.checked;
    assert_eq!((checked.runs, checked.ended_runs, checked.shards, checked.chunks), (1, 0, 1, 6));
    assert_eq!((checked.active_rows, checked.events, checked.published), (2, 4, 4));
    work(&books, run, 2, true).await;
    work(&books, run, 3, true).await;
    finish(&books, run, 4, 6).await;
    let report = books.assert_ok(run, "ended").await;
    assert_eq!((report.checked.ended_runs, report.checked.events, report.checked.published), (1, 6, 4));
}

#[tokio::test]
async fn it_passes_while_a_run_is_cancelled() {
    let books = Books::new("it_passes_while_a_run_is_cancelled").await;
    let run = running(&books).await;
    one(&books.control, "SELECT runherd.cancel_run($1)", &[&run]).await;
    one(&books.control, sql!("finalizer/apply_intents"), &[&run]).await;
    books.assert_ok(run, "cancelling").await;
    books.placement.execute(sql!("finalizer/cancel_guard"), &[&run, &"cancelled"]).await.unwrap();
    books.assert_ok(run, "guard cancelled").await;
    for stretch in 0..2 {
        one(&books.placement, sql!("finalizer/sweep_shard"), &[&run, &0_i32, &2_i64]).await;
        books.assert_ok(run, &format!("swept {stretch}")).await;
        one(&books.placement, sql!("finalizer/pass_swept"), &[&run, &0_i32, &2_i64]).await;
        books.assert_ok(run, &format!("passed {stretch}")).await;
    }
    let swept = one(&books.placement, sql!("finalizer/swept_totals"), &[&run]).await;
    let [succeeded, failed, cancelled, lost]: [i64; 4] = [1, 2, 3, 4].map(|column| swept.get(column));
    assert_eq!((swept.get::<_, bool>(0), succeeded, failed, cancelled, lost), (true, 1, 1, 4, 0));
    let params: &[&(dyn ToSql + Sync)] = &[&run, &succeeded, &failed, &cancelled, &lost];
    one(&books.control, sql!("finalizer/finish_stopped_run"), params).await;
    books.assert_ok(run, "cancelled").await;
}

#[tokio::test]
async fn what_cannot_be_reached_is_named_and_nothing_is_ok() {
    let books = Books::new("what_cannot_be_reached_is_named_and_nothing_is_ok").await;
    let run = running(&books).await;
    let reasons = |report: &Report| report.unchecked.iter().map(|u| u.database.clone()).collect::<Vec<_>>();

    // Not configured.
    let installation = Installation::open(&books.databases[..1], &settings()).await.unwrap();
    for scope in [Scope::All, Scope::Run(run)] {
        let report = verify(&installation, scope, Options::default()).await.unwrap();
        assert_eq!((report.violations.len(), reasons(&report)), (0, vec!["p1".to_owned()]));
        assert!(!report.is_ok());
    }

    // A run that is not there.
    let report = books.verify(Scope::Run(Uuid::nil())).await;
    assert_eq!((report.checked.runs, reasons(&report)), (0, vec!["control".to_owned()]));

    // Another database under its name.
    let swapped = [books.databases[0].clone(), ("p1".to_owned(), books.databases[0].1.clone())];
    let installation = Installation::open(&swapped, &settings()).await.unwrap();
    let report = verify(&installation, Scope::All, Options::default()).await.unwrap();
    assert_eq!(reasons(&report), ["p1"]);
    assert!(report.unchecked[0].reason.contains("it says that it is placement control"), "{report:?}");

    // Nobody there, and one that nobody knows.
    let mut nobody = books.databases[1].1.clone();
    nobody.dbname("no_such_database");
    let gone = [books.databases[0].clone(), ("p1".to_owned(), nobody.clone()), ("p2".to_owned(), nobody)];
    let installation = Installation::open(&gone, &settings()).await.unwrap();
    let report = verify(&installation, Scope::All, Options::default()).await.unwrap();
    assert_eq!(reasons(&report), ["p1", "p2"]);
}

#[tokio::test]
async fn a_run_is_found_by_its_first_digits() {
    let books = Books::new("a_run_is_found_by_its_first_digits").await;
    let run = submit(&books).await;
    let store = ClientStore::new(books.installation.control.clone());
    let resolve = async |text: &str| text.parse::<RunArg>().unwrap().resolve(&store).await.map(|run_id| run_id.0);
    let short = &run.simple().to_string()[..8];
    assert_eq!(resolve(short).await.unwrap(), run);
    assert_eq!(resolve(&run.to_string()).await.unwrap(), run);
    let twin = Uuid::from_u128(run.as_u128() ^ 1);
    let error = resolve(&twin.to_string()).await.unwrap_err().to_string();
    assert!(error.contains("no run"), "{error}");
    let text = format!(
        "INSERT INTO runherd.runs (run_id, request_digest, queue, shard_count, creation_token, creation_expires_at) \
        SELECT '{twin}', request_digest, queue, shard_count, creation_token, creation_expires_at FROM runherd.runs"
    );
    run_sql(&books.control, &text).await;
    let error = resolve(short).await.unwrap_err().to_string();
    assert!(error.contains("several runs"), "{error}");
}
