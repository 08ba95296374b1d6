//! Sealed memory files: immutable bytes in a file without a path, which processes pass to each
//! other. Also their digests.
//!
//! A received file is as reliable as the process's own memory: the kernel's seals permanently
//! forbid writing and resizing, for all processes. This crate maps no memory. It reads at explicit
//! offsets, because a file's own position is shared with the process that passed it. [`Passed`] tells
//! whether a peer still holds a file.
//!
//! Not here: memory that two processes write, which is `atoll_device::shm`.
//!
//! # Invariants
//!
//! - A [`Sealed`] file cannot change: its seals forbid writing, growing and shrinking.

mod digest;
mod passed;

pub use digest::{BadDigest, Digest, Digester};
pub use passed::Passed;

use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// The seals that make a file immutable.
const IMMUTABLE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Bytes per read or write.
const CHUNK_BYTES: usize = 256 << 10;

/// Immutable bytes in a memory file.
#[derive(Debug)]
pub struct Sealed {
    file: File,
    bytes: u64,
    is_received: bool,
}

/// Why a received file is refused: the peer's mistake, or an I/O error.
#[derive(Debug, thiserror::Error)]
pub enum NotSealed {
    /// The file is not a memory file, or it can still change.
    #[error("the file is not a memory file sealed against writing, growing and shrinking")]
    Changeable,
    /// Its properties cannot be read.
    #[error("cannot read the properties of the file: {0}")]
    Io(#[from] io::Error),
}

/// A memory file that is being written.
#[derive(Debug)]
pub struct Unsealed(File);

impl Unsealed {
    /// An empty file. The name appears in `/proc` only.
    pub fn new(name: &str) -> io::Result<Unsealed> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Older kernels lack NOEXEC_SEAL. Without it the file is executable in principle, but no
        // code here executes it.
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))?;
        Ok(Unsealed(file.into()))
    }

    /// Makes the file immutable.
    pub fn seal(self) -> io::Result<Sealed> {
        rustix::fs::fcntl_add_seals(&self.0, IMMUTABLE | SealFlags::SEAL)?;
        let bytes = self.0.metadata()?.len();
        Ok(Sealed { file: self.0, bytes, is_received: false })
    }
}

impl Write for Unsealed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sealed {
    /// A sealed file with these bytes.
    pub fn of(name: &str, bytes: &[u8]) -> io::Result<Sealed> {
        let mut file = Unsealed::new(name)?;
        file.write_all(bytes)?;
        file.seal()
    }

    /// A sealed file with everything that the reader returns.
    pub fn of_reader(name: &str, reader: &mut impl Read) -> io::Result<Sealed> {
        let mut file = Unsealed::new(name)?;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            match reader.read(&mut chunk)? {
                0 => return file.seal(),
                count => file.write_all(&chunk[..count])?,
            }
        }
    }

    /// Accepts a file from a peer, if it is immutable.
    pub fn received(fd: OwnedFd) -> Result<Sealed, NotSealed> {
        // Files other than memory files have no seals to query.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| NotSealed::Changeable)?;
        if !seals.contains(IMMUTABLE) {
            return Err(NotSealed::Changeable);
        }
        let file = File::from(fd);
        let bytes = file.metadata()?.len();
        Ok(Sealed { file, bytes, is_received: true })
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether a peer made the file. Then its memory counts as the peer's, and not as this process's.
    pub fn is_received(&self) -> bool {
        self.is_received
    }

    /// Fills the buffer with the bytes at an offset.
    pub fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    /// The whole content.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let count = usize::try_from(self.bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut bytes = vec![0; count];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The digest of the content.
    pub fn digest(&self) -> io::Result<Digest> {
        let mut digester = Digester::default();
        self.for_each_chunk(|chunk| -> io::Result<()> {
            digester.update(chunk);
            Ok(())
        })?;
        Ok(digester.finish())
    }

    /// Passes the content to `each` in chunks, from the beginning.
    pub fn for_each_chunk<E: From<io::Error>>(&self, mut each: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut chunk = vec![0; CHUNK_BYTES.min(usize::try_from(self.bytes).unwrap_or(CHUNK_BYTES))];
        let mut at = 0;
        while at < self.bytes {
            let count = (self.bytes - at).min(CHUNK_BYTES as u64) as usize;
            self.read_at(at, &mut chunk[..count])?;
            each(&chunk[..count])?;
            at += count as u64;
        }
        Ok(())
    }
}

impl AsFd for Sealed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_cannot_change() {
        let sealed = Sealed::of("test", b"contents").unwrap();
        let copy = File::from(sealed.as_fd().try_clone_to_owned().unwrap());
        assert!(copy.write_at(b"x", 0).is_err() && copy.write_at(b"x", 8).is_err() && copy.set_len(2).is_err());
        let received = Sealed::received(copy.into()).unwrap();
        assert_eq!((received.to_vec().unwrap(), received.bytes()), (b"contents".to_vec(), 8));
        assert_eq!((sealed.is_received(), received.is_received()), (false, true));
    }

    #[test]
    fn what_can_change_is_refused() {
        let unsealed = Unsealed::new("test").unwrap();
        assert!(matches!(Sealed::received(unsealed.0.into()), Err(NotSealed::Changeable)));
        let half = Unsealed::new("test").unwrap();
        rustix::fs::fcntl_add_seals(&half.0, SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE).unwrap();
        assert!(
            matches!(Sealed::received(half.0.into()), Err(NotSealed::Changeable)),
            "a mapping made before could still write"
        );
        for path in ["/dev/zero", "/proc/self/exe"] {
            assert!(matches!(Sealed::received(File::open(path).unwrap().into()), Err(NotSealed::Changeable)), "{path}");
        }
    }

    #[test]
    fn each_of_the_three_seals_is_needed() {
        let all = [SealFlags::SHRINK, SealFlags::GROW, SealFlags::WRITE];
        for missing in all {
            let file = Unsealed::new("test").unwrap();
            let seals = all.into_iter().filter(|seal| *seal != missing).fold(SealFlags::SEAL, SealFlags::union);
            rustix::fs::fcntl_add_seals(&file.0, seals).unwrap();
            assert!(matches!(Sealed::received(file.0.into()), Err(NotSealed::Changeable)), "without {missing:?}");
        }
        // Another program need not forbid further seals.
        let mut file = Unsealed::new("test").unwrap();
        file.write_all(b"abc").unwrap();
        rustix::fs::fcntl_add_seals(&file.0, IMMUTABLE).unwrap();
        assert_eq!(Sealed::received(file.0.into()).unwrap().to_vec().unwrap(), b"abc");
        let own = Sealed::of("test", b"abc").unwrap();
        let seals = rustix::fs::fcntl_get_seals(own.as_fd()).unwrap();
        assert!(seals.contains(IMMUTABLE | SealFlags::SEAL), "{seals:?}");
        assert!(rustix::io::fcntl_getfd(own.as_fd()).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn reads_end_with_the_content() {
        let sealed = Sealed::of("test", b"contents").unwrap();
        let mut part = [0; 3];
        sealed.read_at(5, &mut part).unwrap();
        assert_eq!(&part, b"nts");
        for at in [6, 8, u64::MAX] {
            assert!(sealed.read_at(at, &mut part).is_err(), "{at}");
        }
        sealed.read_at(8, &mut []).unwrap();
        // Whole chunks, one byte less, and one more.
        for bytes in [CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1] {
            let content = vec![7; bytes];
            let sealed = Sealed::of("test", &content).unwrap();
            let mut chunks = Vec::new();
            let counted = sealed.for_each_chunk(|chunk| -> io::Result<()> {
                chunks.push(chunk.len());
                Ok(())
            });
            counted.unwrap();
            assert_eq!((chunks.iter().sum::<usize>(), chunks.len()), (bytes, bytes.div_ceil(CHUNK_BYTES)));
            assert_eq!((sealed.bytes(), sealed.digest().unwrap()), (bytes as u64, Digest::of(&content)));
        }
        let stopped = sealed.for_each_chunk(|_| Err(io::Error::other("enough")));
        assert_eq!(stopped.unwrap_err().to_string(), "enough");
    }

    #[test]
    fn chunks_make_up_the_whole() {
        let bytes: Vec<u8> = (0..CHUNK_BYTES * 2 + 77).map(|i| (i % 251) as u8).collect();
        let sealed = Sealed::of_reader("test", &mut bytes.as_slice()).unwrap();
        let mut seen = Vec::new();
        sealed
            .for_each_chunk(|chunk| -> io::Result<()> {
                seen.extend_from_slice(chunk);
                Ok(())
            })
            .unwrap();
        assert!(seen == bytes && sealed.to_vec().unwrap() == bytes && sealed.digest().unwrap() == Digest::of(&bytes));
        assert_eq!(Sealed::of("test", b"").unwrap().to_vec().unwrap(), b"");
    }
}
