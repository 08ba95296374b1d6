//! Constants identified by content, so that bundles can share one copy.

use crate::bundle::Bundle;
use crate::graph::{BufferId, BufferKind};
use crate::hexadecimal;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes per leaf of the hash: large enough to be worth handing to a thread, small enough that a
/// large constant keeps several threads busy.
const LEAF_BYTES: usize = 1 << 20;
/// Fewest leaves that justify another thread.
const LEAVES_PER_THREAD: usize = 4;

/// Identifies a constant by its bytes. The digest is the SHA-256 of a list: the number of bytes (a
/// little-endian u64), then the SHA-256 of each mebibyte. Equal digests mean equal bytes, also
/// across tenants that do not trust each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct ConstantDigest([u8; 32]);

impl ConstantDigest {
    /// The digest itself.
    pub fn bytes(self) -> [u8; 32] {
        self.0
    }

    /// The digest of `bytes`.
    pub fn of(bytes: &[u8]) -> ConstantDigest {
        let [digest] = ConstantDigest::of_each(&[bytes])[..] else { unreachable!("one digest of one content") };
        digest
    }

    /// The digests of several contents, computed by several threads if there is enough to hash.
    pub fn of_each(contents: &[&[u8]]) -> Vec<ConstantDigest> {
        let leaves: Vec<&[u8]> = contents.iter().flat_map(|content| content.chunks(LEAF_BYTES)).collect();
        let mut digests = hash_all(&leaves).into_iter();
        let root = |content: &&[u8]| {
            let mut hash = Sha256::new_with_prefix((content.len() as u64).to_le_bytes());
            digests.by_ref().take(content.len().div_ceil(LEAF_BYTES)).for_each(|leaf| hash.update(leaf));
            ConstantDigest(hash.finalize().into())
        };
        contents.iter().map(root).collect()
    }
}

/// Hashes every leaf. Leaves are taken in order, so a file is read sequentially.
fn hash_all(leaves: &[&[u8]]) -> Vec<[u8; 32]> {
    let next = AtomicUsize::new(0);
    let work = || {
        let indices =
            std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < leaves.len()));
        indices.map(|index| (index, Sha256::digest(leaves[index]).into())).collect::<Vec<(usize, [u8; 32])>>()
    };
    // Up to two threads on any machine, and otherwise at most half of the cores, to leave the rest
    // to other work.
    let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let workers = (cores / 2).max(2).min(leaves.len() / LEAVES_PER_THREAD).saturating_sub(1);
    let mut digests = vec![[0; 32]; leaves.len()];
    std::thread::scope(|scope| {
        // If a thread fails to start, the others do its work.
        let workers: Vec<_> =
            (0..workers).filter_map(|_| std::thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        let others = workers.into_iter().flat_map(|worker| worker.join().expect("hashing does not panic"));
        own.into_iter().chain(others).for_each(|(index, digest)| digests[index] = digest);
    });
    digests
}

impl From<ConstantDigest> for String {
    fn from(digest: ConstantDigest) -> String {
        hexadecimal::text(&digest.0)
    }
}

impl TryFrom<String> for ConstantDigest {
    type Error = String;

    fn try_from(text: String) -> Result<ConstantDigest, String> {
        let bytes = hexadecimal::parse(&text).and_then(|bytes| bytes.try_into().ok());
        bytes.map(ConstantDigest).ok_or_else(|| format!("`{}` is not a digest", text.escape_debug()))
    }
}

impl fmt::Debug for ConstantDigest {
    /// The first eight bytes in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One constant buffer of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constant {
    /// The buffer.
    pub buffer: BufferId,
    /// Its content.
    pub digest: ConstantDigest,
    /// Offset in [`Bundle::weights`].
    pub offset: u64,
    /// Size in bytes.
    pub bytes: u64,
}

impl Constant {
    /// The constants of a valid graph, in the order of their buffers.
    pub(crate) fn all_of(bundle: &Bundle) -> Vec<Constant> {
        let constant = |(buffer, spec): (BufferId, &crate::BufferSpec)| {
            // Validation has computed both and checked that they lie within the weights.
            let bytes = spec.bytes().eval(&[]).ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
            let offset = spec.weights_offset.unwrap_or(0);
            Constant { buffer, digest: bundle.weights_digest(offset, bytes), offset, bytes }
        };
        bundle.graph().buffers_of(BufferKind::Const).map(constant).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_covers_the_bytes_and_their_number() {
        let long: Vec<u8> = (0..10 * LEAF_BYTES + 17).map(|i| ((i * i) >> 7) as u8).collect();
        let contents = [&long[..], &[], &long[..LEAF_BYTES], &long[1..], &[0], &[0, 0]];
        let together = ConstantDigest::of_each(&contents);
        for (content, digest) in contents.iter().zip(&together) {
            let leaves = content.chunks(LEAF_BYTES).map(Sha256::digest);
            let plain = leaves.fold(Sha256::new_with_prefix((content.len() as u64).to_le_bytes()), |hash, leaf| {
                hash.chain_update(leaf)
            });
            assert_eq!(digest.0, <[u8; 32]>::from(plain.finalize()));
            assert_eq!(ConstantDigest::try_from(String::from(*digest)), Ok(*digest));
        }
        let mut distinct = together.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), contents.len());
        assert!(
            ConstantDigest::try_from("12ä".to_string()).is_err() && ConstantDigest::try_from("00".repeat(33)).is_err()
        );
    }
}
