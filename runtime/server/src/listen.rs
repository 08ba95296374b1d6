//! Connections of one port: accept, serve, drain.

use crate::app::App;
use crate::arriving::{ArrivingBody, LeavingBody};
use crate::control::Control;
use crate::cuda;
use crate::grpc;
use crate::identity::{Peer, Reason};
use crate::limits::{HEADERS_BYTES_MAX, STREAMS_BROKEN_MAX, STREAMS_PER_CONNECTION_MAX, STREAMS_RESET_MAX};
use crate::places::{Closed, ConnectionLimits, Place, Places, Seat};
use crate::shutdown::stopped;
use crate::tls::{Tls, Wire};
use crate::watched::Watched;
use axum::Router;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::{http1, http2};
use hyper::service::Service as _;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Pause after `accept` failed, usually for lack of file descriptors. An immediate retry would only
/// use CPU time.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Interval of the check for idle connections.
const REAP_INTERVAL: Duration = Duration::from_millis(500);

/// How long a connection that was asked to close may stay open without a request.
const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// Interval of pings on an HTTP/2 connection. They detect a client that vanished while its requests
/// run.
const PING_INTERVAL: Duration = Duration::from_secs(60);

/// How long a client may take to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a connection without a request stays open after the server was asked to stop, if the
/// socket is inherited. A request that arrives in this time is answered, and the answer closes the
/// connection: its client goes on to the next daemon.
const LINGER: Duration = Duration::from_secs(1);

/// A listening socket.
pub(crate) struct Bound {
    pub(crate) listener: TcpListener,
    /// Whether the service manager passed it. It stays open when this process ends, and connections
    /// wait in it for the next one.
    pub(crate) is_inherited: bool,
}

/// What a port serves.
#[derive(Clone)]
pub(crate) enum Served {
    /// Requests over HTTP/1.1.
    Http1(Router),
    /// Requests over HTTP/2.
    Http2(Router),
    /// Sessions of CUDA programs.
    Sessions(Arc<Control>),
}

impl Served {
    fn wire(&self) -> Wire {
        match self {
            Served::Http1(_) => Wire::Http1,
            Served::Http2(_) => Wire::Http2,
            Served::Sessions(_) => Wire::Session,
        }
    }
}

/// A port, and the service on it.
pub(crate) struct Port {
    pub(crate) bound: Bound,
    /// If the socket is inherited, connections wait in it until this turns true.
    pub(crate) opened: Option<watch::Receiver<bool>>,
    pub(crate) served: Served,
    /// `None` for connections without TLS.
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) app: Arc<App>,
    pub(crate) limits: ConnectionLimits,
}

/// Serves a port until `stop` turns true, then lets running requests continue for `drain`. Counts
/// the open connections, and those that were closed for inactivity or to make room.
pub(crate) async fn serve(port: Port, mut stop: watch::Receiver<bool>, drain: Duration) {
    let Port { bound: Bound { listener, is_inherited }, opened, served, tls, app, limits } = port;
    if let Some(mut opened) = opened.filter(|_| is_inherited) {
        tokio::select! {
            () = stopped(&mut opened) => {}
            () = stopped(&mut stop) => return,
        }
    }
    let places = Places::new(limits, app.recorder.closed.clone());
    let service = Service { served, tls, app, limits, lingers: is_inherited, stop: stop.clone() };
    let mut reap = tokio::time::interval(REAP_INTERVAL);
    reap.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connections = JoinSet::new();
    let mut waiting: Option<(TcpStream, SocketAddr)> = None;
    let mut number = 0;
    loop {
        let next = async {
            // Accepts before it takes a place, so that other connections are closed for room only
            // if a client really waits.
            if waiting.is_none() {
                waiting = Some(listener.accept().await?);
            }
            Ok(places.take(number).await)
        };
        tokio::select! {
            taken = next => match taken {
                Ok(seat) => {
                    number += 1;
                    let Some((stream, address)) = waiting.take() else { continue };
                    start(&mut connections, &service, (stream, address), seat);
                }
                Err(error) => {
                    let error: std::io::Error = error;
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            _ = reap.tick() => places.reap(),
            Some(_) = connections.join_next() => {}
            () = stopped(&mut stop) => break,
        }
    }
    drop(listener);
    let finished = async {
        if let Some(stream) = waiting.filter(|_| is_inherited) {
            let seat = places.take(number).await;
            start(&mut connections, &service, stream, seat);
        }
        while connections.join_next().await.is_some() {}
        if let Served::Sessions(control) = &service.served {
            // Sessions outlive their connections.
            control.tickets.emptied().await;
        }
    };
    if tokio::time::timeout(drain, finished).await.is_err() {
        tracing::warn!(
            connections = connections.len(),
            drain_s = drain.as_secs_f64(),
            "cancelling requests that did not finish in time"
        );
        connections.shutdown().await;
    }
}

/// Serves a connection in a task of its own.
fn start(connections: &mut JoinSet<()>, service: &Service, (stream, address): (TcpStream, SocketAddr), seat: Seat) {
    let (service, guard) = (service.clone(), Counted::new(&service.app.recorder.connections));
    connections.spawn(async move {
        // Without TCP_NODELAY an answer may wait 40 ms for the acknowledgement of the previous one.
        // The call fails only on a closed connection.
        let _ = stream.set_nodelay(true);
        match (service.tls.clone(), Client::of(&stream, address, &service.served)) {
            (_, Err(error)) => tracing::debug!(%error, "a connection broke"),
            (None, Ok(client)) => connection(stream, client, service, &seat).await,
            (Some(tls), Ok(client)) => encrypted(stream, client, service, &tls, &seat).await,
        }
        drop((seat, guard));
    });
}

/// State that all connections of a port share.
#[derive(Clone)]
struct Service {
    served: Served,
    tls: Option<Arc<Tls>>,
    app: Arc<App>,
    limits: ConnectionLimits,
    /// Whether connections stay open for [`LINGER`] when the server stops.
    lingers: bool,
    stop: watch::Receiver<bool>,
}

/// The client of a connection.
struct Client {
    address: SocketAddr,
    /// The tenant of its certificate.
    peer: Option<Peer>,
}

impl Client {
    fn of(stream: &TcpStream, address: SocketAddr, served: &Served) -> std::io::Result<Client> {
        match served {
            Served::Sessions(_) => cuda::keep_alive(stream)?,
            Served::Http1(_) | Served::Http2(_) => {}
        }
        Ok(Client { address, peer: None })
    }
}

/// Serves one connection with TLS, after its handshake.
async fn encrypted(stream: TcpStream, client: Client, service: Service, tls: &Tls, seat: &Seat) {
    let mut stop = service.stop.clone();
    let wire = service.served.wire();
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(service.limits.head_timeout, tls.acceptor(wire).accept(stream)) => shaken,
        () = stopped(&mut stop), if !service.lingers => return,
        () = seat.place.closing() => return,
    };
    let app = &service.app;
    let stream = match shaken {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            app.refuse_unknown(Reason::Handshake);
            let address = client.address;
            return match wire {
                // A program waits for the session, and its user reads the log.
                Wire::Session => tracing::warn!(%address, %error, "the TLS handshake of a CUDA session failed"),
                Wire::Http1 | Wire::Http2 => tracing::debug!(%address, %error, "a TLS handshake failed"),
            };
        }
        Err(_) => return app.recorder.closed.note(Closed::SlowHandshake),
    };
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let peer = certificate.map(|certificate| app.gate.peer(certificate));
    connection(stream, Client { peer, ..client }, service, seat).await;
}

/// Serves one connection. If the client disconnects, the running requests are dropped, which
/// cancels their invocations.
async fn connection<S: AsyncRead + AsyncWrite + Send + Unpin + 'static>(
    stream: S,
    client: Client,
    service: Service,
    seat: &Seat,
) {
    let Service { served, stop, limits, app, lingers, .. } = service;
    let (place, wire) = (seat.place.clone(), served.wire());
    let stream = Watched::new(stream, place.clone(), wire, limits.write_pause, app.recorder.closed.clone());
    let Client { address, peer } = client;
    let router = match served {
        Served::Sessions(control) => {
            let remote = cuda::Remote { stream, address, peer };
            return cuda::serve_remote(control, remote, &place, stop).await;
        }
        Served::Http1(router) | Served::Http2(router) => TowerToHyperService::new(router),
    };
    let service = hyper::service::service_fn({
        let place = place.clone();
        move |mut request: hyper::Request<Incoming>| {
            if let Some(peer) = &peer {
                request.extensions_mut().insert(peer.clone());
            }
            let guard = place.request();
            request.extensions_mut().insert(guard.progress.clone());
            let answer = match wire == Wire::Http2 && place.is_over_share() {
                true => {
                    app.refuse_unknown(Reason::Streams);
                    Err(grpc::too_many_requests(&app))
                }
                false => Ok(router.call(request.map(|body| ArrivingBody::new(body, &guard.progress)))),
            };
            let place = place.clone();
            async move {
                let response = match answer {
                    Ok(answer) => answer.await?,
                    Err(refusal) => refusal,
                };
                let mut response = response.map(|body| LeavingBody::new(body, guard));
                if place.is_leaving() {
                    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
                }
                Ok::<_, Infallible>(response)
            }
        }
    });
    let stream = TokioIo::new(stream);
    let result = match wire {
        Wire::Http1 | Wire::Session => {
            let served = http1::Builder::new().header_read_timeout(None).serve_connection(stream, service);
            let linger = if lingers { Some(LINGER) } else { None };
            until_end(pin!(served), |served| served.graceful_shutdown(), stop, linger, &place).await
        }
        Wire::Http2 => {
            let served = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(PING_INTERVAL)
                .keep_alive_timeout(PING_TIMEOUT)
                .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
                .max_header_list_size(HEADERS_BYTES_MAX)
                .max_pending_accept_reset_streams(STREAMS_RESET_MAX)
                .max_local_error_reset_streams(STREAMS_BROKEN_MAX)
                .serve_connection(stream, service);
            // Tells the client not to begin more requests, and answers those that are on their way.
            until_end(pin!(served), |served| served.graceful_shutdown(), stop, None, &place).await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "a connection broke");
    }
}

/// Drives a connection until it ends. If the server stops or the connection has to close, calls
/// `finish`, which lets running requests end and then closes the connection. Before that, if the
/// server stops, the connection has `linger` for one more request.
async fn until_end<C: Future<Output = hyper::Result<()>>>(
    mut served: Pin<&mut C>,
    finish: fn(Pin<&mut C>),
    mut stop: watch::Receiver<bool>,
    linger: Option<Duration>,
    place: &Place,
) -> hyper::Result<()> {
    tokio::select! {
        result = served.as_mut() => result,
        () = stopped(&mut stop) => {
            if let Some(linger) = linger {
                place.leave();
                if let Ok(result) = tokio::time::timeout(linger, served.as_mut()).await {
                    return result;
                }
            }
            finish(served.as_mut());
            served.await
        }
        () = place.closing() => {
            if place.is_busy() && place.give_up() {
                // The body of its request may never arrive, and a new connection waits for the
                // place.
                return Ok(());
            }
            finish(served.as_mut());
            loop {
                tokio::select! {
                    result = served.as_mut() => break result,
                    // A request that arrived at the same moment is answered first, unless its body
                    // arrives too slowly.
                    () = tokio::time::sleep(CLOSE_GRACE) => if place.give_up() { break Ok(()) },
                }
            }
        }
    }
}

/// Counts the values of this type that exist.
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
