use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use runherd_actors::model::{ChunkKey, RunId};
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

fn chunk(payload: &str) -> Chunk {
    Chunk {
        key: ChunkKey { run_id: RunId(Uuid::nil()), run_shard: 3, chunk_no: 14 },
        payload: RawValue::from_string(payload.to_owned()).unwrap(),
        attempt: 2,
        generation: 1,
        cancelled: CancellationToken::new(),
    }
}

fn limits() -> CommandLimits {
    CommandLimits { kill_delay: Duration::from_millis(100), ..CommandLimits::default() }
}

fn shell_with(script: &str, limits: CommandLimits) -> CommandHandler {
    CommandHandler::new(["sh", "-c", script].map(OsString::from).to_vec(), limits).unwrap()
}

fn shell(script: &str) -> CommandHandler {
    shell_with(script, limits())
}

async fn outcome(script: &str, payload: &str) -> String {
    shell(script).handle(chunk(payload)).await.unwrap().json().to_owned()
}

async fn failure(script: &str) -> ChunkError {
    shell(script).handle(chunk("null")).await.unwrap_err()
}

/// A named pipe: it tells when somebody opens it, and when nobody who opened it is left.
struct Witness {
    path: PathBuf,
}

impl Witness {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("runherd-test-{}", Uuid::new_v4()));
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        Self { path }
    }

    /// Waits until the first writer says that it has begun.
    async fn begun(&self) -> tokio::fs::File {
        let mut file = tokio::fs::File::open(&self.path).await.unwrap();
        let mut first = [0; 6];
        timeout(PATIENCE, file.read_exact(&mut first)).await.unwrap().unwrap();
        assert_eq!(&first, b"begun\n");
        file
    }
}

/// Waits until every writer is gone: no process of the group is left.
async fn gone(mut file: tokio::fs::File) {
    timeout(PATIENCE, file.read_to_string(&mut String::new())).await.unwrap().unwrap();
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[tokio::test]
async fn json_is_kept_and_other_text_becomes_a_string() {
    assert_eq!(outcome("cat", "{\"b\": 1.50, \"a\":[ ]}").await, "{\"b\": 1.50, \"a\":[ ]}");
    assert_eq!(outcome("echo hello; echo world", "1").await, "\"hello\\nworld\"");
    assert_eq!(outcome("printf ' 1e400 \\n\\n'", "1").await, "1e400");
    assert_eq!(outcome("true", "1").await, "\"\"");
    assert_eq!(outcome("printf 'a\\377b'", "1").await, "\"a\u{fffd}b\"");
}

#[tokio::test]
async fn the_chunk_is_in_the_environment() {
    let script = r#"printf %s "$RUNHERD_RUN_ID $RUNHERD_RUN_SHARD $RUNHERD_CHUNK_NO $RUNHERD_ATTEMPT $RUNHERD_PAYLOAD|$RUNHERD_PAYLOAD_TEXT""#;
    let told = outcome(script, r#""two\nlines""#).await;
    let told: String = serde_json::from_str(&told).unwrap();
    assert_eq!(told, format!("{} 3 14 2 \"two\\nlines\"|two\nlines", Uuid::nil()));
    let script = r#"printf %s "${RUNHERD_PAYLOAD-unset} ${RUNHERD_PAYLOAD_TEXT-unset}""#;
    assert_eq!(outcome(script, "[1]").await, "\"[1] unset\"");
    assert_eq!(outcome(script, &format!("\"{}\"", "x".repeat(70_000))).await, "\"unset unset\"");
    let with_nul = outcome(script, r#""a\u0000b""#).await;
    assert_eq!(serde_json::from_str::<String>(&with_nul).unwrap(), r#""a\u0000b" unset"#);
}

#[tokio::test]
async fn a_large_payload_arrives_whole_and_need_not_be_read() {
    let payload = format!("\"{}\"", "x".repeat(1_000_000));
    assert_eq!(outcome("wc -c", &payload).await.trim_matches('"').trim(), "1000003");
    assert_eq!(outcome("echo done", &payload).await, "\"done\"");
    assert_eq!(outcome("exec <&-; echo done", &payload).await, "\"done\"");
}

#[tokio::test]
async fn exit_statuses_and_signals() {
    let error = failure("echo what is wrong >&2; exit 3").await;
    assert_eq!(error, ChunkError::retryable("exit status: 3: what is wrong"));
    assert_eq!(failure("exit 65").await, ChunkError::fatal("exit status: 65"));
    let error = failure("kill -9 $$").await;
    assert!(error.retryable && error.error.contains("SIGKILL"), "{error}");
    let error = failure("yes err | head -c 100000 >&2; echo last >&2; exit 1").await;
    assert!(error.error.ends_with("last") && error.error.contains('…') && error.error.len() < 4_300, "{error}");
}

#[tokio::test]
async fn too_much_output_fails_for_good_and_stops_the_command() {
    let limits = CommandLimits { outcome_bytes: 1000, ..limits() };
    let error = shell_with("echo here >&2; yes", limits).handle(chunk("1")).await.unwrap_err();
    assert!(
        !error.retryable && error.error.contains("more than 1000 bytes") && error.error.contains("here"),
        "{error}"
    );
    let just = shell_with("head -c 1000 /dev/zero | tr '\\0' 7", limits).handle(chunk("1")).await.unwrap();
    assert_eq!(just.json(), "7".repeat(1000));
    let over = shell_with("head -c 1001 /dev/zero | tr '\\0' 7", limits).handle(chunk("1")).await.unwrap_err();
    assert!(!over.retryable, "{over}");
}

#[tokio::test]
async fn the_time_limit_stops_the_whole_group() {
    let witness = Witness::new();
    let script =
        format!("(trap '' TERM; exec > {}; echo begun; sleep 1000) & echo waiting >&2; wait", witness.path.display());
    let limits = CommandLimits { time: Some(Duration::from_secs(1)), ..limits() };
    let handler = shell_with(&script, limits);
    let (error, ()) = tokio::join!(handler.handle(chunk("1")), async { gone(witness.begun().await).await });
    let error = error.unwrap_err();
    assert!(error.retryable && error.error.contains("time limit of 1s: waiting"), "{error}");
}

#[tokio::test]
async fn a_cancelled_command_ends_with_its_children() {
    let witness = Witness::new();
    let handler = shell(&format!("exec > {}; echo begun; sleep 1000 & sleep 1000", witness.path.display()));
    let chunk = chunk("1");
    let cancelled = chunk.cancelled.clone();
    let watch = async {
        let file = witness.begun().await;
        cancelled.cancel();
        gone(file).await;
    };
    let (result, ()) = tokio::join!(handler.handle(chunk), watch);
    assert!(result.unwrap_err().retryable);
}

#[tokio::test]
async fn a_dropped_handler_kills_the_group() {
    let witness = Witness::new();
    let handler = Arc::new(shell(&format!("trap '' TERM; exec > {}; echo begun; sleep 1000", witness.path.display())));
    let task = tokio::spawn({
        let handler = handler.clone();
        async move { handler.handle(chunk("1")).await }
    });
    let file = witness.begun().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    gone(file).await;
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_killed_and_does_not_hold_the_chunk() {
    assert_eq!(outcome("sleep 1000 & echo done", "1").await, "\"done\"");
}

#[test]
fn a_command_is_checked_before_it_is_needed() {
    let new =
        |name: &str| CommandHandler::new(vec![name.into()], limits()).map(drop).map_err(|error| error.to_string());
    assert_eq!(new("sh"), Ok(()));
    assert!(new("no-such-command-at-all").unwrap_err().contains("PATH"));
    assert!(new("./no/such/file").unwrap_err().contains("no such file"));
    assert!(new("").unwrap_err().contains("after --"));
    let file = std::env::temp_dir().join(format!("runherd-test-{}", Uuid::new_v4()));
    std::fs::write(&file, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(new(file.to_str().unwrap()).unwrap_err().contains("not executable"));
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(new(file.to_str().unwrap()), Ok(()));
    std::fs::remove_file(file).unwrap();
}
