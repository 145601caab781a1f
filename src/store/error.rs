//! What can go wrong with a database, told apart by what to do about it.

use std::error::Error as StdError;

use runherd_actors::runtime::report::StageError;
use tokio_postgres::error::SqlState;

/// An error of one operation on one database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be reached, is shutting down, is read-only, or took too long: try again later.
    #[error("database {database} is not available while doing {doing}")]
    Unavailable {
        /// Its name in the configuration.
        database: String,
        /// The statement, or what else was being done.
        doing: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
    /// The schema is missing or is not the one that this program needs.
    #[error("database {database}: {reason}")]
    Schema {
        /// Its name in the configuration.
        database: String,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// This is not the database that the configuration means.
    #[error("database {database}: {reason}")]
    Identity {
        /// Its name in the configuration.
        database: String,
        /// What was found instead.
        reason: String,
    },
    /// A client function refused (RH4xx); the message says what, where and what to do.
    #[error("{message}")]
    Refused {
        /// `RH400`, `RH404`, `RH409` or `RH410`.
        code: String,
        /// The function's own words.
        message: String,
        /// The run that stands in the way, if one does.
        run_id: Option<uuid::Uuid>,
    },
    /// The role may not do this.
    #[error(
        "database {database}: the role has no right to do {doing}; `runherd migrate` grants rights to runherd_coordinator, runherd_worker, runherd_client and runherd_readonly: make the role a member of the one it needs"
    )]
    Denied {
        /// Its name in the configuration.
        database: String,
        /// The statement.
        doing: String,
        /// What the server said.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The statement failed in a way that trying again will not mend.
    #[error("database {database}: {doing} failed")]
    Failed {
        /// Its name in the configuration.
        database: String,
        /// The statement.
        doing: String,
        /// Why.
        #[source]
        source: Box<dyn StdError + Send + Sync>,
    },
}

impl StoreError {
    /// Sorts a driver's error.
    #[must_use]
    pub fn from_driver(database: &str, doing: &str, error: tokio_postgres::Error) -> Self {
        let database = database.to_owned();
        let doing = doing.to_owned();
        let Some(server) = error.as_db_error() else {
            // Without the server's own word: the connection broke, or never was. A value that cannot be converted is ours.
            return if is_conversion(&error) {
                Self::Failed { database, doing, source: error.into() }
            } else {
                Self::Unavailable { database, doing, source: error.into() }
            };
        };
        let code = server.code().code();
        if code.starts_with("RH4") {
            let run_id = server.detail().and_then(|detail| uuid::Uuid::parse_str(detail).ok());
            return Self::Refused { code: code.to_owned(), message: server.message().to_owned(), run_id };
        }
        match server.code() {
            &SqlState::UNDEFINED_TABLE
            | &SqlState::UNDEFINED_FUNCTION
            | &SqlState::UNDEFINED_COLUMN
            | &SqlState::INVALID_SCHEMA_NAME => Self::Schema {
                database,
                reason: format!(
                    "the schema runherd is missing or too old ({}); run `runherd migrate`",
                    server.message()
                ),
            },
            &SqlState::INSUFFICIENT_PRIVILEGE => Self::Denied { database, doing, source: error },
            state if is_passing(state) => Self::Unavailable { database, doing, source: error.into() },
            _ => Self::Failed { database, doing, source: error.into() },
        }
    }

    /// What a stage reports for it.
    #[must_use]
    pub fn into_stage_error(self) -> StageError {
        let doing = match &self {
            Self::Unavailable { database, doing, .. } => format!("{doing} on {database}"),
            _ => "working with PostgreSQL".to_owned(),
        };
        match self {
            // A refused identity or missing schema is an operator's business: restarting would not mend it.
            Self::Unavailable { .. } | Self::Schema { .. } | Self::Identity { .. } | Self::Denied { .. } => {
                StageError::transient(doing, self)
            }
            Self::Refused { .. } | Self::Failed { .. } => StageError::failed(doing, self),
        }
    }

    /// Whether the database could not be reached or asked to be tried again later.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. })
    }
}

impl From<StoreError> for StageError {
    fn from(error: StoreError) -> Self {
        error.into_stage_error()
    }
}

/// Whether the one place that runs transactions should simply run this one again.
#[must_use]
pub(crate) fn is_retryable(error: &tokio_postgres::Error) -> bool {
    matches!(error.code(), Some(&SqlState::T_R_DEADLOCK_DETECTED | &SqlState::T_R_SERIALIZATION_FAILURE))
}

fn is_conversion(error: &tokio_postgres::Error) -> bool {
    let text = error.to_string();
    text.starts_with("error serializing")
        || text.starts_with("error deserializing")
        || text.starts_with("invalid column")
}

/// States that pass by themselves: lost connections, shutdowns, limits, time-outs, a read-only standby.
fn is_passing(state: &SqlState) -> bool {
    let code = state.code();
    code.starts_with("08")
        || code.starts_with("53")
        || code.starts_with("57")
        || code == "25006"
        || code == "25P03"
        || code == "55P03"
        || code == "40P01"
        || code == "40001"
        || code == "28P01"
        || code == "28000"
        || code == "3D000"
}
