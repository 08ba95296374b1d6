//! Checks of kernels that are made from templates.

use atoll_passes::{FenceForm, Fencing, PassOptions, transform_with};
use std::fmt::Debug;

/// Fails if the text is not valid PTX.
pub(crate) fn is_valid(code: &dyn Debug, text: &str) {
    assert!(!text.contains("${") && !text.contains("\n@"), "{code:?}");
    let module = atoll_ptx::parse(text).unwrap_or_else(|errors| panic!("{code:?}: {errors}"));
    atoll_ptx::verify(&module).unwrap_or_else(|faults| panic!("{code:?}: {faults}"));
}

/// Fails if a kernel cannot be kept inside of its tenant's memory.
pub(crate) fn can_be_fenced(code: &dyn Debug, text: &str) {
    let mut module = atoll_ptx::parse(text).expect("valid PTX");
    let options = PassOptions { fence_form: FenceForm::Mask, ..PassOptions::default() };
    let report = transform_with(&mut module, &["fence_memory"], &options, &mut |_, _| {}).expect("a pass");
    for kernel in report.kernels {
        assert!(matches!(kernel.fencing, Fencing::Fenced { .. }), "{code:?}: {:?}", kernel.fencing);
    }
}
