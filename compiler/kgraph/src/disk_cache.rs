//! A disk cache of reproducible files: compiled bundles, native code of kernels.
//!
//! A file's name is the digest of everything it was made from, so entries never become stale. When
//! the cache exceeds its size, the least recently used files are removed. Processes may share the
//! folder: a file appears complete, by a rename, and removing a file that another process has
//! mapped does not affect that process.

use crate::hexadecimal;
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Age after which a partial file is abandoned. A file is written in one go, within seconds.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);
/// Bytes of the digest at the start of each file that [`DiskCache::write`] writes.
const DIGEST_BYTES: usize = 32;

/// A folder of reproducible files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCache {
    folder: PathBuf,
    extension: &'static str,
    bytes_max: u64,
}

impl DiskCache {
    /// A cache of files with this extension in this folder, of about `bytes_max` in total. The
    /// folder is created by the first write.
    pub fn new(folder: PathBuf, extension: &'static str, bytes_max: u64) -> DiskCache {
        DiskCache { folder, extension, bytes_max }
    }

    /// Creates the folder.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of the file with this digest, whether it exists or not.
    pub fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(digest).with_extension(self.extension)
    }

    /// Marks a file as used: sets its modification time to now. Errors are ignored, because in a
    /// read-only folder no file is removed either.
    pub fn touch(&self, path: &Path) {
        let _ = File::open(path).and_then(|file| file.set_modified(SystemTime::now()));
    }

    /// The bytes stored under a digest. A damaged file is removed, and the result is `None`.
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

    /// Stores bytes under a digest.
    pub fn write(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        self.create()?;
        let path = self.path(digest);
        let partial = self.partial(&path);
        let whole = [&Sha256::digest(bytes)[..], bytes].concat();
        let written = fs::write(&partial, whole).and_then(|()| fs::rename(&partial, &path));
        written.inspect_err(|_| drop(fs::remove_file(&partial)))
    }

    /// A name for an incomplete file, unique among threads and processes.
    fn partial(&self, path: &Path) -> PathBuf {
        use std::sync::atomic::{AtomicU32, Ordering};
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        path.with_extension(format!("{}.{}.{number}.partial", self.extension, std::process::id()))
    }

    /// Removes partial files of killed processes, then the least recently used files until the rest
    /// fits `bytes_max`. The most recently used file always stays.
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

/// The name of a file made from these parts: a digest of all of them.
pub fn digest_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    hexadecimal::text(&hash.finalize())
}

/// Whether a file is a partial write of a process that no longer runs.
fn is_abandoned(path: &Path) -> bool {
    let age =
        fs::metadata(path).and_then(|metadata| metadata.modified()).ok().and_then(|written| written.elapsed().ok());
    path.extension().is_some_and(|e| e == "partial") && age.is_some_and(|age| age > ABANDONED_AFTER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_files_are_removed_first() {
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
    fn written_bytes_are_read_until_the_file_is_damaged() {
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
