//! Connections of one port: accept, serve, drain.

use crate::limits::{CONNECTIONS_MAX, HEAD_TIMEOUT};
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long to wait after the system refused a connection, mostly for want of file descriptors: trying again at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Serves a port until `stop` turns true, then lets the requests that run go on for `drain`.
pub(crate) async fn serve(listener: TcpListener, router: Router, mut stop: watch::Receiver<bool>, drain: Duration, open: Arc<AtomicUsize>) {
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let mut connections = JoinSet::new();
    loop {
        let accepted = async {
            // The semaphore is never closed.
            let permit = permits.clone().acquire_owned().await.ok();
            (permit, listener.accept().await)
        };
        tokio::select! {
            (permit, stream) = accepted => match stream {
                Ok((stream, _)) => {
                    let (router, stop, guard) = (router.clone(), stop.clone(), Counted::new(&open));
                    connections.spawn(async move {
                        connection(stream, router, stop).await;
                        drop((permit, guard));
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stop) => break,
        }
    }
    drop(listener);
    let finished = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(drain, finished).await.is_err() {
        tracing::warn!(connections = connections.len(), drain_s = drain.as_secs_f64(), "requests did not end in time and are cancelled");
        connections.shutdown().await;
    }
}

/// Serves one connection. When its client goes away the request that runs is dropped, and with it its invocation.
async fn connection(stream: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    // Without it an answer may wait 40 ms for the acknowledgement of the one before. It fails only on a connection that is gone.
    let _ = stream.set_nodelay(true);
    let service = TowerToHyperService::new(router);
    let mut served = pin!(
        http1::Builder::new().timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).serve_connection(TokioIo::new(stream), service)
    );
    let result = tokio::select! {
        result = served.as_mut() => result,
        () = stopped(&mut stop) => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Returns when it is time to stop, or whoever would say so is gone.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    let _ = stop.wait_for(|stop| *stop).await;
}

/// Counts itself as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(count: &Arc<AtomicUsize>) -> Counted {
        count.fetch_add(1, Ordering::Relaxed);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
