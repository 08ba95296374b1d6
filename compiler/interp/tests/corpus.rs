//! Decodes every kernel of the compiler-generated corpus.

use atoll_interp::Program;
use std::path::Path;

#[test]
fn every_kernel_of_the_corpus_is_decoded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/kernels/ptx");
    let mut rejected = Vec::new();
    let mut kernels = 0;
    for file in std::fs::read_dir(&folder).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_none_or(|e| e != "ptx") {
            continue;
        }
        let module = atoll_ptx::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
        for kernel in module.kernels() {
            kernels += 1;
            if let Err(reason) = Program::new(&module, &kernel.name) {
                rejected.push(format!("{}: {}: {reason}", path.display(), kernel.name));
            }
        }
    }
    assert!(rejected.is_empty(), "{} of {kernels} kernels are rejected:\n{}", rejected.len(), rejected.join("\n"));
    assert!(kernels > 0, "no kernels in {}", folder.display());
}
