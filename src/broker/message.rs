//! A message as AMQP wants it, and what AMQP cannot carry.
//!
//! Promises that whatever passes [`check`] cannot break the connection by its lengths. The broker closes the whole
//! connection over a message id of 256 bytes, although sending it succeeds: so it has to be found here. Does not know
//! whether the exchange exists.

use amiquip::{AmqpProperties, AmqpValue, FieldTable};
use runherd_actors::stages::outbox_publisher::Message;
use serde_json::Value;

/// AMQP's short strings end here, in bytes.
const SHORT_STRING_MAX: usize = 255;
/// Headers travel in one frame, which is 128 KiB unless an operator lowered it.
const HEADERS_MAX: usize = 32 * 1024;
/// Who says so, in every message.
const APP_ID: &str = "runherd";
const PERSISTENT: u8 = 2;

/// Says why a message cannot be sent at all, if so.
pub(super) fn check(message: &Message) -> Result<(), String> {
    if message.dedupe_key.is_empty() {
        return Err("the message id is empty: a returned message could not be recognised".to_owned());
    }
    let short = [
        ("message id", &message.dedupe_key),
        ("exchange", &message.exchange),
        ("routing key", &message.routing_key),
        ("type", &message.kind),
    ];
    for (what, text) in short {
        check_short(what, text)?;
    }
    let mut total = 0;
    for (key, value) in &message.headers {
        check_short("header key", key)?;
        let value_size = match value {
            Value::String(text) => text.len(),
            Value::Number(number) if number.is_i64() => 8,
            _ => return Err(format!("the header {key:?} is neither a string nor a 64-bit integer")),
        };
        total += key.len() + value_size + 8;
    }
    match total {
        0..=HEADERS_MAX => Ok(()),
        _ => Err(format!("the headers take {total} bytes, and {HEADERS_MAX} is the most")),
    }
}

fn check_short(what: &str, text: &str) -> Result<(), String> {
    match text.len() {
        0..=SHORT_STRING_MAX => Ok(()),
        length => Err(format!("the {what} has {length} bytes, and AMQP carries at most {SHORT_STRING_MAX}")),
    }
}

/// The properties of a message that passed [`check`].
pub(super) fn properties(message: &Message) -> AmqpProperties {
    let mut headers = FieldTable::new();
    for (key, value) in &message.headers {
        let value = match value {
            Value::String(text) => AmqpValue::LongString(text.clone()),
            other => AmqpValue::LongLongInt(other.as_i64().unwrap_or_default()),
        };
        headers.insert(key.clone(), value);
    }
    AmqpProperties::default()
        .with_content_type("application/json".to_owned())
        .with_headers(headers)
        .with_delivery_mode(PERSISTENT)
        .with_message_id(message.dedupe_key.clone())
        .with_timestamp(message.created_at)
        .with_type_(message.kind.clone())
        .with_app_id(APP_ID.to_owned())
}

/// Headers as they come back, strings and integers only: nothing else is ever sent.
pub(super) fn read_headers(table: FieldTable) -> serde_json::Map<String, Value> {
    let read = |value| match value {
        AmqpValue::LongString(text) => Some(Value::from(text)),
        AmqpValue::LongLongInt(n) => Some(Value::from(n)),
        AmqpValue::LongInt(n) => Some(Value::from(n)),
        _ => None,
    };
    table.into_iter().filter_map(|(key, value)| Some((key, read(value)?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message() -> Message {
        Message {
            event_id: 1,
            dedupe_key: "é".repeat(127),
            exchange: "x".repeat(255),
            routing_key: "k".repeat(255),
            kind: "t".repeat(255),
            created_at: 1,
            headers: serde_json::Map::from_iter([
                ("h".repeat(255), Value::from("v")),
                ("n".to_owned(), Value::from(-1)),
            ]),
            payload: Vec::new(),
        }
    }

    #[test]
    fn lengths_are_counted_in_bytes() {
        assert_eq!(check(&message()), Ok(()));
        let refused = |change: fn(&mut Message)| {
            let mut m = message();
            change(&mut m);
            check(&m).unwrap_err()
        };
        // 128 characters, 256 bytes.
        assert!(refused(|m| m.dedupe_key.push('é')).contains("message id has 256 bytes"));
        assert!(refused(|m| m.routing_key.push('k')).contains("routing key"));
        assert!(refused(|m| m.exchange.push('x')).contains("exchange"));
        assert!(refused(|m| m.kind.push('t')).contains("type"));
        assert!(refused(|m| m.dedupe_key.clear()).contains("empty"));
        assert!(refused(|m| _ = m.headers.insert("h".repeat(256), Value::from(1))).contains("header key"));
        assert!(refused(|m| _ = m.headers.insert("b".to_owned(), Value::from(true))).contains("neither"));
        assert!(refused(|m| _ = m.headers.insert("u".to_owned(), Value::from(u64::MAX))).contains("neither"));
        assert!(refused(|m| _ = m.headers.insert("l".to_owned(), Value::from("l".repeat(40_000)))).contains("headers"));
    }

    #[test]
    fn headers_survive_the_journey() {
        let m = message();
        let sent = properties(&m).headers().clone().unwrap();
        assert_eq!(read_headers(sent), m.headers);
    }
}
