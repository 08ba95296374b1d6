//! Mirrors a repository into a folder.

use crate::error::RemoteError;
use crate::fetch::{Client, Fetched};
use crate::listing::{OBJECTS_MAX, Object};
use crate::location::Location;
use crate::{Options, sign};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Maximum number of times that a synchronization lists a repository that changes while it is read.
const ROUNDS: u32 = 4;

/// What a synchronization changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Files that are new or have changed.
    pub fetched: usize,
    /// Files that are gone.
    pub removed: usize,
    /// Bytes of the files that were fetched.
    pub bytes: u64,
}

/// A repository on another machine, and the folder that mirrors its files.
pub struct Remote {
    url: String,
    client: Client,
    bytes_max: u64,
    folder: PathBuf,
    /// Files are written here before they appear in the folder.
    scratch: PathBuf,
    record: PathBuf,
    held: BTreeMap<String, Held>,
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Held {
    bytes: u64,
    version: String,
}

impl Remote {
    /// The repository at an address: `s3://BUCKET/PREFIX`, `s3://https://HOST/BUCKET/PREFIX`,
    /// `gs://BUCKET/PREFIX` or `https://HOST/PATH`. Its files are in a folder below `cache`, which
    /// keeps them for the next start.
    ///
    /// # Errors
    /// Fails if the address is invalid, or the folder cannot be created.
    pub fn open(url: &str, cache: &Path, options: Options) -> Result<Remote, RemoteError> {
        let location = Location::read(url, &options)?;
        let name = sign::hex(&Sha256::digest(format!("{location:?}").as_bytes()))[..32].to_owned();
        let own = cache.join(name);
        let (folder, scratch, record) = (own.join("files"), own.join("partial"), own.join("files.json"));
        for folder in [&folder, &scratch] {
            fs::create_dir_all(folder).map_err(RemoteError::io(folder))?;
        }
        // Partial files of an earlier process.
        for entry in fs::read_dir(&scratch).map_err(RemoteError::io(&scratch))?.flatten() {
            let _ = fs::remove_file(entry.path());
        }
        // Without a readable record, all files are fetched again.
        let held: BTreeMap<String, Held> =
            fs::read(&record).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let bytes_max = options.bytes_max;
        let client = Client::new(location, options)?;
        Ok(Remote { url: url.into(), client, bytes_max, folder, scratch, record, held })
    }

    /// The folder with the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether an earlier synchronization left files.
    pub fn has_files(&self) -> bool {
        !self.held.is_empty()
    }

    /// Fetches what is new or has changed, and then removes what is gone.
    ///
    /// # Errors
    /// Fails if the repository cannot be read. Files that were fetched until then stay, and none are
    /// removed.
    pub fn sync(&mut self) -> Result<Changes, RemoteError> {
        let mut changes = Changes::default();
        let mut changed = String::new();
        for _ in 0..ROUNDS {
            let objects = self.client.list()?;
            self.check(&objects)?;
            let fetched = self.fetch_all(&objects, &mut changes);
            self.write_record()?;
            match fetched? {
                None => {
                    changes.removed = self.remove_others(&objects)?;
                    self.write_record()?;
                    return Ok(changes);
                }
                Some(what) => changed = what,
            }
        }
        Err(RemoteError::Changing { url: self.url.clone(), what: changed })
    }

    /// Refuses a listing that is too large, or in which a name occurs twice or is a file and a folder.
    fn check(&self, objects: &[Object]) -> Result<(), RemoteError> {
        let large = |found: String, limit: String| RemoteError::TooLarge { url: self.url.clone(), found, limit };
        if objects.len() > OBJECTS_MAX {
            return Err(large(format!("{} objects", objects.len()), OBJECTS_MAX.to_string()));
        }
        let bytes = objects.iter().fold(0, |sum: u64, object| sum.saturating_add(object.bytes));
        if bytes > self.bytes_max {
            return Err(large(format!("{bytes} bytes"), self.bytes_max.to_string()));
        }
        let names: BTreeSet<&str> = objects.iter().map(|object| object.path.as_str()).collect();
        let is_folder = |name: &str| {
            let below = format!("{name}/");
            names.range(below.as_str()..).next().is_some_and(|next| next.starts_with(&below))
        };
        let wrong = |reason: String| Err(RemoteError::Listing { url: self.url.clone(), reason });
        if names.len() < objects.len() {
            return wrong("it has a name twice".into());
        }
        match names.iter().find(|name| is_folder(name)) {
            Some(name) => wrong(format!("`{name}` is a file and a folder")),
            None => Ok(()),
        }
    }

    /// Fetches the objects that the folder does not have. Returns the name of one that has changed
    /// since it was listed.
    fn fetch_all(&mut self, objects: &[Object], changes: &mut Changes) -> Result<Option<String>, RemoteError> {
        let mut changed = None;
        for object in objects {
            if self.has(object) {
                continue;
            }
            let mut file = tempfile::NamedTempFile::new_in(&self.scratch).map_err(RemoteError::io(&self.scratch))?;
            match self.client.fetch(object, file.as_file_mut())? {
                Fetched::Changed(what) => changed = Some(what),
                Fetched::Done => {
                    let path = self.folder.join(&object.path);
                    // If replacing the file fails midway, it is fetched again.
                    self.held.remove(&object.path);
                    self.make_way(&object.path).map_err(RemoteError::io(&path))?;
                    file.persist(&path).map_err(|error| error.error).map_err(RemoteError::io(&path))?;
                    let held = Held { bytes: object.bytes, version: object.version.clone() };
                    self.held.insert(object.path.clone(), held);
                    changes.fetched += 1;
                    changes.bytes += object.bytes;
                }
            }
        }
        Ok(changed)
    }

    /// Whether the folder has an object.
    fn has(&self, object: &Object) -> bool {
        let Some(Held { bytes, version }) = self.held.get(&object.path) else { return false };
        let metadata = fs::symlink_metadata(self.folder.join(&object.path));
        let is_there = metadata.is_ok_and(|file| file.is_file() && file.len() == object.bytes);
        is_there && *bytes == object.bytes && *version == object.version
    }

    /// Creates the parent folders of a file. Removes a file in place of one of these folders, and a
    /// folder in place of the file: both may be left from an earlier state of the repository.
    fn make_way(&self, path: &str) -> io::Result<()> {
        let mut folder = self.folder.clone();
        let mut parts = path.split('/').peekable();
        while let Some(part) = parts.next() {
            folder.push(part);
            let kind = fs::symlink_metadata(&folder).ok().map(|metadata| metadata.is_dir());
            match (parts.peek().is_some(), kind) {
                (true, Some(false)) => {
                    fs::remove_file(&folder)?;
                    fs::create_dir(&folder)?;
                }
                (true, None) => fs::create_dir(&folder)?,
                (false, Some(true)) => fs::remove_dir_all(&folder)?,
                (true, Some(true)) | (false, _) => {}
            }
        }
        Ok(())
    }

    /// Removes files and folders that the repository does not have.
    fn remove_others(&mut self, objects: &[Object]) -> Result<usize, RemoteError> {
        let names: BTreeSet<&str> = objects.iter().map(|object| object.path.as_str()).collect();
        self.held.retain(|name, _| names.contains(name.as_str()));
        let wanted: BTreeSet<PathBuf> = names.iter().map(|name| self.folder.join(name)).collect();
        let mut removed = 0;
        remove_others(&self.folder, &wanted, &mut removed).map_err(RemoteError::io(&self.folder))?;
        Ok(removed)
    }

    fn write_record(&self) -> Result<(), RemoteError> {
        let write = || -> io::Result<()> {
            let file = tempfile::NamedTempFile::new_in(&self.scratch)?;
            serde_json::to_writer(&file, &self.held)?;
            file.persist(&self.record).map_err(|error| error.error)?;
            Ok(())
        };
        write().map_err(RemoteError::io(&self.record))
    }
}

/// Removes the files below a folder that are not in `wanted`, and folders that are then empty. Returns
/// whether the folder is empty.
fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>, removed: &mut usize) -> io::Result<bool> {
    let mut is_empty = true;
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if fs::symlink_metadata(&path)?.is_dir() {
            match remove_others(&path, wanted, removed)? {
                true => fs::remove_dir(&path)?,
                false => is_empty = false,
            }
        } else if wanted.contains(&path) {
            is_empty = false;
        } else {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                _ => *removed += 1,
            }
        }
    }
    Ok(is_empty)
}
