//! A command's process group.
//!
//! Promises that dropping it kills whatever is left in the group.

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::Child;

/// The group of a child that was started as its leader.
pub(super) struct Group {
    leader: Option<Pid>,
}

impl Group {
    pub(super) fn of(child: &Child) -> Self {
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        Self { leader: id.and_then(Pid::from_raw) }
    }

    /// Asks the group to end.
    pub(super) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Kills the group.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Kills the group, and has nothing more to do with it.
    pub(super) fn end(&mut self) {
        self.kill();
        self.leader = None;
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // An error says that the group is empty already.
            let _ = kill_process_group(leader, signal);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
