//! Files with recordings of sessions.

use atoll_session::{Code, Item, Record, Span, limits, recording_head};
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The files into which a server records its sessions. The first session is recorded into the given
/// file, later ones into files with their number behind the name: `a.trace`, `a.trace.2`, ….
///
/// New files are only for the server's user: they have all data of the program.
#[derive(Debug)]
pub struct Recordings {
    path: PathBuf,
    count: AtomicU32,
    /// Files that are incomplete, with the reason.
    failures: Mutex<Vec<String>>,
}

impl Recordings {
    /// Recordings that begin with this file, which is created. Existing files are replaced.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(path: &Path) -> io::Result<Recordings> {
        create(path)?;
        Ok(Recordings { path: path.to_owned(), count: AtomicU32::new(0), failures: Mutex::default() })
    }

    /// The files of the sessions that have begun.
    pub fn files(&self) -> Vec<PathBuf> {
        (1..=self.count.load(Ordering::Relaxed)).map(|number| self.file(number)).collect()
    }

    /// The recordings that are incomplete, each with the reason.
    pub fn failures(&self) -> Vec<String> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn fail(&self, path: &Path, error: &io::Error) {
        let text = format!("{}: the recording is incomplete: {error}", path.display());
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).push(text);
    }

    fn file(&self, number: u32) -> PathBuf {
        if number == 1 {
            return self.path.clone();
        }
        let mut path = self.path.clone().into_os_string();
        path.push(format!(".{number}"));
        path.into()
    }

    /// The recording of the next session, whose memory this is.
    pub(crate) fn begin(self: &Arc<Recordings>, memory: Span) -> io::Result<RecordingFile> {
        let path = self.file(self.count.fetch_add(1, Ordering::Relaxed) + 1);
        let mut file = BufWriter::new(create(&path)?);
        let head = recording_head(memory);
        file.write_all(&head)?;
        let (of, bytes) = (self.clone(), head.len() as u64);
        Ok(RecordingFile { of, file, path, bytes, item: Vec::new(), is_over: false })
    }
}

/// An empty file. A new one can be read by its owner only.
fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)
}

/// The recording of a session. It is complete when it is dropped.
#[derive(Debug)]
pub(crate) struct RecordingFile {
    of: Arc<Recordings>,
    file: BufWriter<File>,
    path: PathBuf,
    /// Size of the file so far.
    bytes: u64,
    /// Buffer of an item.
    item: Vec<u8>,
    /// Whether recording has failed, so that the file stays incomplete.
    is_over: bool,
}

impl RecordingFile {
    pub(crate) fn call(&mut self, record: &Record<'_>, result: Result<&[u8], Code>) {
        self.write(Item::Call(record, result));
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.write(Item::Part(bytes));
    }

    fn write(&mut self, item: Item<'_>) {
        if self.is_over {
            return;
        }
        self.item.clear();
        item.write(&mut self.item);
        self.bytes += self.item.len() as u64;
        let written = match self.bytes > limits::RECORDING_BYTES_MAX {
            true => Err(io::Error::other(format!("it would have more than {} bytes", limits::RECORDING_BYTES_MAX))),
            false => self.file.write_all(&self.item),
        };
        if let Err(error) = written {
            self.of.fail(&self.path, &error);
            self.is_over = true;
        }
    }
}

impl Drop for RecordingFile {
    fn drop(&mut self) {
        // A session that panicked is not complete.
        if !std::thread::panicking() {
            self.write(Item::End);
        }
        // After an earlier failure, the file stays without an end.
        if let Err(error) = self.file.flush() {
            self.of.fail(&self.path, &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_session::{Recording, RecordingError};
    use std::os::unix::fs::PermissionsExt;

    const MEMORY: Span = Span { at: 1 << 32, bytes: 1 << 20 };

    fn record(recordings: &Arc<Recordings>) -> RecordingFile {
        let mut file = recordings.begin(MEMORY).expect("a file");
        file.call(&Record::Allocate { at: MEMORY.at, bytes: 8 }, Ok(&[]));
        file.part(b"abc");
        file.call(&Record::CopyOut { stream: 0, from: MEMORY.at, bytes: 3 }, Ok(&[]));
        file
    }

    #[test]
    fn each_session_has_a_file_for_the_owner_which_its_end_completes() {
        let folder = tempfile::tempdir().expect("a folder");
        let recordings = Arc::new(Recordings::create(&folder.path().join("a.trace")).expect("a file"));
        assert!(recordings.files().is_empty());
        drop(record(&recordings));
        let open = record(&recordings);
        let files = recordings.files();
        assert_eq!(files, [folder.path().join("a.trace"), folder.path().join("a.trace.2")]);
        let bytes = std::fs::read(&files[0]).expect("a recording");
        let recording = Recording::read(&bytes).expect("a complete recording");
        assert_eq!((recording.memory, recording.calls.len()), (MEMORY, 2));
        assert_eq!(recording.calls[1].data, b"abc");
        let bytes = std::fs::read(&files[1]).expect("a recording");
        assert!(Recording::read(&bytes).is_err(), "its session has not ended");
        drop(open);
        let bytes = std::fs::read(&files[1]).expect("a recording");
        assert!(Recording::read(&bytes).is_ok());
        for file in files {
            let mode = file.metadata().expect("a file").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{}", file.display());
        }
        assert!(recordings.failures().is_empty());
    }

    #[test]
    fn a_file_that_would_be_too_large_stays_incomplete_and_is_reported() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.trace");
        let recordings = Arc::new(Recordings::create(&path).expect("a file"));
        let mut file = record(&recordings);
        file.bytes = limits::RECORDING_BYTES_MAX - 1;
        file.part(b"more");
        file.part(b"even more");
        drop(file);
        let failures = recordings.failures();
        assert_eq!(failures.len(), 1, "{failures:?}");
        assert!(failures[0].ends_with("it would have more than 4294967296 bytes"), "{failures:?}");
        let bytes = std::fs::read(&path).expect("a recording");
        assert_eq!(Recording::read(&bytes), Err(RecordingError::Incomplete));
        assert!(Recordings::create(&folder.path().join("none/a.trace")).is_err());
    }
}
