//! Opening a bundle: locates the members, checks their digests, parses and validates them.

use super::manifest::{self, GRAPH, MANIFEST, Manifest, WEIGHTS, WEIGHTS_TENSOR};
use super::mapped::Mapped;
use super::outline::{GraphOutline, Outline};
use super::{Bundle, BundleError, Part, Target, json};
use crate::constants::ConstantDigest;
use crate::features::{self, Feature};
use crate::graph::{FORMAT_VERSION, FORMAT_VERSION_MIN, KernelGraph};
use crate::hexadecimal;
use crate::limits::MEMBERS_MAX;
use crate::target::TargetImage;
use crate::validate::{self, Invalid};
use memmap2::{Mmap, MmapOptions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Cursor;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use zip::{CompressionMethod, ZipArchive};

impl Bundle {
    /// Maps and checks a bundle: the digests of all members, the graph, and every target.
    pub fn open(path: &Path) -> Result<Arc<Bundle>, BundleError> {
        Bundle::of_file(&File::open(path).map_err(|source| BundleError::Io { path: path.into(), source })?, path)
    }

    /// Like [`Bundle::open`], for an open file. The file must not change while the bundle is in
    /// use. `path` appears in messages and in [`Bundle::path`].
    pub fn of_file(file: &File, path: &Path) -> Result<Arc<Bundle>, BundleError> {
        Bundle::map(file, path)?.check()
    }

    /// Maps an open file without reading it, for a process that gives up its rights before it reads
    /// untrusted input. The file must not change while the mapping is in use.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn map(file: &File, path: &Path) -> Result<Mapped, BundleError> {
        let io_error = |source| BundleError::Io { path: path.into(), source };
        // SAFETY: bundles are immutable by contract: writers rename a complete file into place and
        // never change it. A process that truncates a mapped file kills this process by SIGBUS, as
        // with any mapped library.
        let map = unsafe { Mmap::map(file) }.map_err(io_error)?;
        Ok(Mapped { map, path: path.into() })
    }
}

impl Mapped {
    /// Reads and checks the bundle, like [`Bundle::open`].
    ///
    /// # Errors
    /// If it is not a valid bundle.
    pub fn check(self) -> Result<Arc<Bundle>, BundleError> {
        let Mapped { map, path } = self;
        let loader = Loader { path: &path, map: &map };
        let members = loader.members()?;
        let manifest_bytes = loader.member(&members, MANIFEST)?;
        let manifest = loader.manifest(&manifest_bytes)?;
        let digests = loader.check_digests(&members, &manifest)?;
        let graph: KernelGraph = loader.json(&loader.member(&members, GRAPH)?, GRAPH)?;
        let member = loader.member(&members, WEIGHTS)?;
        let weights = loader.weights(&member)?;
        let header_bytes = (weights.start - member.start) as u64;
        let targets = loader.targets(&members)?;
        loader
            .check(&manifest, &graph, &targets, weights.len() as u64)
            .map_err(|source| BundleError::Invalid { path: path.clone(), source })?;
        let digest = hexadecimal::text(&Sha256::digest(&map[manifest_bytes]));
        let (format, producer) = (manifest.format, manifest.producer);
        Ok(Arc::new(Bundle {
            path,
            digest,
            format,
            producer,
            graph: Arc::new(graph),
            weights,
            digests: Arc::new(digests),
            header_bytes,
            constants: OnceLock::new(),
            targets,
            map: Arc::new(map),
        }))
    }
}

impl Bundle {
    /// Reads the outline of a bundle from an open file, such as a sealed memory file. The file must
    /// not change during the call. `path` appears in messages.
    ///
    /// # Errors
    /// If it is not a bundle, has an unknown format, or its graph cannot be read.
    pub fn outline(file: &File, path: &Path) -> Result<Outline, BundleError> {
        let io_error = |source| BundleError::Io { path: path.into(), source };
        // A private mapping: older kernels refuse shared mappings of sealed files.
        // SAFETY: the caller promises that the file does not change; the mapping is only read, and
        // ends with this function.
        let map = unsafe { MmapOptions::new().map_copy_read_only(file) }.map_err(io_error)?;
        let loader = Loader { path, map: &map };
        let members = loader.members()?;
        loader.manifest(&loader.member(&members, MANIFEST)?)?;
        let graph: GraphOutline = loader.json(&loader.member(&members, GRAPH)?, GRAPH)?;
        Ok(graph.into())
    }
}

/// The mapped file during [`Bundle::open`].
struct Loader<'a> {
    path: &'a Path,
    map: &'a [u8],
}

impl Loader<'_> {
    fn corrupt(&self, reason: impl ToString) -> BundleError {
        BundleError::Corrupt { path: self.path.into(), reason: reason.to_string() }
    }

    /// The byte range of each member in the file.
    fn members(&self) -> Result<BTreeMap<String, Range<usize>>, BundleError> {
        let mut archive = ZipArchive::new(Cursor::new(self.map)).map_err(|e| self.corrupt(e))?;
        if archive.len() > MEMBERS_MAX {
            return Err(self.corrupt(format!("{} members, at most {MEMBERS_MAX} are allowed", archive.len())));
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
            let range = range
                .filter(|r| r.end <= self.map.len())
                .ok_or_else(|| self.corrupt(format!("member {name} extends past the end of the file")))?;
            members.insert(name, range);
        }
        Ok(members)
    }

    fn member(&self, members: &BTreeMap<String, Range<usize>>, name: &str) -> Result<Range<usize>, BundleError> {
        members.get(name).cloned().ok_or_else(|| self.corrupt(format!("{name} is missing")))
    }

    /// Reads only the format version first: another format may have other fields.
    fn manifest(&self, range: &Range<usize>) -> Result<Manifest, BundleError> {
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let Version { format: found } = self.json(range, MANIFEST)?;
        if !(FORMAT_VERSION_MIN..=FORMAT_VERSION).contains(&found) {
            return Err(BundleError::UnknownFormat { path: self.path.into(), found });
        }
        self.json(range, MANIFEST)
    }

    /// Validates graph and targets, and checks that the format has all features they use.
    fn check(
        &self,
        manifest: &Manifest,
        graph: &KernelGraph,
        targets: &BTreeMap<String, Target>,
        weights_bytes: u64,
    ) -> Result<(), Invalid> {
        validate::format(manifest.format, graph.format)?;
        validate::graph(graph, weights_bytes)?;
        for target in targets.values() {
            validate::target(graph, &target.image, weights_bytes)?;
        }
        let used = targets
            .values()
            .flat_map(|target| features::of_target(graph, &target.image))
            .chain(features::of_graph(graph));
        validate::features(manifest.format, &used.collect::<Vec<Feature>>())
    }

    fn json<T: DeserializeOwned>(&self, range: &Range<usize>, name: &str) -> Result<T, BundleError> {
        json::parse(&self.map[range.clone()]).map_err(|reason| self.corrupt(format!("{name}: {reason}")))
    }

    /// Checks that every member except the manifest is listed in it, with the right size and
    /// digest. Returns the digests of the pieces of the weights. Together the pieces cover the
    /// whole member, so each byte is hashed once.
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
                    Some(pieces) if name == WEIGHTS => pieces.check(bytes).map(|checked| digests = checked).is_some(),
                    _ => hexadecimal::text(&Sha256::digest(bytes)) == listed.sha256,
                };
            if !is_right {
                return Err(self.corrupt(format!("{name} does not match its digest, the file was damaged or changed")));
            }
        }
        match members.keys().find(|name| *name != MANIFEST && !manifest.members.contains_key(*name)) {
            Some(name) => Err(self.corrupt(format!("{name} is not in the manifest"))),
            None => Ok(digests),
        }
    }

    /// The byte range of the weights in the file, without the safetensors header.
    fn weights(&self, range: &Range<usize>) -> Result<Range<usize>, BundleError> {
        let bytes = &self.map[range.clone()];
        let tensors =
            safetensors::SafeTensors::deserialize(bytes).map_err(|e| self.corrupt(format!("{WEIGHTS}: {e}")))?;
        let tensor = tensors.tensor(WEIGHTS_TENSOR).map_err(|e| self.corrupt(format!("{WEIGHTS}: {e}")))?;
        let start = range.end - tensor.data().len();
        Ok(start..range.end)
    }

    fn targets(&self, members: &BTreeMap<String, Range<usize>>) -> Result<BTreeMap<String, Target>, BundleError> {
        let mut targets = BTreeMap::new();
        for (name, range) in members {
            let Some(target_name) = name.strip_prefix("targets/").and_then(|n| n.strip_suffix("/target.json")) else {
                continue;
            };
            let image: TargetImage = self.json(range, name)?;
            if image.name != target_name {
                return Err(self.corrupt(format!("{name} is for target {}", image.name)));
            }
            let code = self.member(members, &format!("targets/{target_name}/code"))?;
            let ptx = members.get(&format!("targets/{target_name}/kernels.ptx")).cloned();
            let source =
                image.source.as_ref().map(|digest| self.member(members, &manifest::source(digest))).transpose()?;
            targets.insert(
                target_name.to_string(),
                Target { image, code: Part::File(code), ptx: ptx.map(Part::File), source },
            );
        }
        Ok(targets)
    }
}
