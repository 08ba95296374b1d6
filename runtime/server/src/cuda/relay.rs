//! Bytes between one side of a session over the network and a connection to the other side. Both the
//! daemon and `atoll run` use it.

use crate::limits::{CUDA_ASK_TIME, CUDA_KEEPALIVE, CUDA_KEEPALIVE_TIMEOUT};
use atoll_session::{Channel, ChannelError};
use rustix::net::sockopt;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

/// Bytes that are read at once.
const PART_BYTES: usize = 64 << 10;

/// How long the other side has to read the last bytes before its connection is closed.
const PARTING_TIME: Duration = Duration::from_secs(1);

/// Most bytes that are read from a connection that is being closed, so that the other side can read
/// the last bytes: unread bytes would reset the connection.
const PARTING_BYTES: u64 = 64 << 10;

/// Unanswered TCP keepalive probes after which the connection counts as lost.
const PROBES: u32 = 3;

/// Enables TCP keepalive, so that the kernel detects when the peer machine is gone.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, CUDA_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, CUDA_KEEPALIVE_TIMEOUT / PROBES)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, CUDA_KEEPALIVE_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

/// A connection, with or without TLS.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Duplex for S {}

/// A request to [`carry`] while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steer {
    /// Send a keepalive probe, which the far side has to answer within [`CUDA_ASK_TIME`].
    Ask,
    /// The near side ends after the bytes that it has sent so far.
    Close,
}

/// Why [`carry`] has returned.
#[derive(Debug)]
pub enum Carried {
    /// The near side has ended, and the far side knows.
    Near,
    /// The far side has ended the session. Its last bytes are in the channel.
    Far,
    /// The connection is lost. The channel can continue on another one.
    Broken(io::Error),
    /// The far side does not keep to the protocol.
    Invalid(ChannelError),
}

/// Carries the bytes of a session between the near side (the program or the session) and a
/// connection to the far side, until one of them ends. The side that ends sends an end segment and
/// waits for that of the other side, so that a lost end segment is sent again on the next connection.
pub async fn carry<N, L>(
    channel: &mut Channel,
    connection: &mut N,
    near: &mut L,
    steer: &mut mpsc::Receiver<Steer>,
) -> Carried
where
    N: AsyncRead + AsyncWrite + Unpin,
    L: AsyncRead + AsyncWrite + Unpin,
{
    let (mut from_far, mut to_far) = split(connection);
    let (mut from_near, mut to_near) = split(near);
    let (mut arrived, mut read) = (vec![0; PART_BYTES], vec![0; PART_BYTES]);
    // Segments, of which the first `sent` bytes were sent.
    let (mut segments, mut sent) = (Vec::new(), 0);
    let (mut has_unflushed, mut is_steered, mut is_deaf, mut is_far_first) = (false, true, false, false);
    let mut asked: Option<Instant> = None;
    loop {
        if is_deaf {
            // The session no longer reads; its last bytes may state the reason.
            channel.consume(usize::MAX);
        }
        if sent == segments.len() {
            segments.clear();
            sent = 0;
            channel.fill(&mut segments);
        }
        let has_segments = sent < segments.len();
        let is_over = channel.is_ended() && channel.has_told_end() && !has_segments && !has_unflushed;
        if is_over {
            return if is_far_first { Carried::Far } else { Carried::Near };
        }
        // The far side may close the connection once it has ended.
        let broken = move |error: io::Error, channel: &Channel| match (channel.is_ended(), is_far_first) {
            (false, _) => Carried::Broken(error),
            (true, true) => Carried::Far,
            (true, false) => Carried::Near,
        };
        let room = channel.room().min(PART_BYTES);
        let (can_read, can_pass_on) = (room > 0 && !channel.is_closed(), !channel.ready().is_empty());
        let answers_until = asked.unwrap_or_else(Instant::now) + CUDA_ASK_TIME;
        let sending = async {
            if has_segments { to_far.write(&segments[sent..]).await } else { to_far.flush().await.map(|()| 0) }
        };
        tokio::select! {
            count = from_far.read(&mut arrived) => match count {
                Ok(0) => return broken(io::ErrorKind::UnexpectedEof.into(), channel),
                Ok(count) => {
                    asked = None;
                    if let Err(error) = channel.take(&arrived[..count]) {
                        return Carried::Invalid(error);
                    }
                    if channel.is_ended() && !channel.is_closed() {
                        channel.abandon();
                        is_far_first = true;
                    }
                }
                Err(error) => return broken(error, channel),
            },
            count = sending, if has_segments || has_unflushed => match count {
                Ok(0) if has_segments => return broken(io::ErrorKind::WriteZero.into(), channel),
                Ok(count) => {
                    sent += count;
                    has_unflushed = has_segments;
                }
                Err(error) => return broken(error, channel),
            },
            count = from_near.read(&mut read[..room]), if can_read => match count {
                Ok(0) | Err(_) => channel.close(),
                Ok(count) => channel.push(&read[..count]),
            },
            count = to_near.write(channel.ready()), if can_pass_on => match count {
                Ok(0) | Err(_) => is_deaf = true,
                Ok(count) => channel.consume(count),
            },
            request = steer.recv(), if is_steered => match request {
                Some(Steer::Ask) => {
                    channel.ask();
                    asked.get_or_insert_with(Instant::now);
                }
                Some(Steer::Close) => channel.close(),
                None => is_steered = false,
            },
            () = sleep_until(answers_until), if asked.is_some() => {
                return Carried::Broken(io::ErrorKind::TimedOut.into());
            }
        }
    }
}

/// Sends the last bytes on a connection and closes it. Waits a moment for the other side to close
/// it, so that it can read them.
pub(super) async fn part(connection: &mut (impl AsyncRead + AsyncWrite + Unpin), last: &[u8]) {
    let parting = async {
        connection.write_all(last).await?;
        connection.shutdown().await?;
        tokio::io::copy(&mut connection.take(PARTING_BYTES), &mut tokio::io::sink()).await
    };
    // The other side may be gone.
    let _ = timeout(PARTING_TIME, parting).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;

    /// One side that runs: the end that its program or session has, and what is left at the end.
    struct Side {
        near: DuplexStream,
        steer: mpsc::Sender<Steer>,
        running: JoinHandle<(Carried, Channel)>,
    }

    fn side(mut connection: DuplexStream, mut channel: Channel) -> Side {
        let (near, mut inner) = duplex(1 << 10);
        let (steer, mut steered) = mpsc::channel(1);
        let running = tokio::spawn(async move {
            let carried = carry(&mut channel, &mut connection, &mut inner, &mut steered).await;
            (carried, channel)
        });
        Side { near, steer, running }
    }

    fn sides() -> (Side, Side) {
        let (one, other) = duplex(1 << 10);
        (side(one, Channel::new()), side(other, Channel::new()))
    }

    #[tokio::test]
    async fn bytes_pass_both_ways_and_either_end_is_the_end() {
        for client_ends in [true, false] {
            let (mut client, mut session) = sides();
            let mut found = vec![0; 3 << 20];
            let sent: Vec<u8> = (0..found.len()).map(|at| (at / 3) as u8).collect();
            let (wrote, read) = tokio::join!(client.near.write_all(&sent), session.near.read_exact(&mut found));
            wrote.unwrap();
            assert!(read.is_ok() && found == sent);
            session.near.write_all(b"last words").await.unwrap();
            let mut words = [0; 10];
            client.near.read_exact(&mut words).await.unwrap();
            assert_eq!(&words, b"last words");
            if client_ends {
                client.steer.send(Steer::Close).await.unwrap();
                assert!(matches!(client.running.await.unwrap().0, Carried::Near));
                assert!(matches!(session.running.await.unwrap().0, Carried::Far));
            } else {
                drop(session.near);
                assert!(matches!(session.running.await.unwrap().0, Carried::Near));
                assert!(matches!(client.running.await.unwrap().0, Carried::Far));
            }
        }
    }

    #[tokio::test]
    async fn a_session_that_takes_no_more_is_still_heard() {
        let (mut client, far) = duplex(1 << 10);
        let (mut session, near) = duplex(1 << 10);
        session.write_all(b"refused").await.unwrap();
        drop(session);
        let (mut near, mut far, mut channel) = (near, far, Channel::new());
        let (_steer, mut steered) = mpsc::channel(1);
        let sent = [0u32.to_le_bytes().as_slice(), &100u32.to_le_bytes(), &0u64.to_le_bytes(), &[0; 100]].concat();
        client.write_all(&sent).await.unwrap();
        let carrying = tokio::spawn(async move { carry(&mut channel, &mut far, &mut near, &mut steered).await });
        let mut words = Vec::new();
        while !words.ends_with(&[3, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]) {
            words.push(client.read_u8().await.unwrap());
        }
        let end = [3u32.to_le_bytes().as_slice(), &[0; 4], &100u64.to_le_bytes()].concat();
        client.write_all(&end).await.unwrap();
        let carried = carrying.await.unwrap();
        assert!(matches!(carried, Carried::Near), "{carried:?}");
        assert!(words.windows(7).any(|part| part == b"refused"), "{words:?}");
    }

    #[tokio::test]
    async fn a_session_goes_on_with_another_connection() {
        let (mut client, mut session) = sides();
        client.near.write_all(b"before").await.unwrap();
        let mut found = [0; 6];
        session.near.read_exact(&mut found).await.unwrap();
        // The connection ends with the side that stops.
        client.running.abort();
        assert!(client.running.await.is_err());
        let (carried, mut channel) = session.running.await.unwrap();
        assert!(matches!(carried, Carried::Broken(_)), "{carried:?}");
        assert_eq!(channel.received(), 6);
        channel.resume(0).unwrap();
        let (one, other) = duplex(1 << 10);
        let mut session = side(one, channel);
        let mut again = Channel::new();
        again.push(b"before");
        again.fill(&mut Vec::new());
        again.resume(6).unwrap();
        let mut client = side(other, again);
        client.near.write_all(b" after").await.unwrap();
        session.near.read_exact(&mut found).await.unwrap();
        assert_eq!(&found, b" after");
    }

    #[tokio::test]
    async fn a_side_that_is_asked_answers_or_is_lost() {
        let (client, answering) = sides();
        answering.steer.send(Steer::Ask).await.unwrap();
        let (silent, near) = duplex(1 << 10);
        let session = side(near, Channel::new());
        session.steer.send(Steer::Ask).await.unwrap();
        let (carried, _) = session.running.await.unwrap();
        assert!(matches!(&carried, Carried::Broken(error) if error.kind() == io::ErrorKind::TimedOut), "{carried:?}");
        assert!(!answering.running.is_finished() && !client.running.is_finished(), "it was asked before, and answered");
        drop(silent);
    }

    #[tokio::test]
    async fn a_side_that_breaks_the_protocol_is_told_apart_from_one_that_is_lost() {
        let (mut client, near) = duplex(1 << 10);
        let session = side(near, Channel::new());
        client.write_all(&[0xff; 16]).await.unwrap();
        let (carried, _) = session.running.await.unwrap();
        assert!(matches!(carried, Carried::Invalid(_)), "{carried:?}");
    }
}
