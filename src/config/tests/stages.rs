//! The sections of stages that are not built in.

use super::*;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    #[serde(with = "humantime_serde")]
    limit: Duration,
    batch: u16,
    factor: f64,
    loud: bool,
    label: Option<String>,
    mode: Mode,
    inner: Inner,
    list: Vec<i64>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Inner {
    depth: u32,
    url: String,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    #[default]
    Soft,
    Hard,
}

fn settings(loaded: Result<Loaded, ConfigError>) -> Result<Settings, ConfigError> {
    loaded.unwrap().config.stage_settings("mine")
}

/// What a stage says about a file, with the file's path written as `F`.
fn complaint(text: &str) -> String {
    let (file, loaded) = from_file(text);
    settings(loaded).unwrap_err().to_string().replace(&file.0.display().to_string(), "F")
}

#[test]
fn a_section_is_kept_as_it_is_and_read_by_its_stage() {
    let text = "[stages.mine]\nlimit = \"1m\"\nbatch = 7\nfactor = 0.5\nloud = true\nmode = \"hard\"\nperiod = \"1s\"\n\
                list = [1, 2]\n[stages.mine.inner]\nurl = \"x\"\ndepth = 1\n";
    let (_file, loaded) = from_file(text);
    let loaded = loaded.unwrap();
    let inner = Inner { depth: 1, url: "x".to_owned() };
    let expected = Settings {
        limit: Duration::from_secs(60),
        batch: 7,
        factor: 0.5,
        loud: true,
        label: None,
        mode: Mode::Hard,
        inner,
        list: vec![1, 2],
    };
    assert_eq!(loaded.config.stage_settings::<Settings>("mine").unwrap(), expected);
    assert_eq!(loaded.config.stage_settings::<Settings>("other").unwrap(), Settings::default());
    assert_eq!(loaded.config.stages.period("mine"), Some(Duration::from_secs(1)));
    assert_eq!(loaded.config.stages.deadline("mine"), None);
}

#[test]
fn every_source_can_set_a_stages_keys_and_later_ones_win() {
    let file =
        TempFile::with("[stages.mine]\nbatch = 1\nlabel = \"file\"\ninner = { depth = 1, url = \"x\" }\nloud = true\n");
    let sources = Sources {
        file: Some(file.0.clone()),
        environment: pairs(&[
            ("RUNHERD__STAGES__MINE__BATCH", "2"),
            ("RUNHERD__STAGES__MINE__LIMIT", "2s"),
            ("RUNHERD__STAGES__MINE__INNER__DEPTH", "2"),
            ("RUNHERD__STAGES__MINE__FACTOR", "2.5"),
            ("RUNHERD__STAGES__MINE__LOUD", "false"),
            ("RUNHERD__STAGES__MINE__DEADLINE", "5s"),
        ]),
        sets: vec![
            "stages.mine.limit=3s".to_owned(),
            "stages.mine.label=5".to_owned(),
            "stages.mine.mode=hard".to_owned(),
        ],
        ..Sources::default()
    };
    let loaded = Config::load(&sources).unwrap();
    assert_eq!(loaded.origin("stages.mine.batch"), &Origin::Variable("RUNHERD__STAGES__MINE__BATCH".to_owned()));
    assert_eq!(loaded.config.stages.deadline("mine"), Some(Duration::from_secs(5)));
    let read: Settings = loaded.config.stage_settings("mine").unwrap();
    assert_eq!((read.limit, read.batch, read.factor, read.loud), (Duration::from_secs(3), 2, 2.5, false));
    assert_eq!((read.label.as_deref(), read.mode), (Some("5"), Mode::Hard));
    assert_eq!(read.inner, Inner { depth: 2, url: "x".to_owned() });
}

#[test]
fn what_a_stage_refuses_is_named_with_its_place() {
    for (text, said) in [
        ("[stages.mine]\n\nbatch = \"x\"\n", "F:3: stages.mine.batch: expected an integer, found string \"x\""),
        (
            "[stages.mine]\nbatch = 70000\n",
            "F:2: stages.mine.batch: expected an unsigned 16 bit integer, found 64-bit unsigned integer `70000`",
        ),
        (
            "[stages.mine]\nloud = true\nlimit = \"soon\"\n",
            "F:3: stages.mine.limit: invalid value: string \"soon\", expected a duration",
        ),
        ("[stages.mine]\nmode = \"odd\"\n", "F:2: stages.mine.mode: enum Mode does not have variant constructor odd"),
        ("[stages.mine]\nlist = [1, \"x\"]\n", "F:2: stages.mine.list: expected an integer, found string \"x\""),
        (
            "[stages.mine]\n[stages.mine.inner]\nurl = \"\"\ndepth = \"x\"\n",
            "F:4: stages.mine.inner.depth: expected an integer, found string \"x\"",
        ),
    ] {
        assert_eq!(complaint(text), said, "{text}");
    }
    let unknown = complaint("[stages.mine]\nbatch = 1\nbatsh = 1\n");
    assert!(
        unknown.starts_with("F:3: stages.mine.batsh: unknown field `batsh`, expected one of `limit`, `batch`"),
        "{unknown}"
    );
    let variable = settings(from_environment(&[("RUNHERD__STAGES__MINE__BATCH", "many")])).unwrap_err().to_string();
    assert_eq!(
        variable,
        "variable RUNHERD__STAGES__MINE__BATCH: stages.mine.batch: expected an integer, found string \"many\""
    );
    let flag = settings(from_flags(&["stages.mine.x=1"])).unwrap_err().to_string();
    assert!(flag.starts_with("--set stages.mine.x: stages.mine.x: unknown field `x`"), "{flag}");
}

#[derive(Debug, Deserialize)]
struct Demanding {
    #[expect(dead_code, reason = "it is never read successfully")]
    needed: u32,
}

#[test]
fn what_is_missing_says_how_to_set_it() {
    for loaded in [from_flags(&["stages.mine.other=1"]), from_flags(&[])] {
        let error = loaded.unwrap().config.stage_settings::<Demanding>("mine").unwrap_err().to_string();
        let expected = "stages.mine.needed is not set: write it into the configuration file (section [stages.mine], key needed), \
                        set the variable RUNHERD__STAGES__MINE__NEEDED, or pass --set stages.mine.needed=…";
        assert_eq!(error, expected);
    }
}

#[test]
fn the_runtimes_own_keys_are_checked_and_names_are_simple() {
    let text = "[stages]\nodd = 1\n[stages.mine]\nperiod = \"9ms\"\ndeadline = 5\n[stages.Mine]\nx = 1\n[stages.two]\nperiod = { x = 1 }\n";
    let name = "the name of a stage that has a section has 1 to 63 lower-case letters, digits, - and _";
    assert_eq!(
        complaints(text),
        [
            "F:2: stages.odd: a section, not a key: it takes no value of its own",
            "F:4: stages.mine.period = 9ms: out of range; allowed: 10ms to 1day",
            "F:5: stages.mine.deadline: expected a duration such as \"30s\" or \"1m 30s\", found the number 5",
            &format!("F:6: stages.Mine: {name}"),
            "F:9: stages.two.period.x: stages.two.period is a key, not a section",
        ]
    );
    assert_eq!(
        message(from_flags(&["stages.mine=1"])),
        "--set stages.mine: stages.mine: a section, not a key: it takes no value of its own"
    );
    assert_eq!(
        message(from_flags(&["stages.mine..x=1"])),
        "--set stages.mine..x: stages.mine..x: a part of the key is empty"
    );
}

#[test]
fn sections_of_stages_that_nobody_registered_are_refused_by_name() {
    let (file, loaded) = from_file("[stages.mine]\nx = 1\n\n[stages.mind]\n");
    let config = loaded.unwrap().config;
    let error = config.stages.check_names(&["mine", "other"]).unwrap_err().to_string();
    let expected = "F:4: stages.mind: no stage of this name is registered; did you mean stages.mine?";
    assert_eq!(error.replace(&file.0.display().to_string(), "F"), expected);
    assert!(config.stages.check_names(&["mine", "mind"]).is_ok());
    let built_in =
        from_flags(&["stages.finalizer.lease=1m"]).unwrap().config.stages.check_names(&["mine"]).unwrap_err();
    assert_eq!(
        built_in.to_string(),
        "--set stages.finalizer.lease: stages.finalizer: it is built in: its section is [finalizer]"
    );
    let nothing_near = config.stages.check_names(&[]).unwrap_err();
    assert_eq!(nothing_near.problems.len(), 2);
}

#[test]
fn they_are_listed_with_their_places_and_without_what_may_be_secret() {
    let loaded = from_flags(&[
        "stages.mine.url=amqp://u:hunter2@h/v",
        "stages.mine.api_token=hunter2",
        "stages.mine.password_file=/run/secrets/x",
        "stages.mine.inner.depth=1",
    ])
    .unwrap();
    let listed: Vec<Setting> =
        loaded.settings().into_iter().filter(|setting| setting.key.starts_with("stages.")).collect();
    let shown: Vec<_> = listed.iter().map(|setting| (setting.key.as_str(), setting.value.to_string())).collect();
    assert_eq!(
        shown,
        [
            ("stages.mine.api_token", "\"***\"".to_owned()),
            ("stages.mine.inner.depth", "\"1\"".to_owned()),
            ("stages.mine.password_file", "\"/run/secrets/x\"".to_owned()),
            ("stages.mine.url", "\"amqp://u:***@h/v\"".to_owned()),
        ]
    );
    assert_eq!(listed[0].origin, Origin::Flag("stages.mine.api_token".to_owned()));
    assert!(!format!("{loaded:?}").contains("hunter2"));
}
