//! A target's launches, facts and code, outside of a bundle.

use crate::target::TargetImage;

/// One target of a bundle that is to be written, or one whose code was recompiled.
#[derive(Debug)]
pub struct TargetContents {
    /// Launches and kernel facts.
    pub image: TargetImage,
    /// PTX text or a native object.
    pub code: Vec<u8>,
    /// Native targets only: the PTX that the code was compiled from.
    pub ptx: Option<String>,
    /// PTX of the kernels before the passes. Targets with the same text share one member.
    pub source: Option<String>,
}
