//! Kernels are run, evicted and resumed, and errors are reported.

use atoll_passes::{TransformOptions, transform};
use atoll_workbench::{Arg, Buffer, Evictions, HostBench, HostOptions, Kernel, KernelDevice, Launch};
use std::time::Duration;

/// `out[i] = a[i] + k` through shared memory, so that passes have something to move.
const ADD: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry add(.param .u64 a, .param .u64 out, .param .u32 k, .param .u32 n)
{
    .shared .align 4 .b8 tile[1024];
    .reg .pred %p;
    .reg .b32 %r<10>;
    .reg .b64 %d<8>;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    ld.param.u32 %r5, [n];
    setp.ge.u32 %p, %r4, %r5;
    @%p bra DONE;
    ld.param.u64 %d1, [a];
    ld.param.u64 %d2, [out];
    ld.param.u32 %r6, [k];
    mul.wide.u32 %d3, %r4, 4;
    add.s64 %d4, %d1, %d3;
    add.s64 %d5, %d2, %d3;
    ld.global.u32 %r7, [%d4];
    shl.b32 %r8, %r3, 2;
    mov.u32 %r9, tile;
    add.u32 %r8, %r8, %r9;
    st.shared.u32 [%r8], %r7;
    ld.shared.u32 %r7, [%r8];
    add.u32 %r7, %r7, %r6;
    st.global.u32 [%d5], %r7;
DONE:
    ret;
}
";

fn bytes(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
    values.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn buffers(n: u32) -> [Buffer; 2] {
    let buffer = |name: &str, bytes| Buffer { name: name.into(), bytes, writable: true };
    [buffer("a", bytes(0..n)), buffer("out", bytes((0..n).map(|_| 0)))]
}

fn launch(n: u32) -> Launch {
    let value = |v: u32| Arg::Value(v.to_le_bytes().to_vec());
    Launch {
        grid: [n.div_ceil(256), 1, 1],
        shared_bytes: 0,
        args: vec![Arg::buffer(0), Arg::buffer(1), value(5), value(n)],
    }
}

#[test]
fn a_kernel_runs_plain_transformed_evicted_and_resumed() {
    let n = 1 << 20;
    let mut host =
        HostBench::start(HostOptions { compute_units: 2, memory_bytes: 64 << 20, ..HostOptions::default() }).unwrap();
    let mut module = atoll_ptx::parse(ADD).unwrap();
    let expected = bytes((0..n).map(|i| i + 5));

    let plain = host.load(&Kernel { module: &module, entry: "add", report: None, block: [256, 1, 1] }).unwrap();
    let mut memory = buffers(n);
    let outcome = host.launch(&plain, &launch(n), &mut memory, 3).unwrap();
    assert_eq!(outcome.times.len(), 3);
    assert!(memory[1].bytes == expected);

    let report = transform(&mut module, &TransformOptions::default(), &mut |_, _| {}).unwrap();
    let kernel = Kernel { module: &module, entry: "add", report: Some(&report.kernels[0]), block: [256, 1, 1] };
    let transformed = host.load(&kernel).unwrap();
    for after in [vec![], vec![0, 20, 50, 0, 100]] {
        let mut memory = buffers(n);
        let evictions = Evictions { after: after.iter().map(|us| Duration::from_micros(*us)).collect() };
        let outcome = host.launch_evicted(&transformed, &launch(n), &mut memory, &evictions).unwrap();
        assert!(outcome.evictions as usize <= after.len());
        assert!(memory[1].bytes == expected);
    }
    host.unload(plain);
}

#[test]
fn mistakes_of_the_caller_are_named() {
    let mut host =
        HostBench::start(HostOptions { compute_units: 1, memory_bytes: 1 << 20, ..HostOptions::default() }).unwrap();
    let module = atoll_ptx::parse(ADD).unwrap();
    let kernel = Kernel { module: &module, entry: "add", report: None, block: [256, 1, 1] };
    let message = host.load(&Kernel { entry: "sub", ..kernel }).unwrap_err().to_string();
    assert!(message.contains("`sub`") && message.contains("`add`"), "{message}");
    let loaded = host.load(&kernel).unwrap();
    let mut fails = |launch: &Launch, n| host.launch(&loaded, launch, &mut buffers(n), 1).unwrap_err().to_string();
    assert!(fails(&Launch { args: vec![], ..launch(8) }, 8).contains("takes 4 arguments"));
    assert!(fails(&Launch { grid: [0, 1, 1], ..launch(8) }, 8).contains("empty"));
    assert!(fails(&Launch { shared_bytes: 1 << 30, ..launch(8) }, 8).contains("shared memory"));
    assert!(fails(&launch(8), 1 << 20).contains("the device has"));
}
