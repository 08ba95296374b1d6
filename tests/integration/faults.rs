//! Faulting PTX kernels on the host device: each fails its launch, and the error names the kernel,
//! the block and the line.

use atoll_device::report::AccessKind;
use atoll_device::{Fault, FaultKind};
use atoll_workbench::{Arg, BenchError, Buffer, HostBench, HostOptions, Kernel, KernelDevice, Launch};
use std::time::Duration;

const THREADS: u32 = 64;
const BLOCKS: u32 = 4;
/// Long enough for a busy machine to make progress with everything else.
const TIME_LIMIT: Duration = Duration::from_millis(300);

/// A kernel `k(in, out, x)` around some instructions. `%in` and `%out` point to the thread's word
/// of `THREADS * BLOCKS`.
fn text(body: &str) -> String {
    format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 \
        x)\n{{\n\
         .shared .align 16 .b8 tile[256];\n.local .align 16 .b8 own[16];\n\
         .reg .pred %p<4>; .reg .b32 %r<20>; .reg .f32 %f<8>; .reg .b64 %d<20>; .reg .b64 %in, %out, %x, %t;\n\
         ld.param.u64 %in, [a]; ld.param.u64 %out, [b]; ld.param.u64 %x, [x];\n\
         mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r2, %r1, {THREADS}, %r0; mul.wide.u32 %t, %r2, 4;\n\
         add.u64 %d0, %in, %t; add.u64 %d1, %out, %t;\n{body}\nret;\n}}\n"
    )
}

/// Runs a body; `x` is a 64-bit value.
fn run(body: &str, x: u64, check: bool) -> Result<Vec<u8>, Box<Fault>> {
    let text = text(body);
    let module = atoll_ptx::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let options = HostOptions { compute_units: 2, memory_bytes: 1 << 20, time_limit: TIME_LIMIT, check };
    let mut host = HostBench::start(options).expect("a host device");
    let kernel = Kernel { module: &module, entry: "k", report: None, block: [THREADS, 1, 1] };
    let loaded = host.load(&kernel).unwrap_or_else(|e| panic!("{e}\n{text}"));
    let bytes = (THREADS * BLOCKS * 4) as usize;
    let buffer = |name: &str, writable| Buffer { name: name.into(), bytes: vec![0; bytes], writable };
    let mut buffers = [buffer("a", false), buffer("b", true)];
    let args = vec![Arg::buffer(0), Arg::buffer(1), Arg::Value(x.to_le_bytes().to_vec())];
    let launch = Launch { grid: [BLOCKS, 1, 1], shared_bytes: 0, args };
    match host.launch(&loaded, &launch, &mut buffers, 1) {
        Ok(_) => Ok(std::mem::take(&mut buffers[1].bytes)),
        Err(BenchError::Fault { fault, .. }) => {
            let fine = Launch { args: vec![Arg::buffer(0), Arg::buffer(1), Arg::Value(vec![0; 8])], ..launch };
            let again = host.launch(&loaded, &fine, &mut buffers, 1);
            assert!(matches!(again, Ok(_) | Err(BenchError::Fault { .. })), "the device continues to work");
            Err(fault)
        }
        Err(other) => panic!("{other}"),
    }
}

/// The line of the body that contains `// here`.
fn here(body: &str) -> Option<u32> {
    text(body).lines().position(|line| line.contains("// here")).map(|line| line as u32 + 1)
}

/// Runs a body that must fault at its `// here`, in any block.
fn faults(body: &str, x: u64, check: bool) -> Box<Fault> {
    let fault = run(body, x, check).expect_err(body);
    assert_eq!((fault.kernel.as_str(), fault.line), ("k", here(body)), "{fault}\n{body}");
    assert!(fault.block.is_some_and(|[x, y, z]| x < BLOCKS && y == 0 && z == 0), "{fault}");
    fault
}

#[test]
fn invalid_addresses_are_reported() {
    let address = FaultKind::BadAddress { signal: 11 };
    for x in [0, 4096, 1 << 44] {
        let fault = faults("st.global.u32 [%x], %r0; // here", x, false);
        assert_eq!(
            (&fault.kind, fault.address, fault.access.map(|a| a.kind)),
            (&address, Some(x), Some(AccessKind::Write))
        );
    }
    // Addresses that are known to be null at compile time.
    for body in [
        "mov.u64 %d2, 0; st.global.u32 [%d2], %r0; // here",
        "mov.u64 %d2, 8; ld.u32 %r3, [%d2+-8]; // here\nst.global.u32 [%d1], %r3;",
    ] {
        let fault = faults(body, 0, false);
        assert_eq!((&fault.kind, fault.address), (&address, Some(0)), "{fault}");
    }
    // Loads that the code generator merges into the addition, on the same or another line.
    for body in [
        "ld.global.f32 %f0, [%d0];\nld.global.f32 %f1, [%x]; // here\nadd.f32 %f2, %f1, %f0;\nst.global.f32 [%d1], \
        %f2;",
        "add.u64 %d2, %x, %t;\nld.global.f32 %f0, [%d0];\nld.global.f32 %f1, [%d2]; // here\n\nadd.f32 %f2, %f0, \
        %f1;\nst.global.f32 [%d1], %f2;",
        "mul.lo.u64 %d2, %t, %t;\nadd.u64 %d2, %d2, %x;\nld.global.u32 %r3, [%d2]; // here\nst.global.u32 [%d1], %r3;",
        "atom.global.add.u32 %r3, [%x], 1; // here\nst.global.u32 [%d1], %r3;",
    ] {
        let fault = faults(body, 64, false);
        assert_eq!(fault.kind, address, "{fault}");
        // Any block may be first, and the address increases with its index.
        assert!(
            fault.to_string().ends_with("outside device memory") && fault.address.is_some_and(|a| a < 1 << 24),
            "{fault}"
        );
    }
    let fault = faults("ld.global.u32 %r3, [%x]; // here\nst.global.u32 [%d1], %r3;", 1 << 63, false);
    assert!(fault.to_string().ends_with("access at a non-canonical address"), "{fault}");
}

#[test]
fn misaligned_accesses_are_named_with_their_thread() {
    for (body, x, thread) in [
        ("add.u64 %d2, %out, %x; st.global.u32 [%d2], %r0; // here", 2, 0),
        ("add.u64 %d2, %d0, %x; ld.global.u32 %r3, [%d2]; // here\nst.global.u32 [%d1], %r3;", 1, 0),
        ("ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%d0]; // here\nst.global.u32 [%d1], %r3;", 0, 1),
        ("ld.global.u64 %d3, [%in+4]; // here\nst.global.u32 [%d1], %d3;", 0, 0),
        (
            "mul.lo.u64 %d2, %t, %x; add.u64 %d2, %d2, %in; ld.global.u16 %r3, [%d2+1]; // here\nst.global.u32 [%d1], \
            %r3;",
            0,
            0,
        ),
        // Only thread 5 uses an odd offset.
        (
            "setp.eq.u32 %p0, %r0, 5; selp.b64 %d2, %x, 0, %p0; add.u64 %d2, %d1, %d2; st.global.u32 [%d2], %r0; // \
            here",
            3,
            5,
        ),
        // Only odd threads from 7 on make the access.
        (
            "and.b32 %r3, %r0, 1; setp.ge.u32 %p0, %r0, 7; setp.eq.and.u32 %p1, %r3, 1, %p0; add.u64 %d2, %d1, \
            %x;\n@%p1 st.global.u32 [%d2], %r0; // here",
            2,
            7,
        ),
        ("add.u64 %d2, %out, %x; atom.global.add.u32 %r3, [%d2], 1; // here\nst.global.u32 [%d1], %r3;", 2, 0),
        ("mov.u32 %r4, tile; ld.shared.u32 %r3, [%r4+2]; // here\nst.global.u32 [%d1], %r3;", 0, 0),
    ] {
        for check in [false, true] {
            if check && body.contains(".v4") {
                continue;
            }
            let fault = faults(body, x, check);
            assert_eq!(fault.kind, FaultKind::Misaligned, "{fault}");
            assert_eq!(fault.thread, Some([thread, 0, 0]), "{fault}\n{body}");
            assert!(
                fault.address.is_some_and(|a| a % u64::from(fault.access.expect("an access").bytes) != 0),
                "{fault}"
            );
        }
    }
}

#[test]
fn lanes_that_make_no_access_may_point_anywhere() {
    for body in [
        "setp.eq.u32 %p0, %r0, 99; add.u64 %d2, %d1, %x; @%p0 st.global.u32 [%d2], %r0;",
        "setp.eq.u32 %p0, %r0, 99; @%p0 ld.global.v4.u32 {%r3,%r4,%r5,%r6}, [%x]; @%p0 st.global.u32 [%d1], %r3;",
        "setp.lt.u32 %p0, %r0, 32; @%p0 bra $L; add.u64 %d2, %d1, %x; setp.eq.u32 %p1, %r0, 31; @%p1 st.global.u32 \
        [%d2], %r0; $L:",
        "mul.lo.u64 %d2, %t, %x; setp.ne.u64 %p0, %d2, 0; @!%p0 st.global.u32 [%out], %r0;\nadd.u64 %d2, %d2, 1; @%p0 \
        bra $M; bra $L;\n\
         $M: setp.eq.u64 %p1, %d2, 0; @%p1 st.global.u32 [%d2], %r0; $L:",
    ] {
        for check in [false, true] {
            run(body, 3, check).unwrap_or_else(|fault| panic!("{fault}\n{body}"));
        }
    }
}

#[test]
fn a_pointer_that_is_misaligned_for_some_is_fine_for_bytes() {
    let body = "add.u64 %d2, %out, %x; cvt.u64.u32 %d3, %r2; add.u64 %d2, %d2, %d3; st.global.u8 [%d2], %r0;";
    let out = run(body, 1, true).expect("bytes have no alignment");
    assert_eq!(out[1..=THREADS as usize], (0..THREADS as u8).collect::<Vec<_>>());
}

#[test]
fn endless_loops_are_aborted() {
    for body in [
        "$L: bra $L; // here",
        "mov.u32 %r3, 0;\n$L: add.u32 %r3, %r3, 1; setp.ne.u32 %p0, %r3, 0; or.pred %p0, %p0, %p0; @%p0 bra $L; bra \
        $L; // here",
    ] {
        let fault = run(body, 0, false).expect_err(body);
        assert_eq!(fault.kind, FaultKind::TimeLimit { limit_ns: TIME_LIMIT.as_nanos() as u64 }, "{fault}");
        assert!(fault.line.is_some() && fault.block.is_some(), "{fault}");
    }
    let waits = "$L: ld.volatile.global.u32 %r3, [%in]; setp.eq.u32 %p0, %r3, 0; @%p0 bra $L; // here\nst.global.u32 \
        [%d1], %r3;";
    assert!(matches!(faults(waits, 0, false).kind, FaultKind::TimeLimit { .. }));
}

#[test]
fn divergent_warps_fault_like_others() {
    let time_limit = FaultKind::TimeLimit { limit_ns: TIME_LIMIT.as_nanos() as u64 };
    for (second, kind) in [
        ("st.global.u32 [%x], %r0; // here", FaultKind::BadAddress { signal: 11 }),
        ("setp.eq.u32 %p1, %r0, 40; @%p1 trap; // here", FaultKind::Trap),
        ("$L: bra $L; // here", time_limit.clone()),
        (
            "$L: ld.volatile.global.u32 %r3, [%in]; setp.eq.u32 %p1, %r3, 0; @%p1 bra $L; // here\nst.global.u32 \
            [%d1], %r3;",
            time_limit,
        ),
        ("bar.sync 2, 64; // here", FaultKind::Deadlock),
    ] {
        let body = format!(
            "setp.ge.u32 %p0, %r0, 32; @%p0 bra $SECOND;\nbar.sync 1, 64; st.global.u32 [%d1], %r0; bra \
            $END;\n$SECOND:\n{second}\n\
             bar.sync 1, 64; st.global.u32 [%d1], %r0;\n$END:"
        );
        let fault = faults(&body, 4096, false);
        assert_eq!(fault.kind, kind, "{fault}");
    }
}

#[test]
fn a_trap_names_its_thread() {
    let fault = faults("setp.eq.u32 %p0, %r2, 70;\n@%p0 trap; // here\nst.global.u32 [%d1], %r0;", 0, false);
    assert_eq!((fault.kind, fault.block, fault.thread), (FaultKind::Trap, Some([1, 0, 0]), Some([6, 0, 0])));
}

#[test]
fn divisions_by_zero_end_nothing() {
    let mut body =
        String::from("cvt.u32.u64 %r3, %x; cvt.u32.u64 %r5, %x; sub.u32 %r5, %r5, %r0; sub.u32 %r5, %r5, 1;\n");
    for (op, bits) in [("div", 32), ("rem", 32), ("div", 64), ("rem", 64), ("div", 16), ("rem", 16)] {
        for sign in ["s", "u"] {
            let (a, b, d) = match bits {
                64 => ("%d5", "%x", "%d4"),
                _ => ("%r4", "%r3", "%r6"),
            };
            let least = if bits == 64 { "mov.u64 %d5, 0x8000000000000000;" } else { "mov.u32 %r4, 0x80000000;" };
            body += &format!("{least} {op}.{sign}{bits} {d}, {a}, {b};");
            body += &match bits {
                64 => "cvt.u32.u64 %r6, %d4; st.global.u32 [%d1], %r6;\n".to_owned(),
                _ => format!("st.global.u32 [%d1], %r6; {op}.{sign}{bits} %r6, %r4, %r5; st.global.u32 [%d1], %r6;\n"),
            };
        }
    }
    // Zero and minus one, the same for all lanes and different per lane.
    for x in [0, u64::MAX, u64::from(u32::MAX)] {
        run(&body, x, false).unwrap_or_else(|fault| panic!("{fault}"));
    }
}

#[test]
fn checked_code_keeps_every_access_in_its_buffer() {
    for (body, thread, says) in [
        (
            "ld.global.u32 %r3, [%d0+4]; // here\nst.global.u32 [%d1], %r3;",
            Some([63, 0, 0]),
            "right behind the end of 'a' (1024 bytes)",
        ),
        ("ld.global.u32 %r3, [%d0]; st.global.u32 [%d0], %r3; // here", None, "which is read-only"),
        (
            "st.u32 [%d1], %r0; add.u64 %d2, %out, -8; setp.eq.u32 %p0, %r0, 9; @%p0 st.u32 [%d2], %r0; // here",
            Some([9, 0, 0]),
            "8 bytes before 'b' (1024 bytes)",
        ),
        ("red.global.add.u32 [%out+1024], 1; // here", None, "right behind the end of 'b'"),
        (
            "shl.b32 %r3, %r0, 2; mov.u32 %r4, tile; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3+4], %r0; // here",
            Some([63, 0, 0]),
            "right behind the end of 'shared memory' (256 bytes)",
        ),
        (
            "mov.u64 %d2, own; add.u64 %d2, %d2, %x; st.local.u32 [%d2], %r0; // here",
            Some([0, 0, 0]),
            "behind the end of 'local memory'",
        ),
        (
            "ld.global.u64 %d2, [%in]; ld.global.u32 %r3, [%d2+16]; // here\nst.global.u32 [%d1], %r3;",
            Some([0, 0, 0]),
            "read of 4 bytes at 0x10",
        ),
    ] {
        let fault = faults(body, 64, true);
        assert_eq!(fault.kind, FaultKind::OutOfBounds, "{fault}");
        assert!(thread.is_none_or(|thread| fault.thread == Some(thread)), "{fault}");
        assert!(fault.to_string().contains(says), "{fault}");
    }
    let body = "shl.b32 %r3, %r0, 2; mov.u32 %r4, tile; add.u32 %r3, %r3, %r4; st.shared.u32 [%r3], %r2; bar.sync 0; \
        xor.b32 %r3, %r3, 4; ld.shared.u32 %r5, [%r3];\n\
                mov.u64 %d2, own; st.local.u32 [%d2+12], %r5; ld.local.u32 %r6, [%d2+12]; cvta.local.u64 %d3, %d2; \
                ld.u32 %r6, [%d3+12]; st.global.u32 [%d1], %r6;";
    let out = run(body, 0, true).expect("every access is inside");
    let expected: Vec<u8> = (0..THREADS * BLOCKS).flat_map(|i| (i ^ 1).to_le_bytes()).collect();
    assert_eq!(out, expected);
}
