//! Large contents of answers, which clients hold in memory files.
//!
//! An output or object that does not fit the body of a frame goes to the client in a memory file. Its
//! memory is the daemon's, and stays until the client closes the file. So the daemon remembers each
//! file until it is closed, and refuses answers of a tenant whose clients hold too much.

use super::refusal::{HasRefusalKind, OrRefuse};
use crate::limits::{HELD_BYTES_PER_TENANT_MAX, HELD_CHECK_BYTES, HELD_FILES_PER_TENANT_MAX};
use atoll_control::{Attachments, Blob, Refusal, RefusalKind};
use atoll_engine::Tenant;
use atoll_sealed::{Passed, Sealed};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The memory files of answers that clients hold, by tenant.
#[derive(Debug, Default)]
pub(super) struct HeldFiles(Mutex<BTreeMap<Tenant, Account>>);

/// The files of a tenant.
#[derive(Debug, Default)]
struct Account {
    /// Files that are being made.
    expected: Total,
    passed: Vec<(Passed, u64)>,
}

/// Number and bytes of files.
#[derive(Clone, Copy, Debug, Default)]
struct Total {
    files: usize,
    bytes: u64,
}

/// The clients of a tenant hold too much.
#[derive(Debug, thiserror::Error)]
#[error(
    "the clients of tenant `{tenant}` hold {files} files of earlier answers with {held} bytes; with {wanted} bytes \
     more the limit of {HELD_BYTES_PER_TENANT_MAX} bytes or {HELD_FILES_PER_TENANT_MAX} files is exceeded. Close the \
     files of earlier answers"
)]
pub(super) struct TooMuchHeld {
    tenant: Tenant,
    files: usize,
    held: u64,
    wanted: u64,
}

impl HasRefusalKind for TooMuchHeld {
    fn kind(&self) -> RefusalKind {
        RefusalKind::Quota
    }
}

impl Account {
    fn total(&self) -> Total {
        let bytes = self.passed.iter().map(|(_, bytes)| bytes).sum::<u64>();
        Total { files: self.expected.files + self.passed.len(), bytes: self.expected.bytes.saturating_add(bytes) }
    }

    /// Whether a further file is within the limits. A file that is larger than the limit is admitted
    /// alone.
    fn admits(&self, bytes: u64, limit_bytes: u64) -> bool {
        let held = self.total();
        held.files == 0 || (held.files < HELD_FILES_PER_TENANT_MAX && held.bytes.saturating_add(bytes) <= limit_bytes)
    }

    /// Forgets the files that clients have closed.
    fn check(&mut self) {
        self.passed.retain(|(passed, _)| passed.is_held());
    }
}

impl HeldFiles {
    /// Reserves room for a file, before it takes memory.
    pub(super) fn reserve(&self, tenant: &Tenant, bytes: u64) -> Result<Room<'_>, TooMuchHeld> {
        let mut accounts = self.lock();
        let account = accounts.entry(tenant.clone()).or_default();
        // Asking takes two system calls for each file, so not for each small answer.
        if !account.admits(bytes, HELD_CHECK_BYTES) {
            account.check();
        }
        if !account.admits(bytes, HELD_BYTES_PER_TENANT_MAX) {
            let Total { files, bytes: held } = account.total();
            return Err(TooMuchHeld { tenant: tenant.clone(), files, held, wanted: bytes });
        }
        account.expected.files += 1;
        account.expected.bytes += bytes;
        Ok(Room { of: self, tenant: tenant.clone(), bytes })
    }

    /// Adds bytes of an answer: to the body if they fit, otherwise in a memory file of the tenant.
    pub(super) fn attach(&self, tenant: &Tenant, attachments: &mut Attachments, bytes: &[u8]) -> Result<Blob, Refusal> {
        if let Some(blob) = attachments.add_inline(bytes) {
            return Ok(blob);
        }
        let room = self.reserve(tenant, bytes.len() as u64).or_refuse()?;
        room.attach(attachments, &Sealed::of("atoll-answer", bytes).or_refuse()?)
    }

    /// Forgets the files that clients have closed, so that their memory is freed.
    pub(super) fn check(&self) {
        self.lock().retain(|_, account| {
            account.check();
            account.total().files > 0
        });
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, Account>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Room for one file.
#[derive(Debug)]
pub(super) struct Room<'a> {
    of: &'a HeldFiles,
    tenant: Tenant,
    bytes: u64,
}

impl Room<'_> {
    /// Adds a memory file of the daemon to an answer. It counts until the client has closed it.
    pub(super) fn attach(self, attachments: &mut Attachments, content: &Sealed) -> Result<Blob, Refusal> {
        let (fd, passed) = Passed::of(content).or_refuse()?;
        let blob = Blob::File(attachments.add_memory(fd).or_refuse()?);
        let mut accounts = self.of.lock();
        accounts.entry(self.tenant.clone()).or_default().passed.push((passed, self.bytes));
        Ok(blob)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        if let Some(account) = self.of.lock().get_mut(&self.tenant) {
            account.expected.files -= 1;
            account.expected.bytes -= self.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        name.parse().unwrap()
    }

    #[test]
    fn a_tenant_may_hold_so_much_until_its_clients_close_files() {
        let held = HeldFiles::default();
        let (a, b) = (tenant("a"), tenant("b"));
        let attach = |tenant: &Tenant, bytes: u64| {
            let mut attachments = Attachments::default();
            held.reserve(tenant, bytes).map(|room| {
                room.attach(&mut attachments, &Sealed::of("test", b"x").unwrap()).unwrap();
                attachments
            })
        };
        let half = HELD_BYTES_PER_TENANT_MAX / 2;
        let (first, second) = (attach(&a, half).unwrap(), attach(&a, half).unwrap());
        let refused = attach(&a, 1).unwrap_err();
        assert_eq!((refused.files, refused.held, refused.kind()), (2, 2 * half, RefusalKind::Quota));
        assert!(attach(&b, 1).is_ok(), "another tenant");
        drop(first);
        let third = attach(&a, half).unwrap();
        assert!(attach(&a, 1).is_err());
        drop((second, third));
        // Larger than the limit, and alone.
        let large = attach(&a, HELD_BYTES_PER_TENANT_MAX + 1).unwrap();
        assert!(attach(&a, 0).is_err());
        drop(large);
        held.check();
        assert!(held.lock().is_empty());
    }

    #[test]
    fn files_that_are_being_made_count_and_their_number_is_limited() {
        let held = HeldFiles::default();
        let a = tenant("a");
        let room = held.reserve(&a, HELD_BYTES_PER_TENANT_MAX).unwrap();
        assert!(held.reserve(&a, 1).is_err());
        drop(room);
        let rooms: Vec<_> = (0..HELD_FILES_PER_TENANT_MAX).map(|_| held.reserve(&a, 0).unwrap()).collect();
        assert!(held.reserve(&a, 0).is_err());
        drop(rooms);
        assert!(held.reserve(&a, 0).is_ok());
    }

    #[test]
    fn small_contents_are_in_the_body() {
        let held = HeldFiles::default();
        let mut attachments = Attachments::default();
        assert!(matches!(held.attach(&tenant("a"), &mut attachments, b"small"), Ok(Blob::Inline { .. })));
        assert!(matches!(held.attach(&tenant("a"), &mut attachments, &[0; 1 << 20]), Ok(Blob::File(0))));
        assert_eq!(held.lock()[&tenant("a")].total().bytes, 1 << 20);
    }
}
