//! Opening a bundle: locates the members, checks their digests, parses and validates them.

use super::manifest::{self, GRAPH, MANIFEST, Manifest, WEIGHTS, WEIGHTS_TENSOR};
use super::mapped::Mapped;
use super::{Bundle, BundleError, Part, Target, directory, json};
use crate::constants::ConstantDigest;
use crate::features::{self, Feature};
use crate::graph::KernelGraph;
use crate::hexadecimal;
use crate::limits::WEIGHTS_HEADER_BYTES_MAX;
use crate::target::TargetImage;
use crate::validate::{self, Invalid};
use memmap2::Mmap;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

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
        let members = directory::members(self.map).map_err(|error| self.corrupt(error))?;
        // The ranges are within the mapping.
        Ok(members.into_iter().map(|(name, range)| (name, range.start as usize..range.end as usize)).collect())
    }

    fn member(&self, members: &BTreeMap<String, Range<usize>>, name: &str) -> Result<Range<usize>, BundleError> {
        members.get(name).cloned().ok_or_else(|| self.corrupt(format!("{name} is missing")))
    }

    fn manifest(&self, range: &Range<usize>) -> Result<Manifest, BundleError> {
        manifest::check_format(&self.map[range.clone()], self.path)?;
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
        let header_bytes = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        if header_bytes > WEIGHTS_HEADER_BYTES_MAX {
            let limit = format!("at most {WEIGHTS_HEADER_BYTES_MAX} are allowed");
            return Err(self.corrupt(format!("{WEIGHTS}: its header has {header_bytes} bytes, {limit}")));
        }
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
