//! Identifies the sender of a request, before the request is processed further.

use super::error::RequestError;
use crate::access_log::note_sender;
use crate::app::App;
use crate::identity::Peer;
use axum::extract::Request;

/// Adds the sender, an `Arc<Principal>`, to the extensions of the request for handlers. An error if
/// the sender is unknown.
pub(crate) fn identify(app: &App, request: &mut Request) -> Result<(), RequestError> {
    match app.gate.identify(request.headers(), request.extensions().get::<Peer>()) {
        Ok(principal) => {
            note_sender(&principal.tenant);
            request.extensions_mut().insert(principal);
            Ok(())
        }
        Err(reason) => {
            app.refuse_unknown(reason);
            Err(RequestError::unidentified(reason))
        }
    }
}
