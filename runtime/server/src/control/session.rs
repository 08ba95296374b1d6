//! One connection: a request, its answer, and so on, until one side has enough.

use super::Control;
use super::access::Principal;
use super::invoke::Plans;
use super::refusal::{Blame, refused};
use crate::limits::FRAME_TIMEOUT;
use crate::listen::stopped;
use atoll_control::{
    Answer, Attachments, Frame, Incoming, Outgoing, Progress, Refusal, RefusalKind, Request, WireError,
};
use rustix::net::{RecvFlags, recv};
use std::collections::HashSet;
use std::io;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;

/// What a connection remembers between requests.
pub(super) struct Session {
    pub(super) principal: Principal,
    pub(super) plans: Plans,
    /// Functions whose names a trace has told.
    pub(super) heard_of: HashSet<u64>,
}

/// Serves a connection until its peer or the daemon ends it.
pub(super) async fn run(
    control: &Control,
    stream: UnixStream,
    uid: u32,
    mut stop: watch::Receiver<bool>,
) -> Result<(), WireError> {
    let mut session: Option<Session> = None;
    loop {
        let frame = tokio::select! {
            frame = receive(&stream) => frame,
            () = stopped(&mut stop) => return Ok(()),
        };
        let (request, attachments) = match frame.and_then(|frame| frame.map(Frame::decode).transpose()) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return Ok(()),
            // Where the next frame would begin is not known.
            Err(error) => return last_words(&stream, error).await,
        };
        let answered = tokio::select! {
            answered = answer(control, &mut session, uid, request, attachments) => answered,
            // A peer that goes away takes its request with it; one that talks into it does not keep to the protocol.
            () = readable(&stream) => return Ok(()),
        };
        let (answer, attachments) = answered.unwrap_or_else(refused);
        let frame = Outgoing::new(&answer, attachments).or_else(|error| {
            let message = format!("the answer does not fit a frame: {error}");
            Outgoing::new(&Answer::Refused(Refusal { kind: RefusalKind::BadRequest, message }), Attachments::default())
        })?;
        send(&stream, frame).await?;
    }
}

async fn answer(
    control: &Control,
    session: &mut Option<Session>,
    uid: u32,
    request: Request,
    attachments: Attachments,
) -> Result<(Answer, Attachments), Refusal> {
    let wanted = match &request {
        Request::Hello { tenant } => tenant.clone(),
        _ => None,
    };
    let begins = matches!(request, Request::Hello { .. });
    let session = match session {
        Some(session) if !begins => session,
        _ => session.insert(Session {
            principal: control.access.principal(uid, wanted).blame()?,
            plans: Plans::default(),
            heard_of: HashSet::new(),
        }),
    };
    control.answer(session, request, attachments).await
}

/// Tells a peer that speaks another language what is wrong, if it still listens, and ends.
async fn last_words(stream: &UnixStream, error: WireError) -> Result<(), WireError> {
    if !matches!(error, WireError::Io(_)) {
        let refusal = Refusal { kind: RefusalKind::BadRequest, message: error.to_string() };
        let frame = Outgoing::new(&Answer::Refused(refusal), Attachments::default())?;
        let _ = send(stream, frame).await;
    }
    Err(error)
}

/// The next frame; `None` when the peer is done. Waits for ever for its first byte, and not long
/// for the rest.
async fn receive(stream: &UnixStream) -> Result<Option<Frame>, WireError> {
    let mut incoming = Incoming::default();
    loop {
        let ready = stream.ready(Interest::READABLE);
        if incoming.has_begun() {
            timeout(FRAME_TIMEOUT, ready).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        } else {
            ready.await?;
        }
        match step(stream, Interest::READABLE, || incoming.step(stream))? {
            Some(Progress::Done(frame)) => return Ok(Some(frame)),
            Some(Progress::Closed) => return Ok(None),
            Some(Progress::More) | None => {}
        }
    }
}

async fn send(stream: &UnixStream, mut frame: Outgoing) -> Result<(), WireError> {
    loop {
        let ready = timeout(FRAME_TIMEOUT, stream.ready(Interest::WRITABLE)).await;
        ready.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        if let Some(Progress::Done(()) | Progress::Closed) =
            step(stream, Interest::WRITABLE, || Ok(frame.step(stream)?))?
        {
            return Ok(());
        }
    }
}

/// Tries once; `None` if the socket was not ready after all.
fn step<T>(
    stream: &UnixStream,
    interest: Interest,
    mut once: impl FnMut() -> Result<T, WireError>,
) -> Result<Option<T>, WireError> {
    let mut failure = None;
    let tried = stream.try_io(interest, || match once() {
        Ok(value) => Ok(value),
        Err(WireError::Io(error)) => Err(error),
        Err(error) => {
            failure = Some(error);
            Err(io::ErrorKind::Other.into())
        }
    });
    match (tried, failure) {
        (Ok(value), _) => Ok(Some(value)),
        (Err(_), Some(error)) => Err(error),
        (Err(error), None) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        (Err(error), None) => Err(error.into()),
    }
}

/// Returns when the peer has closed its side, or sent something.
async fn readable(stream: &UnixStream) {
    let look = || Ok(recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?);
    while stream.ready(Interest::READABLE).await.is_ok() {
        match step(stream, Interest::READABLE, || look().map_err(WireError::Io)) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return,
        }
    }
}
