//! Whether another process still holds a file that this process has passed to it.

use crate::Sealed;
use rustix::fs::Mode;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// A sealed file that was passed to another process. This process can ask whether the other one
/// holds it, but cannot take it back.
///
/// The kernel counts the openings of a file for writing, and grants a read lease only if there are
/// none. So the descriptor to pass is opened for writing, although seals forbid that, and this
/// process keeps one for reading. Copies of the descriptor and mappings count as the descriptor
/// does.
#[derive(Debug)]
pub struct Passed(File);

impl Passed {
    /// The descriptor to pass, and this, to ask about it. Afterwards, other users cannot open the
    /// file by its descriptor. The file must be this process's own ([`Sealed::is_received`]).
    ///
    /// # Errors
    /// There is no `/proc`, or the process has too many files.
    pub fn of(content: &Sealed) -> io::Result<(OwnedFd, Passed)> {
        rustix::fs::fchmod(content.as_fd(), Mode::RUSR | Mode::WUSR)?;
        let path = format!("/proc/self/fd/{}", content.as_fd().as_raw_fd());
        let passed = File::options().read(true).write(true).open(&path)?;
        Ok((passed.into(), Passed(File::open(&path)?)))
    }

    /// Whether any process holds the descriptor or has mapped it. False if the system cannot tell.
    pub fn is_held(&self) -> bool {
        let lease = |kind: libc::c_int| {
            // SAFETY: the descriptor is open, and the operation takes a number and writes nothing.
            match unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, kind) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        match lease(libc::F_RDLCK) {
            Ok(()) => {
                // Cannot fail for a lease that was granted.
                let _ = lease(libc::F_UNLCK);
                false
            }
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    use std::os::unix::fs::{FileExt, MetadataExt};

    #[test]
    fn copies_and_mappings_of_a_passed_file_hold_it() {
        let content = Sealed::of("test", &[7; 8192]).unwrap();
        let (fd, passed) = Passed::of(&content).unwrap();
        assert_eq!(passed.0.metadata().unwrap().mode() & 0o777, 0o600);
        drop(content);
        assert!(passed.is_held() && passed.is_held());
        let received = Sealed::received(fd).unwrap();
        assert_eq!(received.to_vec().unwrap(), [7; 8192]);
        let copy = File::from(received.as_fd().try_clone_to_owned().unwrap());
        drop(received);
        assert!(passed.is_held());
        assert!(copy.write_at(&[1], 0).is_err(), "the seals hold");
        // SAFETY: a new mapping at an address that the kernel chooses.
        let map = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, &copy, 0) }.unwrap();
        drop(copy);
        assert!(passed.is_held(), "it is mapped");
        // SAFETY: the mapping above, to which nothing refers.
        unsafe { munmap(map, 4096) }.unwrap();
        assert!(!passed.is_held() && !passed.is_held());
    }

    #[test]
    fn the_own_descriptor_of_the_content_does_not_hold_it() {
        let content = Sealed::of("test", b"x").unwrap();
        let (fd, passed) = Passed::of(&content).unwrap();
        drop(fd);
        assert!(!passed.is_held());
    }
}
