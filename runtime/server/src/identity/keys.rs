//! Tokens of HTTP and gRPC clients, and the file that keeps their hashes.
//!
//! A token is `atoll_ID_SECRET`, with an id of 8 random bytes and a secret of 32 random bytes, both
//! in hexadecimal. Lists show the id. The file has the SHA-256 of the secret. A slow hash is not
//! needed, because 256 random bits cannot be guessed by trying.

use super::access::Access;
use super::principal::Principal;
use crate::limits::{KEY_FILE_BYTES_MAX, KEY_NOTE_BYTES_MAX, KEYS_MAX};
use atoll_engine::Tenant;
use rustix::fs::{FlockOperation, Mode, OFlags};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use subtle::ConstantTimeEq;

/// The prefix of every token, by which people and secret scanners recognize it.
pub const TOKEN_PREFIX: &str = "atoll_";

const ID_BYTES: usize = 8;
const SECRET_BYTES: usize = 32;

/// The version of the file's format.
const VERSION: u32 = 1;

/// Why a keys file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The content of the file is not valid.
    #[error("{path} is not a valid keys file: {reason}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// Other users may read or change the file.
    #[error("{path} has mode {mode:04o}, but only its owner may read a keys file; run chmod 600 {path}")]
    Mode {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// There is no key with this id.
    #[error("{path} has no key {id}; `atoll auth list` shows all keys")]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The id.
        id: String,
    },
    /// A new key is refused: its note is too long, or the file is full.
    #[error("{path}: {reason}")]
    Refused {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// The keys file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyFile {
    /// Version of the format: 1.
    version: u32,
    /// The keys, in order of their creation.
    pub keys: Vec<KeyRecord>,
}

/// A key, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRecord {
    /// The id, which is the part of the token after the prefix.
    pub id: String,
    /// SHA-256 of the secret part of the token, in hexadecimal.
    pub sha256: String,
    /// The tenant that requests with the token act for.
    pub tenant: Tenant,
    /// When it was created, in seconds since 1970.
    pub created_s: u64,
    /// When it expires, in seconds since 1970; `None` for never.
    pub expires_s: Option<u64>,
    /// When it was revoked, in seconds since 1970.
    pub revoked_s: Option<u64>,
    /// A note for the operator.
    pub note: String,
}

/// Whether a key can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum KeyState {
    /// It can be used.
    Active,
    /// It has expired.
    Expired,
    /// It was revoked.
    Revoked,
}

/// A token, with the only copy of its secret.
pub struct Token {
    /// The id of the key.
    pub id: String,
    secret: String,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TOKEN_PREFIX}{}_{}", self.id, self.secret)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.id)
    }
}

impl Token {
    fn random() -> io::Result<Token> {
        Ok(Token { id: hexadecimal(&random::<ID_BYTES>()?), secret: hexadecimal(&random::<SECRET_BYTES>()?) })
    }
}

impl KeyRecord {
    /// Whether it can be used at this time.
    pub fn state(&self, now_s: u64) -> KeyState {
        match (self.revoked_s, self.expires_s) {
            (Some(_), _) => KeyState::Revoked,
            (None, Some(expires_s)) if expires_s <= now_s => KeyState::Expired,
            _ => KeyState::Active,
        }
    }
}

impl KeyFile {
    /// Reads and checks a file. Only its owner may have permissions on it, and the owner must be
    /// the user of this process or root.
    pub fn read(path: &Path) -> Result<KeyFile, KeyError> {
        let io = |source| KeyError::Io { path: path.into(), source };
        // If the path is a pipe, opening it must not block.
        let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        let format = |reason: String| KeyError::Format { path: path.into(), reason };
        if !metadata.is_file() {
            return Err(format("it is not a regular file".into()));
        }
        if metadata.mode() & 0o077 != 0 {
            return Err(KeyError::Mode { path: path.into(), mode: metadata.mode() & 0o7777 });
        }
        if metadata.uid() != 0 && metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(format(format!("it belongs to user {}; it must belong to this user or root", metadata.uid())));
        }
        let mut text = String::new();
        file.take(KEY_FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(io)?;
        KeyFile::parse(&text).map_err(format)
    }

    fn parse(text: &str) -> Result<KeyFile, String> {
        if text.len() as u64 > KEY_FILE_BYTES_MAX {
            return Err(format!("it is larger than {KEY_FILE_BYTES_MAX} bytes"));
        }
        let file: KeyFile = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if file.version != VERSION {
            return Err(format!("it has version {}, and this program reads version {VERSION}", file.version));
        }
        if file.keys.len() > KEYS_MAX {
            return Err(format!("it has {} keys; the limit is {KEYS_MAX}", file.keys.len()));
        }
        let mut ids = std::collections::HashSet::new();
        for key in &file.keys {
            let id = key.id.escape_debug();
            if bytes::<ID_BYTES>(&key.id).is_none() {
                return Err(format!("`{id}` is not the id of a key"));
            }
            if bytes::<SECRET_BYTES>(&key.sha256).is_none() {
                return Err(format!("the sha256 of key {id} is not a SHA-256 in hexadecimal"));
            }
            if !ids.insert(&key.id) {
                return Err(format!("key {id} is listed twice"));
            }
        }
        Ok(file)
    }

    /// Adds a key for a tenant and returns the new token. Creates the file if there is none. The
    /// file has only the hash of the token's secret. `expires_s` is in seconds since 1970.
    pub fn create(path: &Path, tenant: Tenant, expires_s: Option<u64>, note: &str) -> Result<Token, KeyError> {
        let io = |source| KeyError::Io { path: path.into(), source };
        let refused = |reason: String| KeyError::Refused { path: path.into(), reason };
        if note.len() > KEY_NOTE_BYTES_MAX {
            return Err(refused(format!("the note has {} bytes; the limit is {KEY_NOTE_BYTES_MAX}", note.len())));
        }
        let token = Token::random().map_err(io)?;
        let _lock = lock(path)?;
        let mut file = match KeyFile::read(path) {
            Err(KeyError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                KeyFile { version: VERSION, keys: Vec::new() }
            }
            read => read?,
        };
        if file.keys.len() >= KEYS_MAX {
            return Err(refused(format!(
                "it has {KEYS_MAX} keys, which is the limit; delete revoked ones from the file"
            )));
        }
        file.keys.push(KeyRecord {
            id: token.id.clone(),
            sha256: hexadecimal(&hash(&token.secret)),
            tenant,
            created_s: now_s(),
            expires_s,
            revoked_s: None,
            note: note.into(),
        });
        file.write(path)?;
        Ok(token)
    }

    /// Revokes a key. Revoking it again changes nothing.
    pub fn revoke(path: &Path, id: &str) -> Result<(), KeyError> {
        let _lock = lock(path)?;
        let mut file = KeyFile::read(path)?;
        let key = file.keys.iter_mut().find(|key| key.id == id);
        let key = key.ok_or_else(|| KeyError::Unknown { path: path.into(), id: id.escape_debug().to_string() })?;
        key.revoked_s.get_or_insert(now_s());
        file.write(path)
    }

    /// Writes a temporary file with mode 0600 and renames it, so that readers never see an
    /// incomplete file.
    fn write(&self, path: &Path) -> Result<(), KeyError> {
        let io = |source| KeyError::Io { path: path.into(), source };
        let partial = path.with_extension(format!("{}.partial", std::process::id()));
        let text = serde_json::to_string_pretty(self).map_err(|error| io(error.into()))?;
        let write = || {
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&partial)?;
            file.write_all(text.as_bytes())?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            std::fs::rename(&partial, path)
        };
        write().map_err(|source| {
            if source.kind() != io::ErrorKind::AlreadyExists {
                let _ = std::fs::remove_file(&partial);
            }
            io(source)
        })
    }
}

/// A lock on the file's folder, so that two programs do not change the file at the same time.
fn lock(path: &Path) -> Result<OwnedFd, KeyError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let io = |error: rustix::io::Errno| KeyError::Io { path: folder.into(), source: error.into() };
    let lock = rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let lock = lock.map_err(io)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive).map_err(io)?;
    Ok(lock)
}

/// The keys of a file, ready to be looked up.
pub struct Keys(HashMap<[u8; ID_BYTES], Key>);

struct Key {
    hash: [u8; SECRET_BYTES],
    principal: Arc<Principal>,
    expires_s: u64,
    is_revoked: bool,
}

impl Keys {
    /// The keys of a file, for tenants with these rights.
    pub fn new(file: KeyFile, access: &Access) -> Keys {
        let key = |record: KeyRecord| {
            let key = Key {
                hash: bytes(&record.sha256)?,
                principal: Arc::new(access.of(record.tenant)),
                expires_s: record.expires_s.unwrap_or(u64::MAX),
                is_revoked: record.revoked_s.is_some(),
            };
            Some((bytes(&record.id)?, key))
        };
        Keys(file.keys.into_iter().filter_map(key).collect())
    }

    /// The tenant of a token that can be used now.
    pub fn tenant_of(&self, token: &str) -> Option<&Tenant> {
        self.find(token, now_s()).map(|principal| &principal.tenant)
    }

    /// Number of keys that can be used at this time.
    pub(super) fn active(&self, now_s: u64) -> usize {
        self.0.values().filter(|key| !key.is_revoked && key.expires_s > now_s).count()
    }

    /// The principal of a token. The time of the comparison depends neither on how much of the
    /// secret is right nor on whether the key exists. The id is not secret.
    pub(super) fn find(&self, token: &str, now_s: u64) -> Option<&Arc<Principal>> {
        const NONE: [u8; SECRET_BYTES] = [0; SECRET_BYTES];
        let (id, secret) = token.strip_prefix(TOKEN_PREFIX)?.split_once('_')?;
        let id = bytes::<ID_BYTES>(id)?;
        if secret.len() != 2 * SECRET_BYTES {
            return None;
        }
        let key = self.0.get(&id);
        let is_equal = hash(secret).ct_eq(key.map_or(&NONE, |key| &key.hash));
        let key = key.filter(|_| bool::from(is_equal))?;
        (!key.is_revoked && key.expires_s > now_s).then_some(&key.principal)
    }
}

fn hash(secret: &str) -> [u8; SECRET_BYTES] {
    Sha256::digest(secret.as_bytes()).into()
}

/// Seconds since 1970.
pub(super) fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        filled += rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty())?;
    }
    Ok(bytes)
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The bytes of a text of lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    let text = text.as_bytes();
    let mut bytes = [0; N];
    if text.len() != 2 * N {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn keys(path: &Path) -> Keys {
        Keys::new(KeyFile::read(path).unwrap(), &Access::own(0))
    }

    fn tenant(keys: &Keys, token: &str, now_s: u64) -> Option<String> {
        keys.find(token, now_s).map(|principal| principal.tenant.to_string())
    }

    #[test]
    fn a_token_is_its_tenant_until_it_expires_or_is_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let vision = KeyFile::create(&path, "vision".parse().unwrap(), None, "a note").unwrap();
        let speech = KeyFile::create(&path, "speech".parse().unwrap(), Some(100), "").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(!std::fs::read_to_string(&path).unwrap().contains(&vision.secret), "the secret is not stored");
        assert!(!format!("{vision:?}").contains(&vision.secret));
        let found = keys(&path);
        assert_eq!(tenant(&found, &vision.to_string(), u64::MAX - 1).as_deref(), Some("vision"));
        assert_eq!(tenant(&found, &speech.to_string(), 99).as_deref(), Some("speech"));
        assert_eq!(tenant(&found, &speech.to_string(), 100), None);
        assert_eq!((found.active(99), found.active(100)), (2, 1));
        KeyFile::revoke(&path, &vision.id).unwrap();
        let first = KeyFile::read(&path).unwrap();
        KeyFile::revoke(&path, &vision.id).unwrap();
        assert_eq!(KeyFile::read(&path).unwrap(), first);
        assert_eq!(first.keys[0].state(0), KeyState::Revoked);
        assert_eq!([99, 100].map(|now_s| first.keys[1].state(now_s)), [KeyState::Active, KeyState::Expired]);
        assert_eq!(tenant(&keys(&path), &vision.to_string(), 0), None);
        let unknown = KeyFile::revoke(&path, "0123").unwrap_err().to_string();
        assert!(unknown.contains("has no key 0123"), "{unknown}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }

    #[test]
    fn tokens_that_are_wrong_in_any_byte_are_nobodys() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        let token = KeyFile::create(&path, "vision".parse().unwrap(), None, "").unwrap().to_string();
        let keys = keys(&path);
        assert!(keys.find(&token, 0).is_some());
        for at in 0..token.len() {
            for byte in [b'0', b'f', b'F', b'_', b' '].into_iter().filter(|byte| *byte != token.as_bytes()[at]) {
                let mut wrong = token.clone().into_bytes();
                wrong[at] = byte;
                assert!(keys.find(std::str::from_utf8(&wrong).unwrap(), 0).is_none(), "byte {at}");
            }
            assert!(keys.find(&token[..at], 0).is_none());
        }
        for wrong in [token.clone() + "0", token.to_uppercase(), token.replace("atoll", "other"), String::new()] {
            assert!(keys.find(&wrong, 0).is_none(), "{wrong}");
        }
        let zeros = format!("{TOKEN_PREFIX}{}_{}", "0".repeat(16), "0".repeat(64));
        assert!(keys.find(&zeros, 0).is_none());
    }

    #[test]
    fn files_that_are_not_safe_or_not_valid_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        KeyFile::create(&path, "vision".parse().unwrap(), None, "").unwrap();
        let good = std::fs::read_to_string(&path).unwrap();
        for mode in [0o640, 0o604, 0o620, 0o601] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            let error = KeyFile::read(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")) && error.contains("chmod 600"), "{error}");
        }
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let key = KeyFile::parse(&good).unwrap().keys.remove(0);
        let with = |change: &dyn Fn(&mut KeyFile)| {
            let mut file = KeyFile::parse(&good).unwrap();
            change(&mut file);
            serde_json::to_string(&file).unwrap()
        };
        for (text, expected) in [
            (String::new(), "EOF"),
            (good.replace("\"note\"", "\"nota\""), "nota"),
            (good.replace("vision", "a b"), "is not a tenant name"),
            (with(&|file| file.version = 2), "it has version 2"),
            (with(&|file| file.keys.push(key.clone())), "is listed twice"),
            (with(&|file| file.keys[0].id = "xyz".into()), "`xyz` is not the id of a key"),
            (with(&|file| file.keys[0].sha256 = "12".into()), "is not a SHA-256"),
            (" ".repeat(KEY_FILE_BYTES_MAX as usize + 1), "larger than"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error = KeyFile::read(&path).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("keys.json"), "{expected}: {error}");
        }
        let note = "n".repeat(KEY_NOTE_BYTES_MAX + 1);
        let error = KeyFile::create(&path, "vision".parse().unwrap(), None, &note).unwrap_err().to_string();
        assert!(error.contains("the note has"), "{error}");
        assert!(KeyFile::read(folder.path()).unwrap_err().to_string().contains("not a regular file"));
    }

    #[test]
    fn keys_that_are_created_at_the_same_time_are_all_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys.json");
        // All threads use the same name for the temporary file; only the lock keeps them apart.
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| KeyFile::create(&path, "vision".parse().unwrap(), None, "").unwrap());
            }
        });
        assert_eq!(KeyFile::read(&path).unwrap().keys.len(), 8);
    }
}
