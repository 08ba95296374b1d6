//! The dashboard: the files of its page, and snapshots of the daemon.

use super::identify::Caller;
use crate::app::App;
use crate::dashboard::{Hub, PageFile, Seat, Snapshot, collector, file as page_file};
use crate::identity::Principal;
use crate::limits::{DASHBOARD_STALL_MAX, DASHBOARD_STREAM_TIME, DASHBOARD_VIEWERS_MAX};
use crate::requests::error::{Kind, RequestError};
use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Redirect, Response};
use std::convert::Infallible;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;

/// Allows the page to load only files of this daemon, and forbids other pages to show it in a
/// frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

type Viewers = Extension<Arc<Hub<Snapshot>>>;

pub(super) async fn page() -> Result<Response, RequestError> {
    serve("")
}

/// Redirects `/ui/` to `/ui`, since names in the page are relative to `/ui`.
pub(super) async fn to_page() -> Redirect {
    Redirect::permanent("../ui")
}

pub(super) async fn file(Path(name): Path<String>) -> Result<Response, RequestError> {
    serve(&name)
}

fn serve(name: &str) -> Result<Response, RequestError> {
    let Some(PageFile { content_type, text }) = page_file(name) else {
        return Err(RequestError::new(Kind::NotFound, format!("the dashboard has no file `{name}`; its page is /ui")));
    };
    let headers = [
        (header::CONTENT_TYPE, content_type),
        (header::CACHE_CONTROL, "no-cache"),
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    Ok((headers, text).into_response())
}

pub(super) async fn snapshot(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Extension(hub): Viewers,
) -> Result<Response, RequestError> {
    let mut viewer = Viewer::new(app, hub, &caller)?;
    let view = viewer.next().await.ok_or_else(RequestError::panicked)?;
    Ok(([(header::CONTENT_TYPE, "application/json"), (header::CACHE_CONTROL, "no-store")], view).into_response())
}

/// A stream of views as server-sent events. It ends after [`DASHBOARD_STREAM_TIME`], or when the
/// daemon stops. A viewer that reads too slowly misses snapshots; one that does not read for
/// [`DASHBOARD_STALL_MAX`] is disconnected.
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Caller,
    Extension(hub): Viewers,
) -> Result<Response, RequestError> {
    let mut viewer = Viewer::new(app.clone(), hub, &caller)?;
    let (sender, receiver) = mpsc::channel::<Result<Bytes, Infallible>>(1);
    tokio::spawn(async move {
        let end = Instant::now() + DASHBOARD_STREAM_TIME;
        while Instant::now() < end && !app.is_draining() {
            let view = tokio::select! {
                view = viewer.next() => view,
                () = sender.closed() => return,
            };
            let Some(view) = view else { return };
            let event = Bytes::from([b"data: ", &view[..], b"\n\n"].concat());
            let sent = timeout(DASHBOARD_STALL_MAX, sender.send(Ok(event))).await;
            if !matches!(sent, Ok(Ok(()))) {
                return;
            }
        }
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-store")];
    Ok((headers, Body::from_stream(ReceiverStream::new(receiver))).into_response())
}

/// A client that watches the dashboard.
struct Viewer {
    principal: Principal,
    seat: Seat<Snapshot>,
}

impl Viewer {
    fn new(app: Arc<App>, hub: Arc<Hub<Snapshot>>, caller: &Principal) -> Result<Viewer, RequestError> {
        let principal = caller.on_dashboard();
        let seat = hub.join(&principal.tenant, || collector(app)).ok_or_else(|| {
            let text = format!(
                "the dashboard has too many viewers: at most {DASHBOARD_VIEWERS_MAX}, and fewer of one tenant; close \
                one, or try again later"
            );
            RequestError::new(Kind::Exhausted, text)
        })?;
        Ok(Viewer { principal, seat })
    }

    /// The next view, as JSON.
    async fn next(&mut self) -> Option<Bytes> {
        self.seat.next().await?.view(&self.principal).await
    }
}
