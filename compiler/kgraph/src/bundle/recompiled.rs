//! A bundle with recompiled code in place of the code in its file.

use super::{Bundle, BundleError, Part, Target, TargetContents};
use crate::target::TargetImage;
use crate::validate;
use std::sync::{Arc, OnceLock};

impl Bundle {
    /// Returns this bundle with other code. Graph and constants are those of the file. `targets`
    /// replace all targets of the file, including their facts. The digest stays that of the file.
    ///
    /// # Errors
    /// A target does not fit the graph.
    pub fn with_code(&self, targets: Vec<TargetContents>) -> Result<Arc<Bundle>, BundleError> {
        let invalid = |source| BundleError::Invalid { path: self.path.clone(), source };
        for target in &targets {
            validate::target(&self.graph, &target.image, self.weights.len() as u64).map_err(invalid)?;
        }
        let target = |TargetContents { image, code, ptx, .. }: TargetContents| {
            let image = TargetImage { source: None, ..image };
            let ptx = ptx.map(|ptx| Part::Memory(ptx.into_bytes()));
            (image.name.clone(), Target { image, code: Part::Memory(code), ptx, source: None })
        };
        Ok(Arc::new(Bundle {
            path: self.path.clone(),
            map: Arc::clone(&self.map),
            digest: self.digest.clone(),
            format: self.format,
            producer: self.producer.clone(),
            graph: Arc::clone(&self.graph),
            weights: self.weights.clone(),
            digests: Arc::clone(&self.digests),
            header_bytes: self.header_bytes,
            constants: OnceLock::new(),
            targets: targets.into_iter().map(target).collect(),
        }))
    }
}
