//! One connection: reads a request, sends its answer, and repeats.

use super::Control;
use super::invoke::Plans;
use super::refusal::{HasRefusalKind, OrRefuse, refused};
use super::ring::attend;
use super::seats::{MADE_ROOM, Seat};
use crate::identity::{Denied, Principal, Reason};
use crate::limits::{CONTROL_FILES_PER_USER_MAX, FRAME_TIMEOUT};
use crate::rings::worker::Running;
use crate::shutdown::stopped;
use atoll_control::{
    Answer, Attachments, Frame, Incoming, Outgoing, Progress, Refusal, RefusalKind, Request, WireError,
};
use atoll_engine::Tenant;
use rustix::net::{RecvFlags, recv};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

/// Most interim answers that wait to be sent.
const INTERIM_MAX: usize = 16;

/// State of a connection.
pub(super) struct Session {
    pub(super) principal: Principal,
    pub(super) plans: Plans,
    /// Numbers of the functions whose names were already sent with a trace.
    pub(super) announced: HashSet<u64>,
    /// The ring that the last request opened. The connection belongs to it.
    pub(super) ring: Option<Running>,
}

/// Sends answers that precede the last answer to a request.
#[derive(Clone)]
pub(super) struct Interim(mpsc::Sender<Answer>);

impl Interim {
    /// Queues an answer. Drops it if [`INTERIM_MAX`] answers already wait because the peer reads
    /// slowly or not at all.
    pub(super) fn send(&self, answer: Answer) {
        // Also drops the answer if the connection is closed; the request continues.
        let _ = self.0.try_send(answer);
    }
}

/// Serves a connection until the peer closes it, the daemon stops, or an error occurs.
pub(super) async fn run(
    control: &Arc<Control>,
    stream: UnixStream,
    uid: u32,
    seat: &Seat<'_>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), WireError> {
    let mut session: Option<Session> = None;
    loop {
        let frame = tokio::select! {
            frame = receive(control, &stream, seat) => frame,
            () = seat.closing() => {
                turn_away(&stream, MADE_ROOM.into());
                return Ok(());
            }
            () = stopped(&mut stop) => return Ok(()),
        };
        if !seat.works() {
            turn_away(&stream, MADE_ROOM.into());
            return Ok(());
        }
        let (request, attachments) = match frame.and_then(|frame| frame.map(Frame::decode).transpose()) {
            Ok(Some(decoded)) => decoded,
            Ok(None) => return Ok(()),
            // After an error the start of the next frame is unknown, so the connection ends.
            Err(error) => return report_protocol_error(&stream, error).await,
        };
        let (interim, mut earlier) = mpsc::channel(INTERIM_MAX);
        let answered = {
            let work = answer(control, &mut session, uid, request, attachments, Interim(interim));
            let mut answering = std::pin::pin!(work);
            loop {
                tokio::select! {
                    biased;
                    Some(answer) = earlier.recv() => {
                        send(&stream, Outgoing::new(&answer, Attachments::default())?).await?;
                    }
                    answered = &mut answering => break answered,
                    // A peer that disconnects cancels its request. Sending the next request before
                    // the answer violates the protocol.
                    () = readable(&stream) => return Ok(()),
                }
            }
        };
        let (answer, attachments) = answered.unwrap_or_else(refused);
        let frame = Outgoing::new(&answer, attachments).or_else(|error| {
            let message = format!("the answer does not fit a frame: {error}");
            Outgoing::new(&Answer::Refused(Refusal { kind: RefusalKind::BadRequest, message }), Attachments::default())
        })?;
        // The request is answered, so its files no longer count. They are closed, unless a deferred
        // call still holds them.
        let _ = seat.hold(0);
        send(&stream, frame).await?;
        if let Some(ring) = session.as_mut().and_then(|session| session.ring.take()) {
            let Some(refusal) = attend(ring, readable(&stream), stopped(&mut stop)).await else { return Ok(()) };
            return send(&stream, Outgoing::new(&Answer::Refused(refusal), Attachments::default())?).await;
        }
        seat.waits();
    }
}

/// Tells a peer why its connection is closed, if that can be sent at once.
pub(super) fn turn_away(stream: &UnixStream, message: String) {
    let refusal = Answer::Refused(Refusal { kind: RefusalKind::Busy, message });
    if let Ok(mut frame) = Outgoing::new(&refusal, Attachments::default()) {
        let _ = frame.step(stream);
    }
}

impl Control {
    pub(crate) fn principal(&self, uid: u32, wanted: Option<Tenant>) -> Result<Principal, Denied> {
        let found = self.app.gate.access().principal(uid, wanted);
        found.inspect_err(|_| self.app.refuse_unknown(Reason::User))
    }
}

async fn answer(
    control: &Arc<Control>,
    session: &mut Option<Session>,
    uid: u32,
    request: Request,
    attachments: Attachments,
    interim: Interim,
) -> Result<(Answer, Attachments), Refusal> {
    let wanted = match &request {
        Request::Hello { tenant } => tenant.clone(),
        _ => None,
    };
    let begins = matches!(request, Request::Hello { .. });
    let session = match session {
        Some(session) if !begins => session,
        _ => session.insert(Session {
            principal: control.principal(uid, wanted).or_refuse()?,
            plans: Plans::default(),
            announced: HashSet::new(),
            ring: None,
        }),
    };
    control.answer(session, request, attachments, interim).await
}

/// Sends the reason for a protocol error, if the peer still reads, and ends the connection.
async fn report_protocol_error(stream: &UnixStream, error: WireError) -> Result<(), WireError> {
    if !matches!(error, WireError::Io(_)) {
        let refusal = Refusal { kind: error.kind(), message: error.to_string() };
        let frame = Outgoing::new(&Answer::Refused(refusal), Attachments::default())?;
        let _ = send(stream, frame).await;
    }
    Err(error)
}

/// The next frame; `None` if the peer closed the connection. Waits without limit for the first
/// byte, and up to [`FRAME_TIMEOUT`] for each further part.
async fn receive(control: &Control, stream: &UnixStream, seat: &Seat<'_>) -> Result<Option<Frame>, WireError> {
    let mut incoming = Incoming::default();
    loop {
        let ready = stream.ready(Interest::READABLE);
        if incoming.has_begun() {
            timeout(FRAME_TIMEOUT, ready).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        } else {
            ready.await?;
        }
        match step(stream, Interest::READABLE, || incoming.step(stream))? {
            Some(Progress::Done(frame)) => {
                hold(control, seat, frame.files())?;
                return Ok(Some(frame));
            }
            Some(Progress::Closed) => return Ok(None),
            Some(Progress::More) => hold(control, seat, incoming.files())?,
            None => {}
        }
    }
}

/// Counts the files of a frame that has arrived in part or whole.
fn hold(control: &Control, seat: &Seat<'_>, files: usize) -> Result<(), WireError> {
    let limit = CONTROL_FILES_PER_USER_MAX;
    let held = seat.hold(files).inspect_err(|_| control.app.refuse_unknown(Reason::Files));
    held.map_err(|found| WireError::FilesOfUser { found, limit })
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

/// Tries the operation once; `None` if the socket was not ready.
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

/// Returns when the peer has sent something or closed its side.
async fn readable(stream: &UnixStream) {
    let look = || Ok(recv(stream, &mut [0_u8; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT)?);
    while stream.ready(Interest::READABLE).await.is_ok() {
        match step(stream, Interest::READABLE, || look().map_err(WireError::Io)) {
            Ok(None) => {}
            Ok(Some(_)) | Err(_) => return,
        }
    }
}
