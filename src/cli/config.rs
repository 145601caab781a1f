//! `runherd config check` and `runherd config print`: is the configuration right, and what is in force?
//!
//! Neither connects to anything, and neither shows a password.

use std::io::{self, Write};

use serde_json::{Map, Value, json};

use crate::config::{ConfigError, EXIT_CONFIG, Loaded, Origin};

/// Says `OK`, or everything that is wrong; returns the exit code of the process.
///
/// # Errors
/// `out` cannot be written.
pub fn check(loaded: &Result<Loaded, ConfigError>, out: &mut dyn Write) -> io::Result<u8> {
    match loaded {
        Ok(loaded) => {
            match &loaded.file {
                Some(file) => writeln!(out, "OK ({})", file.display())?,
                None => writeln!(out, "OK (no file)")?,
            }
            Ok(0)
        }
        Err(error) => {
            writeln!(out, "{error}")?;
            let problems = error.problems.len();
            writeln!(out, "{problems} problem{}", if problems == 1 { "" } else { "s" })?;
            Ok(EXIT_CONFIG)
        }
    }
}

/// Lists every setting with its value and its source: as `key = value  # source`, or as one JSON object by key.
///
/// # Errors
/// `out` cannot be written.
pub fn print(loaded: &Loaded, json: bool, out: &mut dyn Write) -> io::Result<()> {
    if json {
        return print_json(loaded, out);
    }
    for setting in loaded.settings() {
        match setting.value {
            Value::Null => writeln!(out, "# {} is not set", setting.key)?,
            value => writeln!(out, "{} = {value}  # {}", setting.key, setting.origin)?,
        }
    }
    Ok(())
}

fn print_json(loaded: &Loaded, out: &mut dyn Write) -> io::Result<()> {
    let by_key: Map<String, Value> = loaded
        .settings()
        .into_iter()
        .map(|setting| (setting.key, json!({ "value": setting.value, "source": source(&setting.origin) })))
        .collect();
    serde_json::to_writer_pretty(&mut *out, &by_key)?;
    writeln!(out)
}

fn source(origin: &Origin) -> Value {
    match origin {
        Origin::Default => json!({ "kind": "default" }),
        Origin::File { path, line } => json!({ "kind": "file", "path": path, "line": line }),
        Origin::Variable(name) => json!({ "kind": "variable", "name": name }),
        Origin::Flag(key) => json!({ "kind": "flag", "name": format!("--set {key}") }),
        Origin::Command => json!({ "kind": "command" }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Sources};

    fn sources() -> Sources {
        let url = ("RUNHERD__CONTROL__URL".to_owned(), "postgresql://u:hunter2@h/db".to_owned());
        Sources { environment: vec![url], sets: vec!["pool.size=9".to_owned()], ..Sources::default() }
    }

    fn text(write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> String {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_good_configuration_is_ok() {
        let mut out = Vec::new();
        assert_eq!(check(&Config::load(&sources()), &mut out).unwrap(), 0);
        assert_eq!(out, b"OK (no file)\n");
    }

    #[test]
    fn a_bad_one_is_listed_whole_and_has_its_own_exit_code() {
        let mut sources = sources();
        sources.sets = vec!["pool.size=0".to_owned(), "pool.sise=1".to_owned()];
        let mut out = Vec::new();
        assert_eq!(check(&Config::load(&sources), &mut out).unwrap(), 78);
        let expected = "--set pool.size: pool.size = 0: out of range; allowed: 1 to 200\n\
                        --set pool.sise: pool.sise: unknown key; did you mean pool.size?\n2 problems\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn print_names_sources_and_hides_passwords() {
        let loaded = Config::load(&sources()).unwrap();
        let shown = text(|out| print(&loaded, false, out));
        for line in [
            "control.url = \"postgresql://u:***@h/db\"  # variable RUNHERD__CONTROL__URL\n",
            "# control.password_file is not set\n",
            "pool.size = 9  # --set pool.size\n",
            "cycle.interval = \"1s\"  # default\n",
        ] {
            assert!(shown.contains(line), "{line}\n{shown}");
        }
        assert!(!shown.contains("hunter2"));
    }

    #[test]
    fn print_as_json() {
        let loaded = Config::load(&sources()).unwrap();
        let shown = text(|out| print(&loaded, true, out));
        assert!(!shown.contains("hunter2"));
        let shown: Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(shown["pool.size"], json!({ "value": 9, "source": { "kind": "flag", "name": "--set pool.size" } }));
        assert_eq!(shown["control.password_file"]["value"], Value::Null);
        assert_eq!(shown["log.level"], json!({ "value": "info", "source": { "kind": "default" } }));
    }
}
