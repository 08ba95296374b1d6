//! Request bodies that report to their connection's place how fast they arrive.

use crate::places::Place;
use crate::tls::Wire;
use axum::body::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// The body of a request. In HTTP/1 it reports to its connection's place how fast it arrives.
pub(crate) struct ArrivingBody<B> {
    body: B,
    /// `None` once the body has arrived.
    place: Option<Arc<Place>>,
}

impl<B: Body<Data = Bytes> + Unpin> ArrivingBody<B> {
    pub(crate) fn new(body: B, place: &Arc<Place>, wire: Wire) -> ArrivingBody<B> {
        // Requests without a body take no time to arrive, and streams of HTTP/2 share a place.
        let is_watched = wire == Wire::Http1 && !body.is_end_stream();
        let place = is_watched.then(|| place.clone());
        place.iter().for_each(|place| place.note_body(true));
        ArrivingBody { body, place }
    }
}

impl<B> ArrivingBody<B> {
    fn end(&mut self) {
        if let Some(place) = self.place.take() {
            place.note_body(false);
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
            if let Some(place) = &self.place {
                place.note_body_bytes(bytes);
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
