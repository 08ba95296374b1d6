//! Sealed memory files, bytes that nobody can change any more, in a file without a path that
//! processes pass to each other; and their names, which are digests.
//!
//! Who gets one from a peer can rely on it as on memory of its own: the seals of the kernel forbid
//! every writer, and every change of size, for ever. Nothing here maps memory; contents are read at
//! offsets of the reader's choice, because a file's own position is shared with whoever passed it.
//!
//! Not here: memory that two sides work in at once, which is `atoll_device::shm`.

mod digest;

pub use digest::{BadDigest, Digest, Digester};

use rustix::fs::{MemfdFlags, SealFlags};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Seals that make a file immutable.
const IMMUTABLE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE);

/// Bytes that are moved at once.
const CHUNK_BYTES: usize = 256 << 10;

/// Immutable bytes in a memory file.
#[derive(Debug)]
pub struct Sealed {
    file: File,
    bytes: u64,
}

/// Why a descriptor of a peer is not taken: the peer's mistake.
#[derive(Debug, thiserror::Error)]
pub enum NotSealed {
    /// It is no memory file, or one that can still change.
    #[error("the file is no memory file that is sealed against writing, growing and shrinking")]
    Changeable,
    /// The system does not tell.
    #[error("the file cannot be looked at: {0}")]
    Io(#[from] io::Error),
}

/// A memory file that is being written.
#[derive(Debug)]
pub struct Unsealed(File);

impl Unsealed {
    /// An empty file. The name shows in `/proc` and nowhere else.
    pub fn new(name: &str) -> io::Result<Unsealed> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Older kernels know no such flag, and give a file that cannot be run either way, since nobody
        // does.
        let file = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))?;
        Ok(Unsealed(file.into()))
    }

    /// Makes it immutable.
    pub fn seal(self) -> io::Result<Sealed> {
        rustix::fs::fcntl_add_seals(&self.0, IMMUTABLE | SealFlags::SEAL)?;
        let bytes = self.0.metadata()?.len();
        Ok(Sealed { file: self.0, bytes })
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
    /// A file that holds these bytes.
    pub fn of(name: &str, bytes: &[u8]) -> io::Result<Sealed> {
        let mut file = Unsealed::new(name)?;
        file.write_all(bytes)?;
        file.seal()
    }

    /// A file that holds what a reader gives.
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

    /// Takes a descriptor from a peer, if it really is immutable.
    pub fn received(fd: OwnedFd) -> Result<Sealed, NotSealed> {
        // Files that are no memory files have no seals to ask for.
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(|_| NotSealed::Changeable)?;
        if !seals.contains(IMMUTABLE) {
            return Err(NotSealed::Changeable);
        }
        let file = File::from(fd);
        let bytes = file.metadata()?.len();
        Ok(Sealed { file, bytes })
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Fills the buffer with what stands at an offset.
    pub fn read_at(&self, at: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buffer, at)
    }

    /// All of it.
    pub fn to_vec(&self) -> io::Result<Vec<u8>> {
        let count = usize::try_from(self.bytes).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut bytes = vec![0; count];
        self.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The name of what it holds.
    pub fn digest(&self) -> io::Result<Digest> {
        let mut digester = Digester::default();
        self.for_each_chunk(|chunk| -> io::Result<()> {
            digester.update(chunk);
            Ok(())
        })?;
        Ok(digester.finish())
    }

    /// Hands out the contents in pieces, from the beginning.
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
