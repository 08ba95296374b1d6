//! Constants by content: what two bundles have in common can be held once.

use crate::bundle::Bundle;
use crate::graph::{BufferId, BufferKind};
use sha2::{Digest, Sha256};
use std::fmt;

/// SHA-256 of a constant's bytes. Equal digests mean equal bytes, also between tenants who do not trust each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConstantDigest([u8; 32]);

impl ConstantDigest {
    /// The digest of some bytes.
    pub fn of(bytes: &[u8]) -> ConstantDigest {
        ConstantDigest(Sha256::digest(bytes).into())
    }
}

impl fmt::Debug for ConstantDigest {
    /// Its first eight bytes, in hexadecimal.
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
    /// Where it starts in [`Bundle::weights`].
    pub offset: u64,
    /// Its size.
    pub bytes: u64,
}

impl Constant {
    /// The constants of a valid graph, in the order of their buffers.
    pub(crate) fn all_of(bundle: &Bundle) -> Vec<Constant> {
        let constant = |(buffer, spec): (BufferId, &crate::BufferSpec)| {
            // The border check computed both and found them inside the weights.
            let bytes = spec.bytes().eval(&[]).ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
            let offset = spec.weights_offset.unwrap_or(0);
            let digest = ConstantDigest::of(&bundle.weights()[offset as usize..(offset + bytes) as usize]);
            Constant { buffer, digest, offset, bytes }
        };
        bundle.graph().buffers_of(BufferKind::Const).map(constant).collect()
    }
}
