//! Refuses requests of unknown senders.

use crate::app::App;
use crate::identity::Principal;
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// The principal of the request, for handlers.
pub(super) type Caller = Extension<Arc<Principal>>;

/// Refuses requests of unknown senders, and passes the principal of the others on.
pub(super) async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match crate::requests::identify::identify(&app, &mut request) {
        Ok(()) => next.run(request).await,
        Err(error) => error.into_response(),
    }
}
