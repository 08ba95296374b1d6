//! What can be made again, on disk: compiled bundles, native code of kernels.
//!
//! A file's name is the digest of all it was made from, so that nothing ever has to be invalidated;
//! what is not used for long is removed when there is too much. Processes may share the folder:
//! files appear whole, by a rename, and removing one that another process has mapped does not
//! disturb it.

use crate::hexadecimal;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// A file is written in one go, in seconds; a partial one that is older belongs to nobody.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Bytes of the digest in front of what [`DiskCache::write`] writes.
const DIGEST_BYTES: usize = 32;

/// A folder of files that can be made again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    folder: PathBuf,
    extension: &'static str,
    bytes_max: u64,
}

impl DiskCache {
    /// Files with this extension in this folder, of at most about `bytes_max` in all. The folder is
    /// made when something is written.
    pub fn new(folder: PathBuf, extension: &'static str, bytes_max: u64) -> DiskCache {
        DiskCache { folder, extension, bytes_max }
    }

    /// Makes the folder.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where the file with this digest is, or would be.
    pub fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(digest).with_extension(self.extension)
    }

    /// Notes that a file was used now, which is all that the removal goes by. In a folder that
    /// cannot be written nothing is removed either.
    pub fn touch(&self, path: &Path) {
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// What was written under a digest. A damaged file is removed and counts as none.
    pub fn read(&self, digest: &str) -> Option<Vec<u8>> {
        let path = self.path(digest);
        let mut bytes = fs::read(&path).ok()?;
        if bytes.len() < DIGEST_BYTES || Sha256::digest(&bytes[DIGEST_BYTES..])[..] != bytes[..DIGEST_BYTES] {
            let _ = fs::remove_file(&path);
            return None;
        }
        self.touch(&path);
        bytes.drain(..DIGEST_BYTES);
        Some(bytes)
    }

    /// Keeps bytes under a digest.
    pub fn write(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        self.create()?;
        let path = self.path(digest);
        let partial = self.partial(&path);
        let whole = [&Sha256::digest(bytes)[..], bytes].concat();
        let written = fs::write(&partial, whole).and_then(|()| fs::rename(&partial, &path));
        written.inspect_err(|_| drop(fs::remove_file(&partial)))
    }

    /// A name for a file that is not whole yet, which no other thread and no other process uses.
    fn partial(&self, path: &Path) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        path.with_extension(format!("{}.{}.{number}.partial", self.extension, std::process::id()))
    }

    /// Removes what was left behind by processes that were killed, and the files not used for
    /// longest until the rest is small enough; the one used last stays however large it is.
    pub fn remove_unused(&self) {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let (ours, others): (Vec<PathBuf>, Vec<PathBuf>) =
            entries.partition(|path| path.extension() == Some(OsStr::new(self.extension)));
        others.iter().filter(|path| is_abandoned(path)).for_each(|path| drop(fs::remove_file(path)));
        let mut files: Vec<(SystemTime, u64, PathBuf)> = ours
            .into_iter()
            .filter_map(|path| {
                let metadata = fs::metadata(&path).ok()?;
                Some((metadata.modified().ok()?, metadata.len(), path))
            })
            .collect();
        files.sort_unstable();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        files.pop();
        for (_, size, path) in &files {
            if bytes <= self.bytes_max {
                return;
            }
            if fs::remove_file(path).is_ok() {
                bytes -= size;
            }
        }
    }
}

/// The name by content of what is made from these parts.
pub fn digest_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hexadecimal::text(&hash.finalize())
}

/// Whether a file is the unfinished work of a process that no longer runs.
fn is_abandoned(path: &Path) -> bool {
    let age =
        fs::metadata(path).and_then(|metadata| metadata.modified()).ok().and_then(|written| written.elapsed().ok());
    path.extension().is_some_and(|e| e == "partial") && age.is_some_and(|age| age > ABANDONED_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unused_for_longest_goes_first() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::new(folder.path().into(), "kg", 200);
        let file = |name: &str, age_s: u64| {
            let path = folder.path().join(name);
            fs::write(&path, [0; 100]).unwrap();
            File::open(&path).unwrap().set_modified(SystemTime::now() - Duration::from_secs(age_s)).unwrap();
            path
        };
        let [newest, old, older, oldest, other] =
            [file("d.kg", 1), file("b.kg", 50), file("c.kg", 90), file("a.kg", 100), file("e.txt", 9000)];
        let [running, abandoned] = [file("f.kg.7.partial", 60), file("g.kg.8.partial", 9000)];
        cache.remove_unused();
        let left = [&newest, &old, &older, &oldest, &other, &running, &abandoned].map(|path| path.exists());
        assert_eq!(left, [true, true, false, false, true, true, false]);
        DiskCache { bytes_max: 10, ..cache }.remove_unused();
        assert_eq!([&newest, &old].map(|path| path.exists()), [true, false], "the last one stays");
    }

    #[test]
    fn what_was_written_is_read_until_it_is_damaged() {
        let folder = tempfile::tempdir().unwrap();
        let cache = DiskCache::new(folder.path().join("deep/er"), "o", 1 << 20);
        let digest = digest_of([b"one".as_slice(), b"two"]);
        assert_ne!(digest, digest_of([b"onetwo".as_slice()]));
        assert_eq!(cache.read(&digest), None);
        cache.write(&digest, b"code").unwrap();
        assert_eq!(cache.read(&digest).as_deref(), Some(b"code".as_slice()));
        assert_eq!(fs::read_dir(cache.folder()).unwrap().count(), 1, "nothing else is left");
        for damage in [|bytes: &mut Vec<u8>| bytes[33] ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(20)] {
            let mut bytes = fs::read(cache.path(&digest)).unwrap();
            damage(&mut bytes);
            fs::write(cache.path(&digest), bytes).unwrap();
            assert_eq!(cache.read(&digest), None);
            assert!(!cache.path(&digest).exists());
            cache.write(&digest, b"code").unwrap();
        }
    }
}
