//! Connections to the control socket that begin a session: the first bytes of a greeting differ from
//! those of a control frame. Runs sessions on threads.

use super::begin::{Caller, Open, begin};
use crate::control::Control;
use crate::limits::FRAME_TIMEOUT;
use crate::shutdown::stopped;
use atoll_session::MAGIC;
use atoll_session_server::serve as serve_session;
use rustix::net::{RecvFlags, recv};
use std::io;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{oneshot, watch};

/// Pause before looking again whether more of the first bytes have arrived.
const PART_PAUSE: Duration = Duration::from_millis(1);

/// Whether a connection begins with the greeting of a session. The bytes stay in the socket. Waits
/// without limit for the first one.
pub(crate) async fn is_session(stream: &UnixStream) -> io::Result<bool> {
    let mut begun: Option<Instant> = None;
    loop {
        stream.readable().await?;
        let mut first = [0; MAGIC.len()];
        let peeked = stream.try_io(Interest::READABLE, || {
            let (count, _) = recv(stream, &mut first, RecvFlags::PEEK | RecvFlags::DONTWAIT)?;
            Ok(count)
        });
        match peeked {
            Ok(count) if count == MAGIC.len() => return Ok(first == MAGIC),
            Ok(count) if count == 0 || !MAGIC.starts_with(&first[..count]) => return Ok(false),
            Ok(_) if begun.get_or_insert_with(Instant::now).elapsed() > FRAME_TIMEOUT => return Ok(false),
            Ok(_) => tokio::time::sleep(PART_PAUSE).await,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

/// Serves a session of a user of this machine until it ends, or the daemon stops.
pub(crate) async fn serve(
    control: Arc<Control>,
    stream: UnixStream,
    uid: u32,
    stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let client = OwnedFd::from(stream.try_clone()?);
    run(control, (stream, client), Caller::User(uid), stop).await
}

/// Runs a session on a thread until it ends, or the daemon stops. The messages come through the
/// stream. `client` is the socket of the client, whose end cancels the session's work.
pub(super) async fn run(
    control: Arc<Control>,
    (stream, client): (StdStream, OwnedFd),
    caller: Caller,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let closing = Closing(stream.try_clone()?);
    let (ended, mut waits) = oneshot::channel();
    let runtime = tokio::runtime::Handle::current();
    let session = move || {
        // The compiler's queue belongs to the runtime.
        let _entered = runtime.enter();
        let open = Open::new(control.app.cuda.clone());
        let end = serve_session(stream, |hello, terms| begin(&control, &caller, (hello, terms), client));
        drop(open);
        match end.why {
            Some(why) => tracing::info!(%caller, why, "a CUDA session ended"),
            None => {
                let atoll_session::Report { calls, launches, .. } = end.report;
                tracing::info!(%caller, calls, launches, "a CUDA session ended");
            }
        }
        // The receiver is gone if the daemon stopped waiting for this session.
        let _ = ended.send(());
    };
    std::thread::Builder::new().name("cuda-session".to_owned()).spawn(session)?;
    tokio::select! {
        _ = &mut waits => {}
        () = stopped(&mut stop) => {
            drop(closing);
            let _ = waits.await;
        }
    }
    Ok(())
}

/// Closes the connection when it is dropped, which ends the session.
struct Closing(StdStream);

impl Drop for Closing {
    fn drop(&mut self) {
        // The client may have closed it already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}
