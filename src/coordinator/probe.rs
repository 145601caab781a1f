//! The HTTP probe: `GET /livez` and `GET /readyz`, for orchestrators and load balancers.
//!
//! 200 or 503, each with a JSON body that says why. It only reads the runtime's status: no question makes a stage or a database
//! work. A connection serves one question within a few seconds, and there are few at once, so that nobody can tie it up.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use slog::{Logger, debug, info, warn};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::health::Health;
use crate::config::{Config, ConfigError, Fault};
use crate::telemetry::field;

/// The most connections at once.
const CONNECTIONS: usize = 16;
/// How long one may last.
const LIMIT: Duration = Duration::from_secs(5);
/// After a connection could not be accepted: the process has no file descriptors left.
const RETRY: Duration = Duration::from_secs(1);

/// The probe's listener.
pub(super) struct Probe {
    listener: TcpListener,
}

impl Probe {
    /// Listens where the configuration says, if it does.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub(super) async fn bind(config: &Config, log: &Logger) -> Result<Option<Self>, ConfigError> {
        let Some(address) = config.runtime.probe_listen else { return Ok(None) };
        let listener = TcpListener::bind(address).await.map_err(|error| unusable(address, &error))?;
        let address = listener.local_addr().unwrap_or(address);
        info!(log, "the probe listens"; "address" => address.to_string());
        Ok(Some(Self { listener }))
    }

    /// Answers until it is aborted.
    pub(super) async fn serve(self, health: Health, log: Logger) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        // It is never closed.
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (health, log) = (health.clone(), log.clone());
                    tokio::spawn(async move {
                        converse(stream, health, &log).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    warn!(log, "the probe cannot accept a connection"; field::ERROR => %error);
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
    }
}

fn unusable(address: SocketAddr, error: &std::io::Error) -> ConfigError {
    ConfigError::of(Fault::Unusable {
        key: "runtime.probe_listen".to_owned(),
        value: address.to_string(),
        why: format!("cannot listen there: {error}"),
    })
}

async fn converse(stream: TcpStream, health: Health, log: &Logger) {
    let service = service_fn(move |request: Request<Incoming>| {
        let answer = answer(request.method(), request.uri().path(), &health);
        async move { Ok::<_, Infallible>(answer) }
    });
    let connection = http1::Builder::new().keep_alive(false).serve_connection(TokioIo::new(stream), service);
    match tokio::time::timeout(LIMIT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(log, "a probe was not answered"; field::ERROR => %error),
        Err(_) => debug!(log, "a probe was not answered"; field::ERROR => "it took too long"),
    }
}

fn answer(method: &Method, path: &str, health: &Health) -> Response<Full<Bytes>> {
    let (good, body) = match path {
        "/livez" => {
            let alive = health.is_alive();
            (alive, json!({ "alive": alive }))
        }
        "/readyz" => {
            let lacks = health.lacks();
            (lacks.is_empty(), json!({ "ready": lacks.is_empty(), "not_ready": lacks }))
        }
        _ => return response(StatusCode::NOT_FOUND, &json!({ "error": "ask for /livez or /readyz" })),
    };
    if !matches!(*method, Method::GET | Method::HEAD) {
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, &json!({ "error": "only GET is answered" }));
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    response(if good { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, &body)
}

fn response(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(format!("{body}\n")));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn before_the_stages_run_it_is_alive_and_not_ready() {
        let health = Health::default();
        let status = |method: Method, path: &str| answer(&method, path, &health).status().as_u16();
        assert_eq!(status(Method::GET, "/livez"), 200);
        assert_eq!(status(Method::HEAD, "/readyz"), 503);
        assert_eq!(status(Method::POST, "/readyz"), 405);
        assert_eq!(status(Method::GET, "/"), 404);
    }
}
