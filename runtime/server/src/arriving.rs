//! Request bodies that report how fast they arrive, and bodies of answers that report how fast they
//! are taken.

use crate::places::RequestGuard;
use crate::progress::Progress;
use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The body of a request. It reports how fast it arrives.
pub(crate) struct ArrivingBody<B> {
    body: B,
    /// `None` once the body has arrived.
    progress: Option<Arc<Progress>>,
}

impl<B: Body<Data = Bytes> + Unpin> ArrivingBody<B> {
    pub(crate) fn new(body: B, progress: &Arc<Progress>) -> ArrivingBody<B> {
        // Requests without a body take no time to arrive.
        let progress = (!body.is_end_stream()).then(|| progress.clone());
        progress.iter().for_each(|progress| progress.begin_arriving(0));
        ArrivingBody { body, progress }
    }
}

impl<B> ArrivingBody<B> {
    fn end(&mut self) {
        if let Some(progress) = self.progress.take() {
            progress.end_arriving();
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ArrivingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(frame) = &polled {
            let bytes = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref()).map_or(0, Bytes::len);
            if let Some(progress) = &self.progress {
                progress.note_arrived(bytes);
            }
            if frame.as_ref().is_none_or(Result::is_err) || self.body.is_end_stream() {
                self.end();
            }
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

impl<B> Drop for ArrivingBody<B> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The body of an answer. The request counts as finished when the body is dropped, after it was
/// written.
pub(crate) struct LeavingBody {
    body: axum::body::Body,
    request: RequestGuard,
    /// Bytes of the last part, which the connection may still have.
    last: usize,
}

impl LeavingBody {
    /// The answer's head waits for the client, too.
    pub(crate) fn new(body: axum::body::Body, request: RequestGuard) -> LeavingBody {
        request.progress.begin_leaving(0);
        LeavingBody { body, request, last: 0 }
    }
}

impl Body for LeavingBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// The connection asks for the next part once a part may leave, for which the one before has to
    /// be gone. So between a part and the next call, the answer waits for the client; while a call
    /// waits, for the server.
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.request.progress.end_leaving();
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.request.progress.begin_leaving(self.last);
            self.last = frame.data_ref().map_or(0, Bytes::len);
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
