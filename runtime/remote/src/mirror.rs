//! Mirrors a repository into a folder.

use crate::error::RemoteError;
use crate::fetch::{Client, Fetched};
use crate::listing::{OBJECTS_MAX, Object};
use crate::location::Location;
use crate::{Options, sign};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
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
    /// Folders whose entries have changed since the record was written.
    unsynced: BTreeSet<PathBuf>,
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
        let unsynced = BTreeSet::new();
        Ok(Remote { url: url.into(), client, bytes_max, folder, scratch, record, held, unsynced })
    }

    /// The folder with the files.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether an earlier synchronization left files.
    pub fn has_files(&self) -> bool {
        !self.held.is_empty()
    }

    /// Fetches what is new or has changed, and then removes what is gone. If both do not fit the limit
    /// of bytes together, what is gone is removed first.
    ///
    /// # Errors
    /// Fails if the repository cannot be read. Files that were fetched until then stay. Files that are
    /// gone stay too, unless the limit needs their room.
    pub fn sync(&mut self) -> Result<Changes, RemoteError> {
        let mut changes = Changes::default();
        let mut changed = String::new();
        for _ in 0..ROUNDS {
            let objects = self.client.list()?;
            self.check(&objects)?;
            changes.removed += self.make_room(&objects)?;
            let fetched = self.fetch_all(&objects, &mut changes);
            self.write_record()?;
            match fetched? {
                None => {
                    changes.removed += self.remove_others(&objects)?;
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

    /// Removes files that the repository does not have if they do not fit the limit of bytes together
    /// with all objects.
    fn make_room(&mut self, objects: &[Object]) -> Result<usize, RemoteError> {
        let mut others = self.on_disk()?;
        let listed = objects.iter().fold(0, |sum: u64, object| sum.saturating_add(object.bytes));
        for object in objects {
            others.remove(&self.folder.join(&object.path));
        }
        let bytes = others.values().fold(listed, |sum, bytes| sum.saturating_add(*bytes));
        if bytes <= self.bytes_max {
            return Ok(0);
        }
        tracing::debug!(url = self.url, bytes, "files are removed before others are fetched");
        self.remove_others(objects)
    }

    /// The files of the folder with their bytes, also those that the record does not have.
    fn on_disk(&self) -> Result<BTreeMap<PathBuf, u64>, RemoteError> {
        let mut all = BTreeMap::new();
        measure(&self.folder, &mut all).map_err(RemoteError::io(&self.folder))?;
        Ok(all)
    }

    /// Fetches the objects that the folder does not have: first those that become smaller, so that the
    /// files stay within the limit of bytes. Returns the name of one that has changed since it was
    /// listed.
    fn fetch_all(&mut self, objects: &[Object], changes: &mut Changes) -> Result<Option<String>, RemoteError> {
        let mut changed = None;
        let on_disk = self.on_disk()?;
        let before = |object: &Object| on_disk.get(&self.folder.join(&object.path)).copied().unwrap_or(0);
        let missing = objects.iter().filter(|object| !self.has(object));
        let mut missing: Vec<(u64, &Object)> = missing.map(|object| (before(object), object)).collect();
        missing.sort_by_key(|(before, object)| i128::from(object.bytes) - i128::from(*before));
        let mut bytes = on_disk.values().fold(0, |sum: u64, bytes| sum.saturating_add(*bytes));
        for (before, object) in missing {
            let after = bytes.saturating_sub(before).saturating_add(object.bytes);
            if object.bytes > before && after > self.bytes_max {
                // One that becomes smaller was not replaced.
                changed.get_or_insert_with(|| format!("there is no room for {}", object.path));
                continue;
            }
            let mut file = tempfile::NamedTempFile::new_in(&self.scratch).map_err(RemoteError::io(&self.scratch))?;
            match self.client.fetch(object, file.as_file_mut(), &self.scratch)? {
                Fetched::Changed(what) => changed = Some(what),
                Fetched::Done => {
                    let path = self.folder.join(&object.path);
                    // A crash of the machine must not leave a file that is recorded and incomplete.
                    file.as_file().sync_all().map_err(RemoteError::io(&path))?;
                    // If replacing the file fails midway, it is fetched again.
                    self.held.remove(&object.path);
                    self.make_way(&object.path).map_err(RemoteError::io(&path))?;
                    let parents = path.ancestors().skip(1).take_while(|parent| parent.starts_with(&self.folder));
                    self.unsynced.extend(parents.map(Path::to_owned));
                    file.persist(&path).map_err(|error| error.error).map_err(RemoteError::io(&path))?;
                    let held = Held { bytes: object.bytes, version: object.version.clone() };
                    self.held.insert(object.path.clone(), held);
                    bytes = after;
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

    /// Writes the record, once the files and folders that it names are on the disk.
    fn write_record(&mut self) -> Result<(), RemoteError> {
        for folder in &self.unsynced {
            match File::open(folder).and_then(|folder| folder.sync_all()) {
                // It was removed since.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                synced => synced.map_err(RemoteError::io(folder))?,
            }
        }
        self.unsynced.clear();
        let write = || -> io::Result<()> {
            let file = tempfile::NamedTempFile::new_in(&self.scratch)?;
            serde_json::to_writer(&file, &self.held)?;
            file.as_file().sync_all()?;
            file.persist(&self.record).map_err(|error| error.error)?;
            self.record.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
        };
        write().map_err(RemoteError::io(&self.record))
    }
}

/// Adds the files below a folder with their bytes.
fn measure(folder: &Path, all: &mut BTreeMap<PathBuf, u64>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let metadata = fs::symlink_metadata(&path)?;
        match metadata.is_dir() {
            true => measure(&path, all)?,
            false => drop(all.insert(path, metadata.len())),
        }
    }
    Ok(())
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
