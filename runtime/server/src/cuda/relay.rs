//! Bytes between a client of a session and the session.

use crate::limits::{CUDA_KEEPALIVE, CUDA_KEEPALIVE_TIMEOUT};
use rustix::net::sockopt;
use std::io;
use std::pin::pin;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;

/// Bytes that are passed on at once.
const PART_BYTES: usize = 64 << 10;

/// Unanswered questions of the system after which the other machine counts as gone.
const PROBES: u32 = 3;

/// Makes the system notice that the other machine of a session's connection has vanished.
pub fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, CUDA_KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, CUDA_KEEPALIVE_TIMEOUT / PROBES)?;
    sockopt::set_tcp_keepcnt(stream, PROBES)?;
    sockopt::set_tcp_user_timeout(stream, CUDA_KEEPALIVE_TIMEOUT.as_millis() as u32)?;
    Ok(())
}

/// Which side ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Source,
    Sink,
}

/// Passes bytes between the client of a session and the session until one of them ends. What the
/// session has sent before it ended reaches the client.
pub async fn relay<C, S>(client: C, session: S)
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (from_client, to_client) = split(client);
    let (from_session, to_session) = split(session);
    let mut back = pin!(pass(from_session, to_client));
    tokio::select! {
        ended = pass(from_client, to_session) => {
            if ended == Ended::Sink {
                // The session takes no more; its last bytes may say why.
                back.await;
            }
        }
        _ = back.as_mut() => {}
    }
}

/// Passes bytes on until one side ends.
async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> Ended {
    let mut part = vec![0; PART_BYTES];
    loop {
        let count = match from.read(&mut part).await {
            Ok(0) | Err(_) => return Ended::Source,
            Ok(count) => count,
        };
        if to.write_all(&part[..count]).await.is_err() || to.flush().await.is_err() {
            return Ended::Sink;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::duplex;

    #[tokio::test]
    async fn bytes_pass_both_ways_and_either_end_is_the_end() {
        for client_ends in [true, false] {
            let ((mut client, near), (mut session, far)) = (duplex(1 << 10), duplex(1 << 10));
            let passing = tokio::spawn(relay(near, far));
            let mut found = vec![0; 3 * PART_BYTES];
            let sent: Vec<u8> = (0..found.len()).map(|at| at as u8).collect();
            let (wrote, read) = tokio::join!(client.write_all(&sent), session.read_exact(&mut found));
            wrote.unwrap();
            assert!(read.is_ok() && found == sent);
            session.write_all(b"last words").await.unwrap();
            if client_ends {
                let mut words = [0; 10];
                client.read_exact(&mut words).await.unwrap();
                drop(client);
                assert_eq!(session.read(&mut found).await.unwrap(), 0);
            } else {
                drop(session);
                let mut words = Vec::new();
                client.read_to_end(&mut words).await.unwrap();
                assert_eq!(words, b"last words");
            }
            passing.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_session_that_takes_no_more_is_still_heard() {
        let ((mut client, near), (mut session, far)) = (duplex(1 << 10), duplex(1 << 10));
        session.write_all(b"refused").await.unwrap();
        drop(session);
        client.write_all(&[0; 100]).await.unwrap();
        relay(near, far).await;
        let mut words = Vec::new();
        client.read_to_end(&mut words).await.unwrap();
        assert_eq!(words, b"refused");
    }
}
