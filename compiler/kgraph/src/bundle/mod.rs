//! The bundle: one file `*.kg` that holds a kernel graph, its weights and the code of one or more
//! targets.
//!
//! It is a zip archive of uncompressed, page-aligned members, so that it can be mapped:
//!
//! - `manifest.json`: format version, producer, size and SHA-256 of every other member, and digests
//!   of the pieces of the weights. The SHA-256 of this member is the digest of the bundle.
//! - `graph.json`: the [`KernelGraph`].
//! - `weights.safetensors`: one byte tensor `weights`; [`crate::BufferSpec::weights_offset`]
//!   locates a constant in it.
//! - `targets/<name>/target.json`: the [`TargetImage`].
//! - `targets/<name>/code`: PTX text or a native object.
//! - `targets/<name>/kernels.ptx`: native targets only, the PTX that the code was compiled from.
//! - `sources/<digest>.ptx.gz`: PTX before the passes, named by the digest of its text. Targets
//!   with the same text share it.
//!
//! [`Bundle::open`] checks everything once; afterwards the types guarantee it. A bundle is
//! immutable: no process writes to a file that may be mapped.

mod code;
mod contents;
mod directory;
mod error;
mod json;
mod manifest;
mod mapped;
mod outline;
mod pages;
mod read;
mod read_outline;
mod recompiled;
mod write;

pub use code::{decode_code, encode_code};
pub use contents::TargetContents;
pub use error::BundleError;
pub use mapped::Mapped;
pub use outline::Outline;
pub use write::{BundleContents, write_bundle};

use crate::constants::{Constant, ConstantDigest};
use crate::graph::KernelGraph;
use crate::hexadecimal;
use crate::limits::SOURCE_BYTES_MAX;
use crate::target::TargetImage;
use flate2::read::GzDecoder;
use memmap2::Mmap;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// An open, validated and mapped bundle.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    map: Arc<Mmap>,
    digest: String,
    format: u32,
    producer: String,
    graph: Arc<KernelGraph>,
    weights: Range<usize>,
    /// Digests of the pieces of the weights, by offset and size in the member.
    digests: Arc<BTreeMap<(u64, u64), ConstantDigest>>,
    /// Offset of the weights in their member: the size of the safetensors header.
    header_bytes: u64,
    constants: OnceLock<Vec<Constant>>,
    targets: BTreeMap<String, Target>,
}

#[derive(Debug)]
struct Target {
    image: TargetImage,
    code: Part,
    ptx: Option<Part>,
    source: Option<Range<usize>>,
}

/// Where a part of a target is stored.
#[derive(Debug)]
enum Part {
    /// In the mapped file.
    File(Range<usize>),
    /// In memory, since the target was recompiled ([`Bundle::with_code`]).
    Memory(Vec<u8>),
}

impl Bundle {
    /// The path that it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the manifest in hexadecimal. It identifies the content of the bundle.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The format version of the file.
    pub fn format(&self) -> u32 {
        self.format
    }

    /// Name and version of the compiler that wrote it.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// The target-independent graph.
    pub fn graph(&self) -> &KernelGraph {
        &self.graph
    }

    /// All weights; [`crate::BufferSpec::weights_offset`] is an offset in this slice.
    pub fn weights(&self) -> &[u8] {
        &self.map[self.weights.clone()]
    }

    /// The constants with the digests of their contents, in the order of their buffers. The first
    /// call hashes the constants for which the manifest has no digest.
    pub fn constants(&self) -> &[Constant] {
        self.constants.get_or_init(|| Constant::all_of(self))
    }

    /// The digest of a range of the weights: the one checked when the bundle was opened, if there
    /// is one.
    pub(crate) fn weights_digest(&self, offset: u64, bytes: u64) -> ConstantDigest {
        let known = self.digests.get(&(self.header_bytes + offset, bytes)).copied();
        known.unwrap_or_else(|| ConstantDigest::of(&self.weights()[offset as usize..(offset + bytes) as usize]))
    }

    /// Device memory of the constants in bytes: each distinct content once, rounded up to `granule`
    /// (a power of two), the allocation unit of the device.
    pub fn constant_bytes(&self, granule: u64) -> u64 {
        let distinct: BTreeMap<_, _> =
            self.constants().iter().map(|constant| (constant.digest, constant.bytes)).collect();
        distinct.values().map(|bytes| bytes.next_multiple_of(granule)).sum()
    }

    /// Names of the targets, ascending.
    pub fn target_names(&self) -> impl Iterator<Item = &str> {
        self.targets.keys().map(String::as_str)
    }

    /// Launches and kernel facts of a target.
    pub fn target(&self, name: &str) -> Option<&TargetImage> {
        self.targets.get(name).map(|t| &t.image)
    }

    /// Code of a target: PTX text or a native object.
    pub fn code(&self, name: &str) -> Option<&[u8]> {
        self.targets.get(name).map(|target| self.part(&target.code))
    }

    /// PTX of a target: the source of its native code, or the code itself.
    pub fn ptx(&self, name: &str) -> Option<&[u8]> {
        self.targets.get(name).map(|target| self.part(target.ptx.as_ref().unwrap_or(&target.code)))
    }

    fn part<'a>(&'a self, part: &'a Part) -> &'a [u8] {
        match part {
            Part::File(range) => &self.map[range.clone()],
            Part::Memory(bytes) => bytes,
        }
    }

    /// PTX of a target's kernels before the passes; `None` if the target has none, as in bundles of
    /// format 1.
    ///
    /// # Errors
    /// The text exceeds [`SOURCE_BYTES_MAX`], is damaged, or does not match its digest.
    pub fn source(&self, name: &str) -> Result<Option<String>, BundleError> {
        let Some((target, member)) = self.targets.get(name).and_then(|target| Some((target, target.source.clone()?)))
        else {
            return Ok(None);
        };
        let corrupt = |reason: String| BundleError::Corrupt {
            path: self.path.clone(),
            reason: format!("the source of {name}: {reason}"),
        };
        let mut text = String::new();
        let read = GzDecoder::new(&self.map[member]).take(SOURCE_BYTES_MAX + 1).read_to_string(&mut text);
        read.map_err(|error| corrupt(error.to_string()))?;
        if text.len() as u64 > SOURCE_BYTES_MAX {
            return Err(corrupt(format!("larger than {SOURCE_BYTES_MAX} bytes")));
        }
        if target.image.source.as_deref() != Some(hexadecimal::text(&Sha256::digest(&text)).as_str()) {
            return Err(corrupt("it differs from its digest".into()));
        }
        Ok(Some(text))
    }

    /// The text that a signature of this bundle signs. It contains the digest, which covers the
    /// content of every member.
    pub fn signed_text(&self) -> String {
        format!("atoll bundle {}\n", self.digest)
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.map.len() as u64
    }
}
