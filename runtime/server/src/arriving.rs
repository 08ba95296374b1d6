//! Request bodies that report how fast they arrive, and response bodies that report how fast the
//! client reads them.

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
    /// Size of the last part in bytes. The connection may still be sending it.
    last: usize,
}

impl LeavingBody {
    /// Sending the head of the answer depends on the client, too.
    pub(crate) fn new(body: axum::body::Body, request: RequestGuard) -> LeavingBody {
        request.progress.begin_leaving(0);
        LeavingBody { body, request, last: 0 }
    }
}

impl Body for LeavingBody {
    type Data = Bytes;
    type Error = axum::Error;

    /// After a part, the connection polls again once it can send that part, which requires that it
    /// has sent the part before. So between a part and the next call the answer waits for the client,
    /// and while a call is pending it waits for the server.
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
