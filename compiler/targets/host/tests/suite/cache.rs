//! The cache of compiled kernels.

use atoll_kgraph::DiskCache;
use atoll_ptx::parse;
use atoll_target_host::{CpuLevel, HostObject, KernelShape, Options, compile};
use std::path::Path;
use std::sync::Arc;

fn files(folder: &Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

#[test]
fn a_kernel_is_compiled_once_for_a_shape() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\
.version 7.0
.target sm_70
.address_size 64
.visible .entry k(.param .u64 a)
{
    .reg .b32 %r<3>;
    .reg .b64 %d<3>;
    ld.param.u64 %d0, [a];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d1, %r0, 4;
    add.u64 %d2, %d0, %d1;
    st.global.u32 [%d2], %r0;
    ret;
}
";
    let cache = Arc::new(DiskCache::new(folder.path().into(), "o", 1 << 20));
    let kernel = |text: &str, block: u32, cache: Option<Arc<DiskCache>>| -> HostObject {
        let shape = KernelShape { name: "k".into(), block: [block, 1, 1] };
        compile(&parse(text).unwrap(), &[shape], CpuLevel::V3, &Options { cache, threads: 1, ..Options::default() })
            .unwrap()
    };
    let fresh = kernel(text, 64, None);
    assert!(files(folder.path()).is_empty());
    let first = kernel(text, 64, Some(cache.clone()));
    let kept = files(folder.path());
    assert_eq!(kept.len(), 1);
    let again = kernel(text, 64, Some(cache.clone()));
    assert!(fresh.elf == first.elf && first.elf == again.elf && files(folder.path()) == kept);
    assert_eq!(fresh.kernels[0].scratch_bytes, again.kernels[0].scratch_bytes);
    // Another shape, and another kernel of the same name.
    kernel(text, 96, Some(cache.clone()));
    let other = text.replace("4;", "8;");
    assert!(kernel(&other, 64, Some(cache.clone())).elf != first.elf);
    assert_eq!(files(folder.path()).len(), 3);
    // A damaged entry is compiled again.
    std::fs::write(&kept[0], "no object").unwrap();
    assert!(kernel(text, 64, Some(cache)).elf == first.elf);
}
