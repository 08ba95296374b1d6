//! Finds out who sent a request, before anything else is done with it.

use super::error::ApiError;
use crate::app::App;
use crate::identity::{Peer, Principal};
use axum::extract::{Extension, Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

/// The principal of the request, for handlers.
pub(super) type Caller = Extension<Arc<Principal>>;

/// Refuses requests of unknown senders, and passes the principal of the others on.
pub(super) async fn identify(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    match app.gate.identify(request.headers(), request.extensions().get::<Peer>()) {
        Ok(principal) => {
            request.extensions_mut().insert(principal);
            next.run(request).await
        }
        Err(reason) => {
            app.refuse_unknown(reason);
            ApiError::unidentified(reason).into_response()
        }
    }
}
