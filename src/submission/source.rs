//! Where chunks come from: lines of JSON, lines of text, or a range.
//!
//! A source is read once, from its beginning, a line at a time: a line is never longer in memory than the payload limit
//! allows. A line that is wrong ends it, with its number and, in JSON, the byte where it is wrong.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, stdin};
use std::path::Path;

use serde::de::IgnoredAny;

use super::{Range, SubmitError};

/// PostgreSQL's and most other readers of JSON recurse; no honest payload comes near this.
const DEPTH_MAX: usize = 1_000;

/// What the chunks of a run are made from.
pub enum Source {
    /// One JSON value a line, sent as it stands.
    Chunks(Input),
    /// Every line is a string.
    Lines(Input),
    /// Ranges of numbers, which the placements expand.
    Range(Range),
}

/// Something that can be read, under the name that errors call it.
pub struct Input {
    name: String,
    reader: Box<dyn BufRead + Send>,
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Input").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Input {
    /// A file, or standard input for `-`.
    ///
    /// # Errors
    /// [`SubmitError::Request`]: it cannot be opened.
    pub fn open(path: &Path) -> Result<Self, SubmitError> {
        if path == Path::new("-") {
            return Ok(Self::new("standard input", BufReader::with_capacity(1 << 16, stdin())));
        }
        let cannot = |why: String| SubmitError::Request(format!("cannot read {}: {why}", path.display()));
        let file = File::open(path).map_err(|error| cannot(error.to_string()))?;
        if file.metadata().map_err(|error| cannot(error.to_string()))?.is_dir() {
            return Err(cannot("it is a directory".to_owned()));
        }
        Ok(Self::new(path.display().to_string(), BufReader::with_capacity(1 << 16, file)))
    }

    /// Anything that can be read.
    pub fn new(name: impl Into<String>, reader: impl BufRead + Send + 'static) -> Self {
        Self { name: name.into(), reader: Box::new(reader) }
    }
}

/// A line that cannot become a chunk, or cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LineError {
    /// The file's name.
    pub input: String,
    /// The line, from 1.
    pub line: u64,
    /// The byte in the line, from 1, where that can be said.
    pub byte: Option<usize>,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for LineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.input, self.line)?;
        if let Some(byte) = self.byte {
            write!(f, ", byte {byte}")?;
        }
        write!(f, ": {}", self.what)
    }
}

/// The payloads of a source of lines, one after the other.
pub(super) struct Payloads {
    input: Input,
    json: bool,
    limit: usize,
    line: u64,
    raw: Vec<u8>,
    payload: String,
}

impl Payloads {
    pub(super) fn new(input: Input, json: bool, payload_limit_bytes: u32) -> Self {
        let limit = payload_limit_bytes as usize;
        Self { input, json, limit, line: 0, raw: Vec::new(), payload: String::new() }
    }

    /// The next payload, as JSON; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<&str>, LineError> {
        if !self.read_line()? {
            return Ok(None);
        }
        if self.json {
            let Some((first, last)) = self.check_json()? else {
                self.blank_line()?;
                return Ok(None);
            };
            return std::str::from_utf8(&self.raw[first..=last]).map(Some).map_err(|error| self.not_utf8(error));
        }
        let text = std::str::from_utf8(&self.raw).map_err(|error| self.not_utf8(error))?;
        // Strings that serialise into memory: this cannot fail.
        self.payload = serde_json::to_string(text).unwrap_or_default();
        if self.payload.len() > self.limit {
            return Err(self.too_long());
        }
        Ok(Some(&self.payload))
    }

    /// The error of a line that is one too many for what parts are numbered with.
    pub(super) fn wrong(&self, byte: Option<usize>, what: impl Into<String>) -> LineError {
        LineError { input: self.input.name.clone(), line: self.line, byte, what: what.into() }
    }

    /// Reads the next line, without its end (LF or CRLF), into `raw`; false at the end.
    fn read_line(&mut self) -> Result<bool, LineError> {
        self.raw.clear();
        self.line += 1;
        let most = u64::try_from(self.limit).unwrap_or(u64::MAX).saturating_add(2);
        let read = self.input.reader.by_ref().take(most).read_until(b'\n', &mut self.raw);
        if read.map_err(|error| self.unreadable(&error))? == 0 {
            return Ok(false);
        }
        if self.raw.last() == Some(&b'\n') {
            self.raw.pop();
            if self.raw.last() == Some(&b'\r') {
                self.raw.pop();
            }
        }
        if self.raw.len() > self.limit { Err(self.too_long()) } else { Ok(true) }
    }

    /// Where the value begins and ends in the line, if the line is one JSON value; `None` for a blank line.
    fn check_json(&self) -> Result<Option<(usize, usize)>, LineError> {
        let solid = |byte: &u8| !b" \t\r".contains(byte);
        let (Some(first), Some(last)) = (self.raw.iter().position(solid), self.raw.iter().rposition(solid)) else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&self.raw).map_err(|error| self.not_utf8(error))?;
        if text.starts_with('\u{feff}') {
            return Err(self.wrong(Some(1), "the line begins with a byte order mark; remove it"));
        }
        serde_json::from_str::<IgnoredAny>(text).map_err(|error| self.not_json(&error))?;
        if too_deep(text) {
            return Err(self.wrong(None, format!("the value is nested more than {DEPTH_MAX} levels deep")));
        }
        Ok(Some((first, last)))
    }

    /// Only the last line may be blank: elsewhere a value may have been lost.
    fn blank_line(&mut self) -> Result<(), LineError> {
        match self.input.reader.fill_buf().map(<[u8]>::is_empty) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.wrong(None, "the line is blank; every line holds one JSON value")),
            Err(error) => Err(self.unreadable(&error)),
        }
    }

    fn not_json(&self, error: &serde_json::Error) -> LineError {
        let text = error.to_string();
        let what = text.split(" at line ").next().unwrap_or(&text);
        self.wrong(Some(error.column().max(1)), format!("not one JSON value: {what}"))
    }

    fn not_utf8(&self, error: std::str::Utf8Error) -> LineError {
        self.wrong(Some(error.valid_up_to() + 1), "not UTF-8")
    }

    fn too_long(&self) -> LineError {
        let limit = self.limit;
        self.wrong(None, format!("the payload is longer than submission.payload_limit_bytes ({limit})"))
    }

    fn unreadable(&self, error: &io::Error) -> LineError {
        self.wrong(None, format!("cannot be read: {error}"))
    }
}

/// Whether valid JSON is nested too deeply. Most values have too few brackets to be.
fn too_deep(json: &str) -> bool {
    let opening = |byte: &&u8| matches!(byte, b'[' | b'{');
    if json.as_bytes().iter().filter(opening).count() <= DEPTH_MAX {
        return false;
    }
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => depth += 1,
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth > DEPTH_MAX {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: bool, limit: u32, bytes: &'static [u8]) -> Result<Vec<String>, LineError> {
        let mut payloads = Payloads::new(Input::new("in", bytes), json, limit);
        let mut all = Vec::new();
        while let Some(payload) = payloads.next()? {
            all.push(payload.to_owned());
        }
        Ok(all)
    }

    #[test]
    fn values_are_sent_as_they_stand() {
        let text = b" {\"b\":1, \"a\" : 1.50e1}\t\r\n[]\n\"\\u0000\\ud800 \xc3\xa9\"\nnull";
        let expected = ["{\"b\":1, \"a\" : 1.50e1}", "[]", "\"\\u0000\\ud800 é\"", "null"];
        assert_eq!(read(true, 100, text).unwrap(), expected);
        assert_eq!(read(true, 100, b"1\n2\n\n").unwrap(), ["1", "2"]);
        assert_eq!(read(true, 100, b"1\n2\n  ").unwrap(), ["1", "2"]);
        assert_eq!(read(true, 100, b"\n").unwrap(), [""; 0]);
        assert_eq!(read(true, 100, b"").unwrap(), [""; 0]);
    }

    #[test]
    fn every_line_is_a_string() {
        assert_eq!(
            read(false, 100, b"a\"b\n\n\xc3\xa9\\\r\n\tend").unwrap(),
            ["\"a\\\"b\"", "\"\"", "\"é\\\\\"", "\"\\tend\""]
        );
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (json, text, expected) in [
            (true, &b"1\n\n2\n"[..], "in, line 2: the line is blank; every line holds one JSON value"),
            (true, b"1\n\n\n", "in, line 2: the line is blank; every line holds one JSON value"),
            (true, b"1\n{\"a\":x}\n", "in, line 2, byte 6: not one JSON value: expected value"),
            (true, b"{\"a\":1", "in, line 1, byte 6: not one JSON value: EOF while parsing an object"),
            (true, b"1 2\n", "in, line 1, byte 3: not one JSON value: trailing characters"),
            (true, b"\"\xff\"\n", "in, line 1, byte 2: not UTF-8"),
            (true, b"\xef\xbb\xbf1\n", "in, line 1, byte 1: the line begins with a byte order mark; remove it"),
            (true, b"\"123456789\"\n", "in, line 1: the payload is longer than submission.payload_limit_bytes (10)"),
            (false, b"ok\nab\xc3\n", "in, line 2, byte 3: not UTF-8"),
            (false, b"123456789\n", "in, line 1: the payload is longer than submission.payload_limit_bytes (10)"),
            (false, b"\x01\x01\n", "in, line 1: the payload is longer than submission.payload_limit_bytes (10)"),
        ] {
            assert_eq!(read(json, 10, text).unwrap_err().to_string(), expected);
        }
        assert_eq!(read(true, 10, b"\"12345678\"\r\n").unwrap().len(), 1);
    }

    /// A line without an end must not fill the memory before it is refused.
    #[test]
    fn an_endless_line_is_refused_early() {
        let mut payloads = Payloads::new(Input::new("in", BufReader::new(io::repeat(b'1'))), true, 1000);
        assert_eq!(payloads.next().unwrap_err().line, 1);
        assert!(payloads.raw.capacity() < 10_000);
    }

    #[test]
    fn depth_counts_brackets_outside_strings() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(!too_deep(&nested(DEPTH_MAX)));
        assert!(too_deep(&nested(DEPTH_MAX + 1)));
        assert!(!too_deep(&format!("\"\\\"{}\"", "[".repeat(5000))));
        assert!(!too_deep(&format!("[{}0]", "[],".repeat(5000))));
    }

    #[test]
    fn what_cannot_be_opened_is_refused_at_once() {
        let error = Input::open(Path::new("/nonexistent/file")).unwrap_err().to_string();
        assert!(error.contains("/nonexistent/file"), "{error}");
        assert!(Input::open(Path::new("/")).unwrap_err().to_string().contains("directory"));
    }
}
