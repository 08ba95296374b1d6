//! The bundle: one file `*.kg` that holds a kernel graph, its weights and the code of one or more targets (design D7).
//!
//! It is a zip archive with stored, page-aligned members, so that it can be mapped:
//!
//! | member | content |
//! |---|---|
//! | `manifest.json` | format version, producer, size and SHA-256 of every other member, of the weights piece by piece besides; its own SHA-256 is the bundle's digest |
//! | `graph.json` | [`KernelGraph`] |
//! | `weights.safetensors` | one byte tensor `weights`; constants are found by [`crate::BufferSpec::weights_offset`] |
//! | `targets/<name>/target.json` | [`TargetImage`] |
//! | `targets/<name>/code` | PTX text or a native object |
//! | `targets/<name>/kernels.ptx` | for native targets: the PTX the native code was made from |
//!
//! [`Bundle::open`] checks everything once; after that the types carry the proof. A bundle is immutable: nothing ever writes into a file that may be mapped.

use crate::constants::{Constant, ConstantDigest};
use crate::graph::{FORMAT_VERSION, KernelGraph};
use crate::pieces::Pieces;
use crate::target::TargetImage;
use crate::validate::{self, Invalid};
use memmap2::Mmap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Cursor, Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Alignment of members in the file: a page, so that weights and code can be mapped as they are.
const MEMBER_ALIGN: u16 = 4096;
/// Largest `graph.json`, `target.json` or manifest that is read: the largest seen (DenseNet-201 with five targets) is below 8 MiB.
const JSON_BYTES_MAX: usize = 64 << 20;
/// Most members of a bundle: three per target and three of the bundle's own, with room for a hundred targets.
const MEMBERS_MAX: usize = 512;
/// Name of the member that holds all constants.
const WEIGHTS_MEMBER: &str = "weights.safetensors";
/// Name of the one tensor in `weights.safetensors`.
const WEIGHTS_TENSOR: &str = "weights";

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BundleError {
    /// The file cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// It is no bundle, or it was damaged.
    #[error("{path} is not a usable bundle: {reason}; compile the model again with `atoll compile`")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// A newer Atoll wrote it.
    #[error("{path} has bundle format {found}, this Atoll reads up to {supported}; upgrade Atoll or compile the model again with this one")]
    NewerFormat {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest that is read.
        supported: u32,
    },
    /// The graph or a target contradicts itself.
    #[error("{path} holds an invalid graph: {source}; compile the model again with `atoll compile`")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: Invalid,
    },
}

impl BundleError {
    /// The same about the bytes of a bundle, for somebody to whom the name of this copy means nothing. What the system answers about the copy keeps its name.
    pub fn about(self, file: &str) -> BundleError {
        let path = PathBuf::from(file);
        match self {
            BundleError::Io { .. } => self,
            BundleError::Corrupt { reason, .. } => BundleError::Corrupt { path, reason },
            BundleError::NewerFormat { found, supported, .. } => BundleError::NewerFormat { path, found, supported },
            BundleError::Invalid { source, .. } => BundleError::Invalid { path, source },
        }
    }
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    producer: String,
    members: BTreeMap<String, Member>,
}

#[derive(Serialize, Deserialize)]
struct Member {
    bytes: u64,
    /// Of the whole member: what is checked where there are no pieces, and what other programs can check in any case.
    sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pieces: Option<Pieces>,
}

/// An opened, validated, mapped bundle.
#[derive(Debug)]
pub struct Bundle {
    path: PathBuf,
    map: Mmap,
    digest: String,
    producer: String,
    graph: KernelGraph,
    weights: Range<usize>,
    /// Digests of pieces of the weights, by offset and size in their member.
    digests: BTreeMap<(u64, u64), ConstantDigest>,
    /// Where the weights begin in their member.
    header_bytes: u64,
    constants: OnceLock<Vec<Constant>>,
    targets: BTreeMap<String, Target>,
}

#[derive(Debug)]
struct Target {
    image: TargetImage,
    code: Range<usize>,
    ptx: Option<Range<usize>>,
}

impl Bundle {
    /// Maps a bundle and checks all of it: members against their digests, the graph, every target.
    pub fn open(path: &Path) -> Result<Arc<Bundle>, BundleError> {
        Bundle::of_file(&File::open(path).map_err(|source| BundleError::Io { path: path.into(), source })?, path)
    }

    /// The same of a file that is open, which nobody changes as long as the bundle is there. `path` names it in messages, and is what [`Bundle::path`] tells.
    pub fn of_file(file: &File, path: &Path) -> Result<Arc<Bundle>, BundleError> {
        let io_error = |source| BundleError::Io { path: path.into(), source };
        // SAFETY: bundles are immutable by contract: writers rename a finished file into place and never change one. A process that truncates a mapped
        // file ends this one with SIGBUS, as with every mapped library.
        let map = unsafe { Mmap::map(file) }.map_err(io_error)?;
        let loader = Loader { path, map: &map };
        let members = loader.members()?;
        let manifest_bytes = loader.member(&members, "manifest.json")?;
        let manifest: Manifest = loader.json(&manifest_bytes, "manifest.json")?;
        if manifest.format > FORMAT_VERSION {
            return Err(BundleError::NewerFormat { path: path.into(), found: manifest.format, supported: FORMAT_VERSION });
        }
        let digests = loader.check_digests(&members, &manifest)?;
        let graph: KernelGraph = loader.json(&loader.member(&members, "graph.json")?, "graph.json")?;
        let member = loader.member(&members, WEIGHTS_MEMBER)?;
        let weights = loader.weights(&member)?;
        let header_bytes = (weights.start - member.start) as u64;
        let invalid = |source| BundleError::Invalid { path: path.into(), source };
        validate::graph(&graph, weights.len() as u64).map_err(invalid)?;
        let targets = loader.targets(&members)?;
        for target in targets.values() {
            validate::target(&graph, &target.image).map_err(invalid)?;
        }
        let digest = hex(&Sha256::digest(&map[manifest_bytes]));
        let path = path.to_path_buf();
        let producer = manifest.producer;
        Ok(Arc::new(Bundle { path, digest, producer, graph, weights, digests, header_bytes, constants: OnceLock::new(), targets, map }))
    }

    /// Where it was opened from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// SHA-256 of the manifest, in hexadecimal: the bundle's name by content.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// Which compiler wrote it.
    pub fn producer(&self) -> &str {
        &self.producer
    }

    /// The skeleton.
    pub fn graph(&self) -> &KernelGraph {
        &self.graph
    }

    /// All constants; [`crate::BufferSpec::weights_offset`] points in here.
    pub fn weights(&self) -> &[u8] {
        &self.map[self.weights.clone()]
    }

    /// Asks the system to have a range of the weights in memory soon. It is advice: nothing waits, and nothing goes wrong without it.
    pub fn read_ahead(&self, range: Range<usize>) {
        let range = range.start.min(self.weights.len())..range.end.min(self.weights.len());
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, self.weights.start + range.start, range.len());
    }

    /// Brings a range of the weights into memory, and waits for it.
    pub fn read_in(&self, range: Range<usize>) {
        let weights = self.weights();
        let range = range.start.min(weights.len())..range.end.min(weights.len());
        // One call instead of a fault for every few pages; systems that do not know it are made to fault.
        #[cfg(target_os = "linux")]
        if self.map.advise_range(memmap2::Advice::PopulateRead, self.weights.start + range.start, range.len()).is_ok() {
            return;
        }
        for byte in weights[range].iter().step_by(page_bytes()) {
            std::hint::black_box(byte);
        }
    }

    /// How much of the weights is in memory, by the system's count of pages: its page cache is the tier between disk and device. `None` where the system does not say.
    pub fn weights_in_memory(&self) -> Option<u64> {
        let (start, length) = self.weights_pages();
        let page = page_bytes();
        let mut pages = vec![0_u8; length.div_ceil(page)];
        // SAFETY: the range lies within the mapping and begins at a page, since the mapping does; there is a byte for every page of it, and nothing else is written.
        let answer = unsafe { libc::mincore(self.map.as_ptr().add(start).cast_mut().cast(), length, pages.as_mut_ptr().cast()) };
        let resident = pages.iter().filter(|page| **page & 1 != 0).count();
        // The first page holds the end of the header, and the last one may be a part.
        (answer == 0).then(|| ((resident * page) as u64).min(self.weights.len() as u64))
    }

    /// Asks the system to take the weights out of memory, as it does by itself where it needs the room. Returns whether it did.
    pub fn page_out(&self) -> bool {
        let (start, length) = self.weights_pages();
        // SAFETY: the range lies within the mapping and begins at a page; what is read of it again comes from the file, which does not change.
        #[cfg(target_os = "linux")]
        let _ = unsafe { libc::madvise(self.map.as_ptr().add(start).cast_mut().cast(), length, libc::MADV_PAGEOUT) };
        // Pages that others use too stay.
        self.weights_in_memory().is_some_and(|bytes| bytes <= self.weights.len() as u64 / 100)
    }

    /// Where the pages of the weights begin in the file, and how many bytes it is to their end.
    fn weights_pages(&self) -> (usize, usize) {
        let start = self.weights.start - self.weights.start % page_bytes();
        (start, self.weights.end - start)
    }

    /// The constants with the digests of their contents, in the order of their buffers. The first call reads those that the manifest has no digest of.
    pub fn constants(&self) -> &[Constant] {
        self.constants.get_or_init(|| Constant::all_of(self))
    }

    /// The digest of a range of the weights: one that was checked when the bundle was opened, or a new one.
    pub(crate) fn weights_digest(&self, offset: u64, bytes: u64) -> ConstantDigest {
        let known = self.digests.get(&(self.header_bytes + offset, bytes)).copied();
        known.unwrap_or_else(|| ConstantDigest::of(&self.weights()[offset as usize..(offset + bytes) as usize]))
    }

    /// Device memory that the constants take: each content once, in whole granules of the device (a power of two).
    pub fn constant_bytes(&self, granule: u64) -> u64 {
        let distinct: BTreeMap<_, _> = self.constants().iter().map(|constant| (constant.digest, constant.bytes)).collect();
        distinct.values().map(|bytes| bytes.next_multiple_of(granule)).sum()
    }

    /// Names of the targets, ascending.
    pub fn target_names(&self) -> impl Iterator<Item = &str> {
        self.targets.keys().map(String::as_str)
    }

    /// Launches and facts of a target.
    pub fn target(&self, name: &str) -> Option<&TargetImage> {
        self.targets.get(name).map(|t| &t.image)
    }

    /// Code of a target: PTX text or a native object.
    pub fn code(&self, name: &str) -> Option<&[u8]> {
        self.targets.get(name).map(|t| &self.map[t.code.clone()])
    }

    /// PTX of a target: what its native code was made from, or the code itself.
    pub fn ptx(&self, name: &str) -> Option<&[u8]> {
        self.targets.get(name).map(|t| &self.map[t.ptx.clone().unwrap_or(t.code.clone())])
    }

    /// Size of the file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.map.len() as u64
    }
}

/// The size of a page of memory.
fn page_bytes() -> usize {
    // SAFETY: asking for a constant of the system touches nothing of ours.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// What [`Bundle::open`] reads with.
struct Loader<'a> {
    path: &'a Path,
    map: &'a [u8],
}

impl Loader<'_> {
    fn corrupt(&self, reason: impl ToString) -> BundleError {
        BundleError::Corrupt { path: self.path.into(), reason: reason.to_string() }
    }

    /// Where each member's bytes lie in the file.
    fn members(&self) -> Result<BTreeMap<String, Range<usize>>, BundleError> {
        let mut archive = ZipArchive::new(Cursor::new(self.map)).map_err(|e| self.corrupt(e))?;
        if archive.len() > MEMBERS_MAX {
            return Err(self.corrupt(format!("{} members, at most {MEMBERS_MAX} are read", archive.len())));
        }
        let mut members = BTreeMap::new();
        for index in 0..archive.len() {
            let member = archive.by_index_raw(index).map_err(|e| self.corrupt(e))?;
            let name = member.name().to_string();
            if member.compression() != CompressionMethod::Stored {
                return Err(self.corrupt(format!("member {name} is compressed")));
            }
            let start = usize::try_from(member.data_start()).ok();
            let range = start.and_then(|s| Some(s..s.checked_add(usize::try_from(member.size()).ok()?)?));
            let range =
                range.filter(|r| r.end <= self.map.len()).ok_or_else(|| self.corrupt(format!("member {name} reaches beyond the file")))?;
            members.insert(name, range);
        }
        Ok(members)
    }

    fn member(&self, members: &BTreeMap<String, Range<usize>>, name: &str) -> Result<Range<usize>, BundleError> {
        members.get(name).cloned().ok_or_else(|| self.corrupt(format!("{name} is missing")))
    }

    fn json<T: for<'de> Deserialize<'de>>(&self, range: &Range<usize>, name: &str) -> Result<T, BundleError> {
        if range.len() > JSON_BYTES_MAX {
            return Err(self.corrupt(format!("{name} is larger than {JSON_BYTES_MAX} bytes")));
        }
        serde_json::from_slice(&self.map[range.clone()]).map_err(|e| self.corrupt(format!("{name}: {e}")))
    }

    /// Every member but the manifest is listed in it, and has the listed size and digest. Returns those of the pieces of the weights, which come to the same as that of the whole: each
    /// byte is read once.
    fn check_digests(
        &self,
        members: &BTreeMap<String, Range<usize>>,
        manifest: &Manifest,
    ) -> Result<BTreeMap<(u64, u64), ConstantDigest>, BundleError> {
        let mut digests = BTreeMap::new();
        for (name, listed) in &manifest.members {
            let bytes = &self.map[self.member(members, name)?];
            let is_right = bytes.len() as u64 == listed.bytes
                && match &listed.pieces {
                    Some(pieces) if name == WEIGHTS_MEMBER => pieces.check(bytes).map(|checked| digests = checked).is_some(),
                    _ => hex(&Sha256::digest(bytes)) == listed.sha256,
                };
            if !is_right {
                return Err(self.corrupt(format!("{name} differs from its digest, the file was damaged or changed")));
            }
        }
        match members.keys().find(|name| *name != "manifest.json" && !manifest.members.contains_key(*name)) {
            Some(name) => Err(self.corrupt(format!("{name} is not in the manifest"))),
            None => Ok(digests),
        }
    }

    /// Where the weights' bytes lie, after safetensors' own check of the header.
    fn weights(&self, range: &Range<usize>) -> Result<Range<usize>, BundleError> {
        let bytes = &self.map[range.clone()];
        let tensors = safetensors::SafeTensors::deserialize(bytes).map_err(|e| self.corrupt(format!("weights.safetensors: {e}")))?;
        let tensor = tensors.tensor(WEIGHTS_TENSOR).map_err(|e| self.corrupt(format!("weights.safetensors: {e}")))?;
        let start = range.end - tensor.data().len();
        Ok(start..range.end)
    }

    fn targets(&self, members: &BTreeMap<String, Range<usize>>) -> Result<BTreeMap<String, Target>, BundleError> {
        let mut targets = BTreeMap::new();
        for (name, range) in members {
            let Some(target_name) = name.strip_prefix("targets/").and_then(|n| n.strip_suffix("/target.json")) else { continue };
            let image: TargetImage = self.json(range, name)?;
            if image.name != target_name {
                return Err(self.corrupt(format!("{name} says it is for {}", image.name)));
            }
            let code = self.member(members, &format!("targets/{target_name}/code"))?;
            let ptx = members.get(&format!("targets/{target_name}/kernels.ptx")).cloned();
            targets.insert(target_name.to_string(), Target { image, code, ptx });
        }
        Ok(targets)
    }
}

/// Everything that goes into a bundle.
#[derive(Debug)]
pub struct BundleContents<'a> {
    /// Name and version of the compiler.
    pub producer: String,
    /// The skeleton.
    pub graph: &'a KernelGraph,
    /// Constants as (offset, bytes), ascending, not overlapping; gaps are zeros.
    pub weights: Vec<(u64, &'a [u8])>,
    /// Targets with their code.
    pub targets: Vec<TargetContents>,
}

/// One target of a bundle that is written.
#[derive(Debug)]
pub struct TargetContents {
    /// Launches and facts.
    pub image: TargetImage,
    /// PTX text or a native object.
    pub code: Vec<u8>,
    /// For native targets: the PTX the code was made from.
    pub ptx: Option<String>,
}

/// Writes a bundle: into a temporary file beside `path`, renamed when it is whole. Returns the digest.
pub fn write_bundle(path: &Path, contents: &BundleContents<'_>) -> Result<String, BundleError> {
    let invalid = |source| BundleError::Invalid { path: path.into(), source };
    let weights_bytes = contents.weights.last().map_or(0, |(offset, bytes)| offset + bytes.len() as u64);
    validate::graph(contents.graph, weights_bytes).map_err(invalid)?;
    for target in &contents.targets {
        validate::target(contents.graph, &target.image).map_err(invalid)?;
    }
    let io_error = |source| BundleError::Io { path: path.into(), source };
    let temporary = path.with_extension(format!("kg.{}.partial", std::process::id()));
    let written = write_file(&temporary, contents, weights_bytes).and_then(|digest| std::fs::rename(&temporary, path).map(|()| digest));
    written.inspect_err(|_| drop(std::fs::remove_file(&temporary))).map_err(io_error)
}

fn write_file(path: &Path, contents: &BundleContents<'_>, weights_bytes: u64) -> io::Result<String> {
    let mut writer = MemberWriter { zip: ZipWriter::new(io::BufWriter::new(File::create(path)?)), members: BTreeMap::new() };
    writer.member("graph.json", |out| serde_json::to_writer(out, contents.graph).map_err(io::Error::from))?;
    let header = weights_header(weights_bytes);
    writer.member(WEIGHTS_MEMBER, |out| write_weights(out, &header, &contents.weights))?;
    let member = writer.members.get_mut(WEIGHTS_MEMBER).expect("it was just written");
    member.pieces = Some(Pieces::of(&header, &contents.weights));
    for target in &contents.targets {
        let folder = format!("targets/{}", target.image.name);
        writer.member(&format!("{folder}/target.json"), |out| serde_json::to_writer(out, &target.image).map_err(io::Error::from))?;
        writer.member(&format!("{folder}/code"), |out| out.write_all(&target.code))?;
        if let Some(ptx) = &target.ptx {
            writer.member(&format!("{folder}/kernels.ptx"), |out| out.write_all(ptx.as_bytes()))?;
        }
    }
    let members = std::mem::take(&mut writer.members);
    let manifest = Manifest { format: FORMAT_VERSION, producer: contents.producer.clone(), members };
    let manifest = serde_json::to_vec_pretty(&manifest)?;
    writer.member("manifest.json", |out| out.write_all(&manifest))?;
    let mut file = writer.zip.finish().map_err(io::Error::from)?.into_inner().map_err(|e| e.into_error())?;
    file.flush()?;
    file.sync_all()?;
    Ok(hex(&Sha256::digest(&manifest)))
}

/// What stands in front of the weights: their size, and the safetensors header padded so that the data starts at a multiple of 256 bytes.
fn weights_header(bytes: u64) -> Vec<u8> {
    let mut header = format!("{{\"{WEIGHTS_TENSOR}\":{{\"dtype\":\"U8\",\"shape\":[{bytes}],\"data_offsets\":[0,{bytes}]}}}}");
    while !(header.len() + 8).is_multiple_of(256) {
        header.push(' ');
    }
    [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat()
}

/// The header, then the constants.
fn write_weights(out: &mut dyn Write, header: &[u8], weights: &[(u64, &[u8])]) -> io::Result<()> {
    out.write_all(header)?;
    let mut at = 0;
    for (offset, content) in weights {
        let gap = offset.checked_sub(at).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "weights overlap"))?;
        io::copy(&mut io::Read::take(io::repeat(0), gap), out)?;
        out.write_all(content)?;
        at = offset + content.len() as u64;
    }
    Ok(())
}

/// Writes members and remembers their digests.
struct MemberWriter<W: Write + Seek> {
    zip: ZipWriter<W>,
    members: BTreeMap<String, Member>,
}

impl<W: Write + Seek> MemberWriter<W> {
    fn member(&mut self, name: &str, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        // Without a time of writing, equal content gives equal files.
        let options =
            SimpleFileOptions::default().compression_method(CompressionMethod::Stored).with_alignment(MEMBER_ALIGN).large_file(true);
        self.zip.start_file(name, options).map_err(io::Error::from)?;
        let mut hashing = Hashing { inner: &mut self.zip, hash: Sha256::new(), bytes: 0 };
        write(&mut hashing)?;
        let member = Member { bytes: hashing.bytes, sha256: hex(&hashing.hash.finalize()), pieces: None };
        self.members.insert(name.to_string(), member);
        Ok(())
    }
}

struct Hashing<'a, W> {
    inner: &'a mut W,
    hash: Sha256,
    bytes: u64,
}

impl<W: Write> Write for Hashing<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
