//! The socket between a daemon and an executor. It carries whole messages, some with descriptors.

use super::wire::{DESCRIPTORS_MAX, MESSAGE_BYTES_MAX};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ChannelError {
    /// The other side is gone.
    #[error("the other side closed the channel")]
    Closed,
    /// The received data is not a valid message.
    #[error("it sent {0}")]
    Corrupt(String),
    /// The system call failed.
    #[error("the channel failed: {0}")]
    Os(#[from] Errno),
}

/// A message and its descriptors.
pub(crate) type Received<M> = (M, Vec<OwnedFd>);

/// One end of the channel.
#[derive(Debug)]
pub(crate) struct Channel {
    socket: OwnedFd,
}

impl Channel {
    /// Creates both ends.
    pub(crate) fn pair() -> rustix::io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Channel { socket: ours }, theirs))
    }

    pub(crate) fn new(socket: OwnedFd) -> Channel {
        Channel { socket }
    }

    /// Sends a message; false if it would have to wait and must not.
    pub(crate) fn send(
        &self,
        message: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
        may_wait: bool,
    ) -> Result<bool, ChannelError> {
        let bytes = serde_json::to_vec(message).map_err(|error| ChannelError::Corrupt(error.to_string()))?;
        if bytes.len() > MESSAGE_BYTES_MAX || descriptors.len() > DESCRIPTORS_MAX {
            return Err(ChannelError::Corrupt(format!("a message of {} bytes", bytes.len())));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(descriptors));
        }
        let flags = if may_wait { SendFlags::NOSIGNAL } else { SendFlags::NOSIGNAL | SendFlags::DONTWAIT };
        loop {
            match rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, flags) {
                Ok(_) => return Ok(true),
                Err(Errno::INTR) => {}
                // TOOMANYREFS: this process has the maximum number of descriptors in flight.
                Err(Errno::AGAIN | Errno::TOOMANYREFS) => return Ok(false),
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Receives a message; `None` if it would have to wait and must not.
    pub(crate) fn receive<M: DeserializeOwned>(&self, may_wait: bool) -> Result<Option<Received<M>>, ChannelError> {
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = if may_wait { RecvFlags::CMSG_CLOEXEC } else { RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT };
        let received = loop {
            match rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
                Ok(received) => break received,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(None),
                Err(Errno::CONNRESET) => return Err(ChannelError::Closed),
                Err(error) => return Err(error.into()),
            }
        };
        let rights = control.drain().filter_map(|message| {
            if let RecvAncillaryMessage::ScmRights(rights) = message { Some(rights) } else { None }
        });
        let descriptors: Vec<OwnedFd> = rights.flatten().collect();
        if received.bytes == 0 {
            return Err(ChannelError::Closed);
        }
        if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
            return Err(ChannelError::Corrupt("a message that is too long".to_owned()));
        }
        let message = serde_json::from_slice(&bytes[..received.bytes]);
        let message = message.map_err(|error| ChannelError::Corrupt(format!("an invalid message: {error}")))?;
        Ok(Some((message, descriptors)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> (Channel, Channel) {
        let (ours, theirs) = Channel::pair().unwrap();
        (ours, Channel::new(theirs))
    }

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = ends();
        assert!(a.receive::<u32>(false).unwrap().is_none());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(b.send(&7u32, &[null.as_fd(), null.as_fd()], true).unwrap());
        assert!(b.send(&8u32, &[], true).unwrap());
        let (seven, descriptors) = a.receive::<u32>(true).unwrap().unwrap();
        assert_eq!((seven, descriptors.len()), (7, 2));
        assert_eq!(a.receive::<u32>(true).unwrap().unwrap().0, 8);
        drop(b);
        assert!(matches!(a.receive::<u32>(true), Err(ChannelError::Closed)));
        assert!(matches!(a.send(&1u32, &[], true), Err(ChannelError::Closed)));
    }

    #[test]
    fn a_full_channel_does_not_block_and_invalid_messages_are_errors() {
        let (a, b) = ends();
        let sent = (0..100_000).take_while(|_| a.send(&"x", &[], false).unwrap()).count();
        assert!(sent > 0 && sent < 100_000);
        assert_eq!(b.receive::<String>(true).unwrap().unwrap().0, "x");
        assert!(matches!(b.receive::<u32>(true), Err(ChannelError::Corrupt(_))));
        assert!(matches!(a.send(&"x".repeat(MESSAGE_BYTES_MAX), &[], true), Err(ChannelError::Corrupt(_))));
        rustix::net::send(&b, &vec![b' '; MESSAGE_BYTES_MAX + 1], SendFlags::empty()).unwrap();
        assert!(matches!(a.receive::<u32>(true), Err(ChannelError::Corrupt(_))));
    }
}
