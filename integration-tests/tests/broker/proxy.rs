//! A broken network.

use runherd::broker::BrokerUrl;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, tcp};
use tokio::sync::watch;

/// A proxy that can stop forwarding without closing anything, and close without a word.
pub(crate) struct Proxy {
    pub(crate) url: String,
    pub(crate) frozen: watch::Sender<bool>,
    /// Counts what clients sent while it was frozen.
    pub(crate) held: watch::Receiver<u32>,
    /// Every change closes all connections.
    pub(crate) cut: watch::Sender<u32>,
}

impl Proxy {
    pub(crate) async fn before(url: &str) -> Self {
        let target: BrokerUrl = url.parse().unwrap();
        let upstream = (target.host().to_owned(), target.port());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (credentials, path) = (url.split_once('@').unwrap().0, url.rsplit_once('/').unwrap().1);
        let url = format!("{credentials}@{}/{path}", listener.local_addr().unwrap());
        let (frozen, gate) = watch::channel(false);
        let (held, holding) = watch::channel(0);
        let (cut, cutting) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(&upstream).await.unwrap();
                let (mut cutting, gate, held) = (cutting.clone(), gate.clone(), held.clone());
                cutting.mark_unchanged();
                tokio::spawn(async move {
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::select! {
                        () = forward(near_in, far_out, gate.clone(), Some(held)) => {}
                        () = forward(far_in, near_out, gate, None) => {}
                        _ = cutting.changed() => {}
                    }
                });
            }
        });
        Self { url, frozen, held: holding, cut }
    }
}

async fn forward(
    mut from: tcp::OwnedReadHalf,
    mut to: tcp::OwnedWriteHalf,
    mut frozen: watch::Receiver<bool>,
    held: Option<watch::Sender<u32>>,
) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if let Some(held) = held.as_ref().filter(|_| *frozen.borrow()) {
            held.send_modify(|held| *held += 1);
        }
        if frozen.wait_for(|frozen| !frozen).await.is_err() || to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}
