//! A statement from `sql/queries/`, under its name.

/// One statement: its name (`stage/verb`) for errors and logs, and its fixed text.
#[derive(Clone, Copy, Debug)]
pub struct Query {
    /// The path under `sql/queries/`, without the ending.
    pub name: &'static str,
    /// The statement.
    pub text: &'static str,
}

/// The statement in `sql/queries/<name>.sql`, as a [`Query`].
macro_rules! query {
    ($name:literal) => {
        $crate::store::query::Query {
            name: $name,
            text: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/sql/queries/", $name, ".sql")),
        }
    };
}
pub(crate) use query;
