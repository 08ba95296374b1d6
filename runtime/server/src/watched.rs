//! The stream of a connection: it tells the connection's place about its traffic, and ends if its
//! client does not read.

use crate::places::{Closed, ClosedCounts, Place};
use crate::tls::Wire;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// A stream that reports its traffic to the connection's place, and fails when the client reads
/// nothing for too long.
pub(crate) struct Watched<S> {
    stream: S,
    place: Arc<Place>,
    wire: Wire,
    write_pause: Duration,
    counts: Arc<ClosedCounts>,
    /// The timer of `write_pause`. It runs while bytes wait for the client.
    waits: Option<Pin<Box<Sleep>>>,
}

impl<S> Watched<S> {
    pub(crate) fn new(
        stream: S,
        place: Arc<Place>,
        wire: Wire,
        write_pause: Duration,
        counts: Arc<ClosedCounts>,
    ) -> Watched<S> {
        Watched { stream, place, wire, write_pause, counts, waits: None }
    }

    /// The result of an attempt to write. An error if nothing could be written for `write_pause`.
    fn written<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waits = None;
            return polled;
        }
        let pause = self.write_pause;
        let waits = self.waits.get_or_insert_with(|| Box::pin(tokio::time::sleep(pause)));
        if waits.as_mut().poll(context).is_pending() {
            return Poll::Pending;
        }
        self.waits = None;
        self.counts.note(Closed::NotReading);
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.place.note_read(self.wire);
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.place.note_write(self.wire);
        }
        self.written(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A successful flush does not stop the timer: without TLS a flush does nothing, so it does
        // not show that the client reads.
        match Pin::new(&mut self.stream).poll_flush(context) {
            Poll::Ready(flushed) => Poll::Ready(flushed),
            Poll::Pending => self.written(context, Poll::Pending),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.written(context, polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if matches!(polled, Poll::Ready(Ok(_))) {
            self.place.note_write(self.wire);
        }
        self.written(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
