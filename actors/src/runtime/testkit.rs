//! Stages that do what a test tells them, and a journal that tests wait on.
//!
//! A [`Script`] is the list of answers that a stage's cycles give, one each, and a plain report ever after. A restarted stage
//! goes on with the script where its predecessor stopped. What happens is written into a [`Journal`], which several scripts
//! may share; tests wait for its entries, never for time.

use std::collections::VecDeque;
use std::future::pending;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::report::{CycleReport, StageError};
use super::stage::{CycleContext, Stage, StageSpec};

/// What a scripted cycle does.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Reports this.
    Report(CycleReport),
    /// Ends with a transient error.
    Transient(&'static str),
    /// Ends with a failure.
    Failed(&'static str),
    /// Ends with a fatal error.
    Fatal(&'static str),
    /// Panics.
    Panic(&'static str),
    /// Panics in the factory, before the stage is made. It is looked for only when a stage is made.
    PanicInFactory(&'static str),
    /// Never returns by itself, but yields: the abort ends it.
    Hang,
    /// Goes on until its token is cancelled, then reports.
    UntilCancelled,
    /// Holds its thread until the gate is opened, deaf to token and abort.
    Hog(Gate),
    /// Waits for the gate to open, yielding meanwhile, then reports.
    Await(Gate),
}

impl Answer {
    /// An empty report.
    #[must_use]
    pub fn ok() -> Self {
        Self::Report(CycleReport::default())
    }

    /// A report that says there is more.
    #[must_use]
    pub fn more() -> Self {
        Self::Report(CycleReport { more: true, ..CycleReport::default() })
    }

    /// A report that wakes a family.
    #[must_use]
    pub fn wakes(family: &'static str) -> Self {
        Self::Report(CycleReport { wakes: vec![family], ..CycleReport::default() })
    }

    /// A report that asks for a tick after a while.
    #[must_use]
    pub fn due_in(delay: Duration) -> Self {
        Self::Report(CycleReport { due_in: Some(delay), ..CycleReport::default() })
    }
}

/// Opens once, for all that wait.
#[derive(Clone, Debug, Default)]
pub struct Gate(Arc<GateState>);

#[derive(Debug, Default)]
struct GateState {
    open: Mutex<bool>,
    opened: Condvar,
    token: CancellationToken,
}

impl Gate {
    /// Lets all pass, now and later.
    pub fn open(&self) {
        *lock(&self.0.open) = true;
        self.0.opened.notify_all();
        self.0.token.cancel();
    }

    fn block(&self) {
        let mut open = lock(&self.0.open);
        while !*open {
            open = self.0.opened.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// What happened to a scripted stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Happened {
    /// The factory made it.
    Made,
    /// A cycle began.
    Began,
    /// [`Answer::Hog`] holds its thread from here on.
    Held,
    /// A cycle ended, with a report or an error. (A cycle that panics or is aborted does not.)
    Ended,
    /// It was drained.
    Drained,
    /// It was dropped, with or without having been drained.
    Dropped,
}

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The stage.
    pub stage: String,
    /// What.
    pub what: Happened,
    /// When, in the time of the tokio runtime.
    pub at: Instant,
}

/// What happened, in order.
#[derive(Clone, Debug)]
pub struct Journal(Arc<watch::Sender<Vec<Entry>>>);

impl Default for Journal {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(Vec::new())))
    }
}

impl Journal {
    fn write(&self, stage: &str, what: Happened) {
        let entry = Entry { stage: stage.to_owned(), what, at: Instant::now() };
        self.0.send_modify(|entries| entries.push(entry));
    }

    /// All entries so far.
    #[must_use]
    pub fn entries(&self) -> Vec<Entry> {
        self.0.borrow().clone()
    }

    /// When `what` happened to `stage`, each time so far.
    #[must_use]
    pub fn times(&self, stage: &str, what: Happened) -> Vec<Instant> {
        let entries = self.0.borrow();
        entries.iter().filter(|entry| entry.stage == stage && entry.what == what).map(|entry| entry.at).collect()
    }

    /// How often `what` happened to `stage` so far.
    #[must_use]
    pub fn count(&self, stage: &str, what: Happened) -> usize {
        self.times(stage, what).len()
    }

    /// The stages to which `what` happened, in order.
    #[must_use]
    pub fn order(&self, what: Happened) -> Vec<String> {
        let entries = self.0.borrow();
        entries.iter().filter(|entry| entry.what == what).map(|entry| entry.stage.clone()).collect()
    }

    /// Waits until `what` has happened to `stage` at least `times` times.
    pub async fn until(&self, stage: &str, what: Happened, times: usize) {
        let enough = |entries: &Vec<Entry>| {
            entries.iter().filter(|entry| entry.stage == stage && entry.what == what).count() >= times
        };
        // It can fail only when the sender is gone, and this holds it.
        let _ = self.0.subscribe().wait_for(enough).await;
    }
}

/// The answers of a stage. Clones share the answers left and the journal.
#[derive(Clone, Debug, Default)]
pub struct Script {
    answers: Arc<Mutex<VecDeque<Answer>>>,
    always: Option<Answer>,
    journal: Journal,
}

impl Script {
    /// Gives these answers, then plain reports.
    #[must_use]
    pub fn new(answers: impl IntoIterator<Item = Answer>) -> Self {
        Self { answers: Arc::new(Mutex::new(answers.into_iter().collect())), ..Self::default() }
    }

    /// Gives this answer for ever, once the others are given.
    #[must_use]
    pub fn then_always(mut self, answer: Answer) -> Self {
        self.always = Some(answer);
        self
    }

    /// Writes into `journal`.
    #[must_use]
    pub fn into_journal(mut self, journal: &Journal) -> Self {
        self.journal = journal.clone();
        self
    }

    /// What happened.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    /// A stage of this script, in the cycle, after nobody, with a deadline of ten seconds.
    #[must_use]
    pub fn spec(&self, name: &str) -> StageSpec {
        let script = self.clone();
        let stage = name.to_owned();
        StageSpec::new(name, "does what a test tells it", move || script.make(&stage)).deadline(Duration::from_secs(10))
    }

    fn make(&self, name: &str) -> ScriptedStage {
        let coming = lock(&self.answers).front().cloned().or_else(|| self.always.clone());
        if let Some(Answer::PanicInFactory(message)) = coming {
            lock(&self.answers).pop_front();
            panic_with(message);
        }
        self.journal.write(name, Happened::Made);
        ScriptedStage { name: name.to_owned(), script: self.clone() }
    }

    fn next(&self) -> Answer {
        let next = lock(&self.answers).pop_front();
        next.or_else(|| self.always.clone()).unwrap_or_else(Answer::ok)
    }
}

fn panic_with(message: &str) -> ! {
    panic!("{message}")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct ScriptedStage {
    name: String,
    script: Script,
}

impl ScriptedStage {
    async fn act(&self, answer: Answer, cx: &CycleContext) -> Result<CycleReport, StageError> {
        match answer {
            Answer::Report(report) => return Ok(report),
            Answer::Transient(error) => return Err(StageError::transient("doing what the script says", error)),
            Answer::Failed(error) => return Err(StageError::failed("doing what the script says", error)),
            Answer::Fatal(error) => return Err(StageError::fatal("doing what the script says", error)),
            Answer::Panic(message) | Answer::PanicInFactory(message) => panic_with(message),
            Answer::Hang => pending().await,
            Answer::UntilCancelled => cx.stopping.cancelled().await,
            Answer::Hog(gate) => {
                // Whom the journal woke waits on this very thread, where no other thread can fetch it: let it go first. For
                // the same reason another thread writes that this one is held.
                tokio::task::yield_now().await;
                let (journal, name) = (self.script.journal.clone(), self.name.clone());
                std::thread::spawn(move || journal.write(&name, Happened::Held));
                gate.block();
            }
            Answer::Await(gate) => gate.0.token.cancelled().await,
        }
        Ok(CycleReport::default())
    }
}

#[async_trait]
impl Stage for ScriptedStage {
    async fn run_cycle(&mut self, cx: &CycleContext) -> Result<CycleReport, StageError> {
        let answer = self.script.next();
        self.script.journal.write(&self.name, Happened::Began);
        let result = self.act(answer, cx).await;
        self.script.journal.write(&self.name, Happened::Ended);
        result
    }

    async fn drain(&mut self) {
        self.script.journal.write(&self.name, Happened::Drained);
    }
}

impl Drop for ScriptedStage {
    fn drop(&mut self) {
        self.script.journal.write(&self.name, Happened::Dropped);
    }
}

/// A context for calling a stage's `run_cycle` without a runtime: the first cycle, with this much time.
#[must_use]
pub fn context(time: Duration) -> CycleContext {
    CycleContext { iteration: 1, deadline: Instant::now() + time, stopping: CancellationToken::new() }
}
