//! A folder of files named after their contents. Each file is complete or does not exist.

use crate::error::{StoreError, is_full};
use atoll_sealed::{Digest, Digester, Sealed, Unsealed};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;

/// Prefix of files that are being written.
const PARTIAL: &str = ".partial-";

/// Bytes per read or write.
const CHUNK_BYTES: usize = 256 << 10;

/// A folder of files named by digest and extension.
#[derive(Debug)]
pub(crate) struct Files {
    folder: PathBuf,
    extension: &'static str,
}

/// A complete file without a name yet; dropping it deletes it.
#[derive(Debug)]
pub(crate) struct Staged {
    file: NamedTempFile,
    pub(crate) digest: Digest,
}

impl Files {
    pub(crate) fn create(folder: PathBuf, extension: &'static str) -> Result<Files, StoreError> {
        // Other users must not see names and contents of tenants' files.
        let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.map_err(|source| StoreError::Io { what: "cannot create", path: folder.clone(), source })?;
        Ok(Files { folder, extension })
    }

    pub(crate) fn path(&self, digest: &Digest) -> PathBuf {
        self.folder.join(format!("{digest}{}", self.extension))
    }

    /// Writes content to a temporary file and syncs it to disk.
    pub(crate) fn stage(&self, content: &Sealed) -> Result<Staged, StoreError> {
        let written = || -> io::Result<Staged> {
            let mut file = tempfile::Builder::new().prefix(PARTIAL).tempfile_in(&self.folder)?;
            let mut digester = Digester::default();
            content.for_each_chunk(|chunk| {
                digester.update(chunk);
                file.write_all(chunk)
            })?;
            file.as_file().sync_data()?;
            Ok(Staged { file, digest: digester.finish() })
        };
        written().map_err(|source| self.failed("cannot write into", &self.folder, source))
    }

    /// Renames a staged file to its final name.
    pub(crate) fn publish(&self, staged: Staged) -> Result<(), StoreError> {
        let path = self.path(&staged.digest);
        let persisted = staged.file.persist(&path);
        // Syncs the folder, so that the name is durable as well.
        let synced = persisted.map_err(|error| error.error).and_then(|_| File::open(&self.folder)?.sync_all());
        synced.map_err(|source| self.failed("cannot name", &path, source))
    }

    /// Reads a file into memory. `None` if it does not exist or its content does not match its
    /// name.
    pub(crate) fn read(&self, digest: &Digest) -> Result<Option<Sealed>, StoreError> {
        let path = self.path(digest);
        let failed = |source| self.failed("cannot read", &path, source);
        let mut file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let (mut content, mut digester) = (Unsealed::new("atoll-object").map_err(failed)?, Digester::default());
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let count = file.read(&mut chunk).map_err(failed)?;
            if count == 0 {
                break;
            }
            digester.update(&chunk[..count]);
            content.write_all(&chunk[..count]).map_err(failed)?;
        }
        if digester.finish() == *digest { Ok(Some(content.seal().map_err(failed)?)) } else { Ok(None) }
    }

    /// Deletes a file that the index no longer refers to. If that fails, the next start deletes it.
    pub(crate) fn remove(&self, digest: &Digest) {
        let path = self.path(digest);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "cannot delete a file");
        }
    }

    /// The size of a file; `None` if it does not exist.
    pub(crate) fn bytes(&self, digest: &Digest) -> Option<u64> {
        fs::metadata(self.path(digest)).ok().map(|metadata| metadata.len())
    }

    /// Deletes files that an earlier process left: incomplete ones, and those without an entry in
    /// the index.
    pub(crate) fn sweep(&self, known: &BTreeSet<Digest>) -> Result<(), StoreError> {
        let failed = |source| self.failed("cannot read", &self.folder, source);
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let Some(name) = name.to_str() else { continue };
            let digest = name.strip_suffix(self.extension).and_then(|name| name.parse::<Digest>().ok());
            // Keeps all other files in this folder: the store did not create them.
            let is_garbage = name.starts_with(PARTIAL) || digest.is_some_and(|digest| !known.contains(&digest));
            if is_garbage && let Err(error) = fs::remove_file(self.folder.join(name)) {
                tracing::warn!(name, %error, "cannot delete a leftover file");
            }
        }
        Ok(())
    }

    fn failed(&self, what: &'static str, path: &Path, source: io::Error) -> StoreError {
        if is_full(&source) {
            return StoreError::DiskFull { folder: self.folder.clone() };
        }
        StoreError::Io { what, path: path.into(), source }
    }
}
