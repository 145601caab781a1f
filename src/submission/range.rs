//! The arithmetic of ranges: half-open, in steps, and never past what 64 bits hold, neither here nor in PostgreSQL.

use std::fmt;

use super::SubmitError;

/// The numbers from `start` up to, not including, `end`, `step` of them to a chunk. The last chunk may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    start: i64,
    end: i64,
    step: i64,
}

impl Range {
    /// A range; `start >= end` makes an empty one.
    ///
    /// # Errors
    /// [`SubmitError::Request`]: the step is below 1, or sums of these numbers do not fit into 64 bits.
    pub fn new(start: i64, end: i64, step: i64) -> Result<Self, SubmitError> {
        if step < 1 {
            return Err(SubmitError::Request(format!("the step of a range must be at least 1, not {step}")));
        }
        // The databases compute `end - start + step - 1` and `start + chunks * step`, which is at most `end + step - 1`.
        let fits = start >= end
            || (end.checked_add(step - 1).is_some()
                && end.checked_sub(start).is_some_and(|width| width.checked_add(step - 1).is_some()));
        if !fits {
            return Err(SubmitError::Request(format!(
                "the range {start}..{end} with step {step} is too wide: its width and its end, plus the step, must stay below 2^63"
            )));
        }
        Ok(Self { start, end: end.max(start), step })
    }

    /// Reads `A..B`.
    ///
    /// # Errors
    /// [`SubmitError::Request`]: this is no such text, or see [`Range::new`].
    pub fn parse(text: &str, step: i64) -> Result<Self, SubmitError> {
        let bad = |why: &str| SubmitError::Request(format!("{text:?} is not a range A..B: {why}"));
        let (start, end) = text.split_once("..").ok_or_else(|| bad("the two dots are missing"))?;
        if end.starts_with('=') {
            return Err(bad("the end is never part of it; write one more instead of ..="));
        }
        let number = |text: &str| {
            text.trim().parse::<i64>().map_err(|error| bad(&format!("{:?} is no 64-bit number ({error})", text.trim())))
        };
        Self::new(number(start)?, number(end)?, step)
    }

    /// How many chunks it has.
    #[must_use]
    pub fn chunks(&self) -> u64 {
        // Checked when it was made.
        (self.end - self.start).unsigned_abs().div_ceil(self.step.unsigned_abs())
    }

    /// Takes off the first `chunks` chunks, or what is left; `None` once it is empty.
    pub(super) fn take(&mut self, chunks: u32) -> Option<Self> {
        if self.start >= self.end {
            return None;
        }
        let width = i64::from(chunks.max(1)).saturating_mul(self.step);
        let end = self.start.saturating_add(width).min(self.end);
        let taken = Self { end, ..*self };
        self.start = end;
        Some(taken)
    }

    /// The body of a part, which the placement expands.
    pub(super) fn body(&self) -> String {
        format!(r#"{{"start":{},"step":{},"end":{}}}"#, self.start, self.step, self.end)
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} step {}", self.start, self.end, self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read() {
        assert_eq!(Range::parse("0..10", 1).unwrap(), Range { start: 0, end: 10, step: 1 });
        assert_eq!(Range::parse("-7..-3", 2).unwrap(), Range { start: -7, end: -3, step: 2 });
        assert_eq!(Range::parse("5..5", 1).unwrap().chunks(), 0);
        assert_eq!(Range::parse("9..5", 1).unwrap().chunks(), 0);
        for (text, why) in [
            ("5", "two dots"),
            ("0..=5", "..="),
            ("a..5", "\"a\""),
            ("0..", "\"\""),
            ("0..9223372036854775808", "64-bit"),
            ("0...5", "\".5\""),
        ] {
            let error = Range::parse(text, 1).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(Range::parse("0..5", 0).is_err());
        assert!(Range::parse("0..5", -1).is_err());
    }

    #[test]
    fn nothing_overflows() {
        let (least, most) = (i64::MIN, i64::MAX);
        assert!(Range::new(least, most, 1).is_err());
        assert!(Range::new(0, most, 2).is_err());
        assert!(Range::new(most - 1, most, most).is_err());
        assert_eq!(Range::new(0, most, 1).unwrap().chunks(), most.unsigned_abs());
        assert_eq!(Range::new(most, least, most).unwrap().chunks(), 0);
        assert_eq!(Range::new(least, least + 10, 3).unwrap().chunks(), 4);
        assert_eq!(Range::new(0, 1, most).unwrap().chunks(), 1);
        let mut wide = Range::new(0, most, 1).unwrap();
        wide.start = most - 5;
        assert_eq!(wide.take(100).unwrap().end, most);
        assert_eq!(wide.take(100), None);
    }

    /// Every range near zero, cut every way: the pieces are the whole, and every piece but the last is full.
    #[test]
    fn the_pieces_are_the_whole() {
        for (start, end) in (-6..6).flat_map(|start| (-6..8).map(move |end| (start, end))) {
            for (step, size) in (1..5).flat_map(|step| (1..5).map(move |size| (step, size))) {
                let whole = Range::new(start, end, step).unwrap();
                let mut rest = whole;
                let mut pieces = Vec::new();
                while let Some(piece) = rest.take(size) {
                    pieces.push(piece);
                }
                let chunks: u64 = pieces.iter().map(Range::chunks).sum();
                assert_eq!(chunks, whole.chunks(), "{whole}");
                assert!(pieces.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(pieces.iter().rev().skip(1).all(|piece| piece.chunks() == u64::from(size)));
                assert_eq!(pieces.first().map_or(start, |piece| piece.start), start);
                assert_eq!(pieces.last().map_or(start.max(end), |piece| piece.end), end.max(start));
            }
        }
    }
}
