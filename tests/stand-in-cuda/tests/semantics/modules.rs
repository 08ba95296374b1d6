//! PTX modules: their variables, and what is refused.

use crate::gpu::{DOUBLE_ADD, Gpu, STORE_TO, code, cuda, load, ok};

#[test]
fn bad_ptx_is_refused_with_the_line_in_the_log() {
    let _gpu = Gpu::new();
    let (_, status, log) =
        load(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ld.global.u32 %r1 [; }");
    assert_eq!(status, code::INVALID_PTX);
    assert!(log.contains("4:"), "{log}");
    let (_, status, log) =
        load(".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { mov.u32 %r1, 0; ret; }");
    assert_eq!((status, log.contains("%r1")), (code::INVALID_PTX, true), "{log}");
}

#[test]
fn ptx_of_a_newer_version_or_for_a_newer_device_is_refused() {
    let _gpu = Gpu::new();
    let (_, status, log) = load(".version 99.1\n.target sm_80\n.address_size 64\n");
    assert_eq!((status, log.contains("99.1")), (code::UNSUPPORTED_PTX, true), "{log}");
    let (_, status, log) = load(".version 7.0\n.target sm_120\n.address_size 64\n");
    assert_eq!((status, log.contains("sm_120")), (code::INVALID_PTX, true), "{log}");
}

#[test]
fn machine_code_is_refused() {
    let _gpu = Gpu::new();
    let image = *b"\x7fELF\x02\x01\x01\0\0\0\0\0";
    assert_eq!(cuda!(cuModuleLoadData(&mut 0 => *mut u64, image.as_ptr() => *const u8)), code::NO_BINARY);
}

#[test]
fn functions_are_found_by_name_and_gone_with_their_module() {
    let gpu = Gpu::new();
    let module = gpu.module(DOUBLE_ADD);
    let function = gpu.function(module, "double_add");
    assert_eq!(function, gpu.function(module, "double_add"));
    let status =
        cuda!(cuModuleGetFunction(&mut 0 => *mut u64, module => u64, c"triple".as_ptr() => *const std::ffi::c_char));
    assert_eq!(status, code::NOT_FOUND);
    let attribute = |attribute: i32| {
        let mut value = -1;
        ok!(cuFuncGetAttribute(&mut value => *mut i32, attribute => i32, function => u64));
        value
    };
    assert_eq!((attribute(0), attribute(1)), (1024, 0));
    assert_eq!((10..16).map(attribute).collect::<Vec<i32>>(), [0; 6], "of clusters");
    assert_eq!(cuda!(cuFuncGetAttribute(&mut 0 => *mut i32, 16 => i32, function => u64)), code::INVALID_VALUE);
    ok!(cuModuleUnload(module => u64));
    assert_eq!(gpu.try_launch(function, 0, 1, 32, &[0, 0]), code::INVALID_HANDLE);
}

#[test]
fn all_block_shapes_share_the_variables_of_a_module() {
    let gpu = Gpu::new();
    let module = gpu.module(
        ".global .u32 total = 5;
.const .u32 steps[2] = {10, 100};
.global .u64 where[1] = {generic(total)};
.visible .entry count()
{
	.reg .b32 %r<4>;
	.reg .b64 %rd<4>;
	ld.const.u32 %r1, [steps+4];
	mov.u64 %rd1, total;
	atom.global.add.u32 %r2, [%rd1], %r1;
	ld.global.u64 %rd2, [where];
	atom.global.add.u32 %r3, [%rd2], 1;
	ret;
}",
    );
    let count = gpu.function(module, "count");
    gpu.launch(count, 0, 1, 1, &[]);
    gpu.launch(count, 0, 1, 64, &[]);
    let (mut at, mut bytes) = (0u64, 0usize);
    ok!(cuModuleGetGlobal_v2(
        &mut at => *mut u64, &mut bytes => *mut usize, module => u64, c"total".as_ptr() => *const std::ffi::c_char
    ));
    assert_eq!((bytes, gpu.read(at, 1)), (4, vec![5 + 65 * 101]));
    ok!(cuModuleUnload(module => u64));
    assert_eq!(cuda!(cuMemcpyDtoH_v2(&mut 0u32 => *mut u32, at => u64, 4 => usize)), code::INVALID_VALUE);
}

#[test]
fn a_module_that_is_unloaded_in_the_middle_of_its_work_finishes_it() {
    let gpu = Gpu::new();
    let (module, words) = (gpu.module(STORE_TO), gpu.words(2, 0));
    let kernel = gpu.function(module, "store_to");
    for _ in 0..10 {
        gpu.launch(kernel, 0, 1, 1, &[words]);
    }
    ok!(cuModuleUnload(module => u64));
    ok!(cuCtxSynchronize());
    assert_eq!(gpu.read(words, 1), [words as u32]);
}
