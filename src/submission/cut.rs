//! Cuts a source into parts, and chains their digests as the server does.
//!
//! The same source, limits and number of shards always give the same parts: that is what lets a client that tries again
//! compare what it has with what the server has.

use std::sync::Arc;

use sha2::{Digest as _, Sha256};

use super::source::{LineError, Payloads};
use super::{Range, Source};

/// The first round over the shards has parts of this size, each further one twice that, up to the limit: part `p` belongs to
/// shard `p mod shards`, and a short input should reach every shard too.
const FIRST_ROUND_CHUNKS: u32 = 16;

/// How large parts and payloads may be.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The most chunks in one part.
    pub part_chunks: u32,
    /// The most bytes of payload in one part.
    pub part_bytes: u32,
    /// The most bytes in one payload.
    pub payload_limit_bytes: u32,
}

/// One part of a run's chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Its number, from 0.
    pub(super) part_no: u32,
    /// The chunks in it.
    pub(super) chunks: u32,
    /// An array of payloads, or a range.
    pub(super) body: Arc<str>,
    /// The digest of the chain that ends with it.
    pub(super) digest: [u8; 32],
}

enum Material {
    Payloads { payloads: Payloads, held: String, has_held: bool },
    Range(Range),
}

/// Cuts one source.
pub(super) struct Cutter {
    material: Material,
    limits: Limits,
    shards: u32,
    part_no: u32,
    chain: Vec<u8>,
}

impl Cutter {
    pub(super) fn new(source: Source, limits: Limits, shards: u32) -> Self {
        let lines = |input, json| Material::Payloads {
            payloads: Payloads::new(input, json, limits.payload_limit_bytes),
            held: String::new(),
            has_held: false,
        };
        let material = match source {
            Source::Chunks(input) => lines(input, true),
            Source::Lines(input) => lines(input, false),
            Source::Range(range) => Material::Range(range),
        };
        Self { material, limits, shards: shards.max(1), part_no: 0, chain: Vec::new() }
    }

    /// The next part; `None` at the end.
    pub(super) fn next_part(&mut self) -> Result<Option<Part>, LineError> {
        let most = most_chunks(self.part_no, self.shards, self.limits.part_chunks);
        let cut = match &mut self.material {
            Material::Range(range) => range.take(most).map(|piece| {
                // At most `most` chunks, which is 32 bits wide.
                (u32::try_from(piece.chunks()).unwrap_or(most), piece.body())
            }),
            Material::Payloads { payloads, held, has_held } => {
                cut_payloads(payloads, held, has_held, most, self.limits.part_bytes as usize)?
            }
        };
        let Some((chunks, body)) = cut else { return Ok(None) };
        if i32::try_from(self.part_no).is_err() {
            let what = "the run has more parts than 2^31; raise submission.part_chunks or submit several runs";
            return Err(match &self.material {
                Material::Payloads { payloads, .. } => payloads.wrong(None, what),
                Material::Range(range) => {
                    LineError { input: format!("range {range}"), line: 1, byte: None, what: what.to_owned() }
                }
            });
        }
        let digest: [u8; 32] = Sha256::new().chain_update(&self.chain).chain_update(&body).finalize().into();
        self.chain = digest.to_vec();
        let part = Part { part_no: self.part_no, chunks, body: body.into(), digest };
        self.part_no += 1;
        Ok(Some(part))
    }
}

/// The most chunks of a part, by its number.
fn most_chunks(part_no: u32, shards: u32, part_chunks: u32) -> u32 {
    let round = part_no / shards;
    // Beyond 2^20 rounds the limit of the configuration has long been reached.
    (FIRST_ROUND_CHUNKS << round.min(20)).min(part_chunks.max(1))
}

/// An array of as many payloads as are allowed; the one that is too much waits in `held` for the next part.
fn cut_payloads(
    payloads: &mut Payloads,
    held: &mut String,
    has_held: &mut bool,
    most_chunks: u32,
    most_bytes: usize,
) -> Result<Option<(u32, String)>, LineError> {
    let mut body = String::from("[");
    let (mut chunks, mut bytes) = (0, 0);
    if std::mem::take(has_held) {
        body.push_str(held);
        (chunks, bytes) = (1, held.len());
    }
    while chunks < most_chunks {
        let Some(payload) = payloads.next()? else { break };
        if chunks > 0 && bytes + payload.len() > most_bytes {
            held.clear();
            held.push_str(payload);
            *has_held = true;
            break;
        }
        if chunks > 0 {
            body.push(',');
        }
        body.push_str(payload);
        chunks += 1;
        bytes += payload.len();
    }
    body.push(']');
    Ok((chunks > 0).then_some((chunks, body)))
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use serde_json::Value;

    use super::*;
    use crate::submission::Input;

    const LIMITS: Limits = Limits { part_chunks: 1000, part_bytes: 1 << 20, payload_limit_bytes: 1000 };

    fn all(source: Source, limits: Limits, shards: u32) -> Vec<Part> {
        let mut cutter = Cutter::new(source, limits, shards);
        std::iter::from_fn(|| cutter.next_part().unwrap()).collect()
    }

    fn chunks(text: &str) -> Source {
        Source::Chunks(Input::new("in", std::io::Cursor::new(text.to_owned())))
    }

    #[test]
    fn an_empty_source_has_no_part() {
        assert_eq!(all(chunks(""), LIMITS, 8), []);
        assert_eq!(all(Source::Range(Range::new(5, 5, 1).unwrap()), LIMITS, 8), []);
    }

    #[test]
    fn the_chain_is_the_servers() {
        let limits = Limits { part_chunks: 2, ..LIMITS };
        let parts = all(chunks("1\n2\n3\n"), limits, 1);
        let bodies: Vec<&str> = parts.iter().map(|part| &*part.body).collect();
        assert_eq!(bodies, ["[1,2]", "[3]"]);
        let first = Sha256::digest("[1,2]");
        assert_eq!(parts[0].digest[..], first[..]);
        assert_eq!(parts[1].digest[..], Sha256::digest([&first[..], b"[3]"].concat())[..]);
    }

    #[test]
    fn a_short_input_reaches_every_shard() {
        let parts = all(Source::Range(Range::new(0, 128, 1).unwrap()), LIMITS, 8);
        assert_eq!(parts.iter().map(|part| part.chunks).collect::<Vec<_>>(), [16; 8]);
        let sizes: Vec<u32> =
            all(Source::Range(Range::new(0, 100_000, 1).unwrap()), LIMITS, 2).iter().map(|part| part.chunks).collect();
        assert_eq!(sizes[..16], [16, 16, 32, 32, 64, 64, 128, 128, 256, 256, 512, 512, 1000, 1000, 1000, 1000]);
        assert_eq!(sizes.iter().sum::<u32>(), 100_000);
        assert_eq!(most_chunks(u32::MAX, 1, 100_000), 100_000);
        assert_eq!(most_chunks(0, 1, 3), 3);
    }

    #[test]
    fn ranges_are_bodies_of_ranges() {
        let limits = Limits { part_chunks: 3, ..LIMITS };
        let parts = all(Source::Range(Range::new(-5, 16, 5).unwrap()), limits, 1);
        let shown: Vec<(u32, &str)> = parts.iter().map(|part| (part.chunks, &*part.body)).collect();
        assert_eq!(shown, [(3, r#"{"start":-5,"step":5,"end":10}"#), (2, r#"{"start":10,"step":5,"end":16}"#)]);
    }

    /// Whatever the sizes: parts stay within the limits, cutting is deterministic, and together they are the input.
    #[test]
    fn parts_are_the_input_within_the_limits() {
        for seed in 0..200 {
            let mut random = StdRng::seed_from_u64(seed);
            let count = random.random_range(0..300);
            let payloads: Vec<String> =
                (0..count).map(|_| format!("\"{}\"", "x".repeat(random.random_range(0..60)))).collect();
            let limits = Limits {
                part_chunks: random.random_range(1..100),
                part_bytes: random.random_range(62..400),
                payload_limit_bytes: 62,
            };
            let shards = random.random_range(1..5);
            let text = payloads.join("\n");
            let parts = all(chunks(&text), limits, shards);
            assert_eq!(parts, all(chunks(&text), limits, shards), "seed {seed}");
            let mut seen = Vec::new();
            for (index, part) in parts.iter().enumerate() {
                let Value::Array(values) = serde_json::from_str(&part.body).unwrap() else { panic!("no array") };
                let values: Vec<String> = values.iter().map(Value::to_string).collect();
                assert_eq!(part.part_no as usize, index);
                assert_eq!(part.chunks as usize, values.len());
                assert!(part.chunks >= 1 && part.chunks <= limits.part_chunks, "seed {seed}");
                assert!(values.iter().map(String::len).sum::<usize>() <= limits.part_bytes as usize, "seed {seed}");
                seen.extend(values);
            }
            assert_eq!(seen, payloads, "seed {seed}");
        }
    }

    #[test]
    fn a_wrong_line_ends_the_cutting() {
        let mut cutter = Cutter::new(chunks("1\n2\nx\n"), Limits { part_chunks: 2, ..LIMITS }, 1);
        assert_eq!(&*cutter.next_part().unwrap().unwrap().body, "[1,2]");
        assert_eq!(cutter.next_part().unwrap_err().line, 3);
    }
}
