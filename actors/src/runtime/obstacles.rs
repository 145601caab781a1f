//! What kept a stage from doing all it wanted, and when that is worth a line.
//!
//! An obstacle is told when it is met first and at each doubling of how often it was met. A moment without it does not make
//! it new: obstacles are forgotten after the stage has been free of any for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::backoff::worth_a_line;

/// Obstacles that are told apart. The ones beyond count as one, so that a text that never repeats is rare in the log too.
const APART: usize = 16;

/// The obstacles of one stage.
#[derive(Debug, Default)]
pub(crate) struct Obstacles {
    met: BTreeMap<String, u32>,
    free_since: Option<Instant>,
    /// Whether the last line said that the stage is blocked.
    told: bool,
}

/// What is worth a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum News {
    Blocked { times: u32 },
    Unblocked,
}

impl Obstacles {
    /// Notes what a cycle met; nothing if `obstacle` is empty.
    pub(crate) fn note(&mut self, obstacle: &str, now: Instant, forget_after: Duration) -> Option<News> {
        if self.free_since.is_some_and(|since| now.duration_since(since) >= forget_after) {
            *self = Self::default();
        }
        if obstacle.is_empty() {
            self.free_since = self.free_since.or(Some(now));
            return std::mem::take(&mut self.told).then_some(News::Unblocked);
        }
        self.free_since = None;
        let apart = self.met.contains_key(obstacle) || self.met.len() < APART;
        let times = self.met.entry(if apart { obstacle.to_owned() } else { String::new() }).or_default();
        *times = times.saturating_add(1);
        let times = *times;
        worth_a_line(times).then(|| {
            self.told = true;
            News::Blocked { times }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    fn told(obstacles: &mut Obstacles, now: Instant, met: &[&str]) -> Vec<Option<u32>> {
        let times = |news| match news {
            Some(News::Blocked { times }) => Some(times),
            Some(News::Unblocked) => Some(0),
            None => None,
        };
        met.iter().map(|obstacle| times(obstacles.note(obstacle, now, MINUTE))).collect()
    }

    #[test]
    fn an_obstacle_is_told_at_each_doubling_and_another_one_at_once() {
        let (mut obstacles, now) = (Obstacles::default(), Instant::now());
        assert_eq!(told(&mut obstacles, now, &["a", "a", "a", "a", "b"]), [Some(1), Some(2), None, Some(4), Some(1)]);
    }

    #[test]
    fn a_stage_that_flaps_is_told_ever_more_rarely() {
        let (mut obstacles, now) = (Obstacles::default(), Instant::now());
        let flaps = told(&mut obstacles, now, &["a", ""].repeat(1000));
        assert_eq!(flaps.iter().flatten().count(), 20, "10 doublings, and the end of each");
        assert_eq!(told(&mut obstacles, now, &["a"]), [None]);
        assert_eq!(told(&mut obstacles, now, &["", ""]), [None, None]);
        assert_eq!(told(&mut obstacles, now + MINUTE, &["a", ""]), [Some(1), Some(0)], "it was forgotten");
    }

    #[test]
    fn texts_that_never_repeat_are_rare_too() {
        let (mut obstacles, now) = (Obstacles::default(), Instant::now());
        let texts: Vec<String> = (0..1000).map(|n| format!("attempt {n}")).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        assert_eq!(told(&mut obstacles, now, &texts).iter().flatten().count(), APART + 10);
    }
}
