//! Connections to the control socket that send nothing, or a frame that carries descriptors and never
//! ends.

use anyhow::{Result, ensure};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use std::io::{IoSlice, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Most descriptors in a frame (`atoll_control`).
pub const FILES_MAX: usize = 128;

/// The head of a frame that announces [`FILES_MAX`] descriptors and a message of 16 bytes, and the
/// first byte of the message. The rest is never sent.
const HEAD: [u8; 17] = *b"ATLC\x01\x00\x80\x00\x10\x00\x00\x00\x00\x00\x00\x00{";

/// Opens a connection and sends the beginning of a frame with `files` descriptors; nothing without
/// descriptors.
///
/// # Errors
/// If the server does not accept it.
pub fn half_a_frame(socket: &Path, files: usize) -> Result<UnixStream> {
    ensure!(files <= FILES_MAX, "a frame has at most {FILES_MAX} descriptors");
    let stream = UnixStream::connect(socket)?;
    if files == 0 {
        return Ok(stream);
    }
    let file = memfd_create("hostile", MemfdFlags::CLOEXEC)?;
    let files: Vec<BorrowedFd<'_>> = (0..files).map(|_| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    ensure!(control.push(SendAncillaryMessage::ScmRights(&files)));
    // Ignores errors: the server may have refused and closed the connection already.
    let _ = sendmsg(&stream, &[IoSlice::new(&HEAD)], &mut control, SendFlags::NOSIGNAL);
    Ok(stream)
}

/// How long the server has for its refusals.
const ANSWERED_AFTER: Duration = Duration::from_secs(1);

/// Opens up to `count` connections with half a frame each, or silent ones. Returns the connections that the server
/// keeps, and its refusals of the others.
///
/// # Errors
/// If the server accepts no connection.
pub fn half_frames(socket: &Path, count: usize, files: usize) -> Result<(Vec<UnixStream>, Vec<String>)> {
    let (mut kept, mut refusals) = (Vec::new(), Vec::new());
    let streams = (0..count).map(|_| half_a_frame(socket, files)).collect::<Result<Vec<_>>>()?;
    std::thread::sleep(ANSWERED_AFTER);
    for stream in streams {
        stream.set_nonblocking(true)?;
        let mut text = Vec::new();
        match (&stream).read_to_end(&mut text) {
            // There is no answer, so the server waits for the rest.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock && text.is_empty() => kept.push(stream),
            _ => refusals.push(String::from_utf8_lossy(&text).into_owned()),
        }
    }
    Ok((kept, refusals))
}
