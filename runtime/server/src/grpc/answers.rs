//! Counts answers by their status, which gRPC sends in the trailers.

use crate::app::App;
use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::Code;

/// A request in progress. If it is dropped without a status, it counts as cancelled by the client.
pub(super) struct Pending {
    app: Arc<App>,
    is_counted: bool,
}

impl Pending {
    pub(super) fn new(app: Arc<App>) -> Pending {
        Pending { app, is_counted: false }
    }

    fn note(&mut self, headers: &HeaderMap) {
        if let Some(status) = headers.get("grpc-status")
            && !self.is_counted
        {
            self.count(Code::from_bytes(status.as_bytes()));
        }
    }

    fn count(&mut self, code: Code) {
        self.is_counted = true;
        self.app.recorder.note_grpc(code);
    }

    /// Counts the answer now if its headers have a status, otherwise when its trailers are sent.
    pub(super) fn answered_by(mut self, response: Response) -> Response {
        self.note(response.headers());
        if self.is_counted { response } else { response.map(|body| Body::new(Counted { body, pending: self })) }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.is_counted {
            self.count(Code::Cancelled);
        }
    }
}

struct Counted {
    body: Body,
    pending: Pending,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
        {
            self.pending.note(trailers);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
