//! The reference file: every key with what it is for, its range and its default.

use std::fmt::Write;

use serde_json::Value;

use super::Config;
use super::keys::{Key, Rule, SECTIONS, Section};

const HEAD: &str = "\
# Every setting of runherd, with its default. A setting that is left out has the default shown here.
#
# What stands here is overridden by the environment (RUNHERD__SECTION__KEY, such as RUNHERD__POOL__SIZE=16), and that by
# --set section.key=value. Durations are texts such as \"250ms\", \"30s\", \"1m 30s\", \"2h\". `runherd config check`
# looks for mistakes, `runherd config print` shows what is in force and where each value came from.
";

const TAIL: &str = "\
# A coordinator that was built with stages of its own (docs/custom-stages.md) has a section for each that wants one, under
# the stage's name. Each takes the two keys below, which override what the stage declares, and whatever else the stage
# takes. `runherd serve` has no such stages and refuses such sections.
# [stages.overdue_runs]

# How often the stage runs, beside the cycle.
# Allowed: 10ms to 1day.
# period = \"10s\"

# How long one cycle of the stage may take before it is aborted.
# Allowed: 100ms to 1h.
# deadline = \"1m\"
";

/// The text of `deploy/config/full.toml`.
///
/// Keys that have no default stand in comments, with an example.
#[must_use]
pub fn reference() -> String {
    // Values that serialise to maps and texts only: this cannot fail.
    let defaults = serde_json::to_value(Config::default()).unwrap_or_default();
    let sections: String = SECTIONS.iter().map(|section| section_text(section, &defaults)).collect();
    format!("{HEAD}\n{}\n\n{TAIL}", sections.trim_end())
}

fn section_text(section: &Section, defaults: &Value) -> String {
    let mut text = comment(section.about);
    let off = if section.name.contains('*') { "# " } else { "" };
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{off}[{}]\n", section.name.replace('*', "eu1"));
    for key in &section.keys {
        let default = &defaults[section.name][key.name];
        text.push_str(&comment(key.help));
        if default.is_null() {
            let _ = writeln!(text, "# {} = {}\n", key.name, example(key));
        } else {
            text.push_str(&comment(&format!("Allowed: {}.", key.rule.allowed())));
            let _ = writeln!(text, "{} = {default}\n", key.name);
        }
    }
    text
}

fn example(key: &Key) -> String {
    let database = if key.section == "control" { "runherd" } else { "runherd_eu1" };
    match key.rule {
        Rule::PostgresUrl => format!("\"postgresql://runherd@localhost:5432/{database}\""),
        Rule::AmqpUrl => "\"amqp://runherd@localhost:5672/runherd\"".to_owned(),
        Rule::Socket => "\"/run/runherd/control.sock\"".to_owned(),
        Rule::Address => "\"127.0.0.1:8642\"".to_owned(),
        _ => format!("\"/etc/runherd/{}.password\"", key.section.replace("placements.*", "eu1")),
    }
}

/// `text` as comment lines of at most 120 columns.
fn comment(text: &str) -> String {
    let mut lines = vec!["#".to_owned()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= 120 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(format!("# {word}")),
        }
    }
    lines.join("\n") + "\n"
}
