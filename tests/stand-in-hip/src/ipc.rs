//! Passes the files of device memory to other processes, over a socket with an abstract name. They
//! cannot open them in `/proc` if they are sandboxed, as executors are.

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use std::io::{Error, IoSlice, IoSliceMut, Read, Result, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// The address of a process's socket.
fn address(process: u64) -> Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("atoll-stand-in-hip-{process}"))
}

/// Starts a thread that sends each of these files to processes that ask for it by its index.
pub(crate) fn serve(files: Vec<OwnedFd>) -> Result<()> {
    let listener = UnixListener::bind_addr(&address(std::process::id().into())?)?;
    let answer = move || {
        for client in listener.incoming().flatten() {
            // A client that does not go on has ended.
            let _ = send(client, &files);
        }
    };
    std::thread::Builder::new().name("stand-in-ipc".to_owned()).spawn(answer).map(drop)
}

fn send(mut client: UnixStream, files: &[OwnedFd]) -> Result<()> {
    let mut index = [0];
    client.read_exact(&mut index)?;
    let Some(file) = files.get(usize::from(index[0])) else { return Ok(()) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let files = [file.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&files));
    rustix::net::sendmsg(&client, &[IoSlice::new(&index)], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// The file of another process's device.
pub(crate) fn receive(process: u64, index: u8) -> Result<OwnedFd> {
    let mut socket = UnixStream::connect_addr(&address(process)?)?;
    socket.write_all(&[index])?;
    let mut bytes = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    rustix::net::recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let rights = control
        .drain()
        .filter_map(|message| if let RecvAncillaryMessage::ScmRights(rights) = message { Some(rights) } else { None });
    rights.flatten().next().ok_or_else(|| Error::other("the process has no such device"))
}
