//! Files of shared memory: checks the names that a tenant may use, and opens the files.

use crate::identity::{Access, Principal};
use crate::limits::SHARED_KEY_BYTES_MAX;
use crate::requests::error::{Kind, RequestError};
use rustix::fs::{FileType, Mode, OFlags, fstat, open, openat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The folder in which `shm_open` creates objects.
pub(super) const FOLDER: &str = "/dev/shm";

/// Longest name of a file on Linux.
const NAME_BYTES_MAX: usize = SHARED_KEY_BYTES_MAX - 1;

/// The prefix of the files of named semaphores, which clients cannot register.
const SEMAPHORE: &str = "sem.";

/// The name of the file for a key, if the tenant may use it. The name must not contain a folder.
/// Unless the tenant is `local`, it must begin with the tenant's name and a colon. Leading slashes
/// are ignored, as `shm_open` does. Accesses no file.
pub(super) fn name<'k>(caller: &Principal, key: &'k str) -> Result<&'k str, RequestError> {
    if key.len() > SHARED_KEY_BYTES_MAX {
        let (bytes, shown) = (key.len(), shown(key));
        let text = format!("key {shown} has {bytes} bytes; the limit is {SHARED_KEY_BYTES_MAX}");
        return Err(RequestError::bad_request(text));
    }
    let name = key.trim_start_matches('/');
    let is_plain = !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(['/', '\0']);
    if !is_plain || name == "." || name == ".." || name.starts_with(SEMAPHORE) {
        let text = format!(
            "key {} is not a name of shared memory; send the name that was given to shm_open: one file in \
            {FOLDER}, without folders, and no semaphore",
            shown(key)
        );
        return Err(RequestError::bad_request(text));
    }
    let tenant = &caller.tenant;
    let is_own = name.strip_prefix(tenant.as_str()).is_some_and(|rest| rest.len() > 1 && rest.starts_with(':'));
    if tenant.is_local() || is_own {
        return Ok(name);
    }
    let text = format!(
        "tenant `{tenant}` may share memory whose name begins with `{tenant}:`, and key {} does not; create it for \
        example as `{tenant}:input`",
        shown(key)
    );
    Err(RequestError::new(Kind::Denied, text))
}

fn shown(key: &str) -> String {
    format!("{:?}", key.chars().take(80).collect::<String>())
}

/// Opens a file of shared memory whose name was checked. It must be a regular file without another
/// hard link, and belong to a user who may act for the tenant. Returns the file and its size in
/// bytes.
pub(super) fn open_shared(access: &Access, caller: &Principal, name: &str) -> Result<(OwnedFd, u64), RequestError> {
    let refused = |reason: &str| RequestError::bad_request(format!("{FOLDER}/{name} {reason}"));
    let folder = open(FOLDER, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let folder = folder.map_err(|error| RequestError::bad_request(format!("cannot open {FOLDER}: {error}")))?;
    // Does not follow a symbolic link, and does not block on a pipe or on a file lease of the
    // file's owner.
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(&folder, name, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT => refused("does not exist; create it before it is registered"),
        Errno::LOOP => refused("is a link, and links are not followed"),
        Errno::ACCESS => {
            let own = rustix::process::geteuid().as_raw();
            refused(&format!("cannot be opened by the daemon, which is user {own}; let it read and write the file"))
        }
        error => refused(&format!("cannot be opened: {error}")),
    })?;
    let about = fstat(&file).map_err(|error| refused(&format!("cannot be examined: {error}")))?;
    if FileType::from_raw_mode(about.st_mode) != FileType::RegularFile {
        return Err(refused("is not a file of shared memory"));
    }
    // A second hard link could give a user's file a name that belongs to another tenant.
    if about.st_nlink != 1 {
        return Err(refused("has several names, or was deleted; create it again with one name"));
    }
    let (owner, tenant) = (about.st_uid, &caller.tenant);
    if access.principal(owner, Some(tenant.clone())).is_err() {
        let text = format!(
            "{FOLDER}/{name} belongs to user {owner}, who may not act for tenant `{tenant}`; add uids = [{owner}] to \
            the section [tenant.{tenant}] of the daemon's configuration, or create it as another user"
        );
        return Err(RequestError::new(Kind::Denied, text));
    }
    Ok((file, u64::try_from(about.st_size).unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_and_those_of_tenants_begin_with_their_own() {
        let (local, vision) = (Principal::of_test("local"), Principal::of_test("vision"));
        for (key, expected) in [("/in", "in"), ("in", "in"), ("//in", "in"), ("/a b:ü", "a b:ü"), ("/...", "...")] {
            assert_eq!(name(&local, key), Ok(expected), "{key}");
        }
        assert_eq!(name(&vision, "/vision:in"), Ok("vision:in"));
        for key in ["", "/", ".", "..", "/..", "../shm/in", "a/b", "/dev/shm/in", "in/", "a\0b", "sem.lock", "/sem.x"] {
            assert_eq!(name(&local, key).unwrap_err().kind, Kind::BadRequest, "{key:?}");
        }
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        assert!(name(&local, &long).is_err() && name(&local, &long[1..]).is_ok());
        let slashes = "/".repeat(SHARED_KEY_BYTES_MAX);
        assert_eq!(name(&local, &format!("{}x", &slashes[1..])), Ok("x"));
        assert!(name(&local, &format!("{slashes}x")).unwrap_err().message.contains("257 bytes; the limit is 256"));
        for key in ["in", "vision", "vision:", "visions:in", "vision.in", "speech:in", "local:in", "Vision:in"] {
            assert_eq!(name(&vision, key).unwrap_err().kind, Kind::Denied, "{key}");
        }
        assert_eq!(name(&vision, "vision:../../etc/passwd").unwrap_err().kind, Kind::BadRequest);
    }
}
