//! Files with recordings of sessions.

use atoll_session::{Code, Item, Record, Span, limits, recording_head};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The files into which a server records its sessions. The first session is recorded into the given
/// file, later ones into files with their number behind the name: `a.trace`, `a.trace.2`, ….
#[derive(Debug)]
pub struct Recordings {
    path: PathBuf,
    count: AtomicU32,
    /// Files that are incomplete, with the reason.
    failures: Mutex<Vec<String>>,
}

impl Recordings {
    /// Recordings that begin with this file. Existing files are replaced.
    pub fn new(path: &Path) -> Recordings {
        Recordings { path: path.to_owned(), count: AtomicU32::new(0), failures: Mutex::default() }
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
        let mut file = BufWriter::new(File::create(&path)?);
        let head = recording_head(memory);
        file.write_all(&head)?;
        let (of, bytes) = (self.clone(), head.len() as u64);
        Ok(RecordingFile { of, file, path, bytes, item: Vec::new(), is_over: false })
    }
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
        self.write(Item::End);
        // After an earlier failure, the file stays without an end.
        if let Err(error) = self.file.flush() {
            self.of.fail(&self.path, &error);
        }
    }
}
