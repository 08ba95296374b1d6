//! Boundary cases of the fence: accesses that just need no bound, accesses that just need one, and
//! accesses that are refused, with the cause. Kernels are not run here.

use atoll_passes::{FenceForm, Fencing, PassOptions, transform_with};

/// What the fence did to the kernel `k`.
#[derive(Debug)]
enum Outcome {
    /// It was fenced. The text of the module, and the offset of the appended parameters.
    Fenced(String, u32),
    /// By the fence, or as invalid PTX.
    Refused(String),
}

/// Fences a kernel with these parameters, after these declarations of the module.
fn fence(module: &str, params: &str, body: &str) -> Outcome {
    fence_by(FenceForm::Mask, module, params, body)
}

fn fence_by(fence_form: FenceForm, module: &str, params: &str, body: &str) -> Outcome {
    let text = format!(
        ".version 7.8\n.target sm_75\n.address_size 64\n{module}\n.visible .entry k({params})\n{{\n\
         .reg .pred %p<4>;\n.reg .b32 %r<8>;\n.reg .b64 %rd<8>;\n{body}\nret;\n}}\n"
    );
    let mut module = atoll_ptx::parse(&text).unwrap_or_else(|error| panic!("{body}: {error}"));
    let options = PassOptions { fence_form, ..PassOptions::default() };
    let report = transform_with(&mut module, &["fence_memory"], &options, &mut |_, _| {});
    let report = match report {
        Ok(report) => report,
        Err(error) => return Outcome::Refused(error.to_string()),
    };
    match &report.kernels[0].fencing {
        Fencing::Fenced { offset } => Outcome::Fenced(atoll_ptx::print(&module), *offset),
        Fencing::Refused(reason) => Outcome::Refused(reason.to_string()),
        Fencing::NotAsked => panic!("{body}: the pass did not run"),
    }
}

/// A body with its variables: `s` of 64 bytes and `t` of 2 bytes in shared memory, `l` of 64 bytes
/// in local memory, `c` and `g` of 64 bytes in the module.
fn access(instruction: &str) -> Outcome {
    let module = ".const .align 16 .b8 c[64];\n.global .align 16 .b8 g[64];";
    let body = format!(
        ".shared .align 16 .b8 s[64];\n.shared .align 4 .b8 t[2];\n.local .align 16 .b8 l[64];\n\
         ld.param.u64 %rd1, [p];\nld.param.u32 %r1, [n];\n{instruction}"
    );
    fence(module, ".param .u64 p, .param .u32 n", &body)
}

#[test]
fn an_access_gets_a_bound_unless_its_last_byte_is_in_its_variable() {
    for (instruction, is_bounded) in [
        ("ld.shared.u32 %r2, [s];", false),
        ("ld.shared.u32 %r2, [s+60];", false),
        ("ld.shared.u32 %r2, [s+61];", true),
        ("ld.shared.u32 %r2, [s+64];", true),
        ("ld.shared.u32 %r2, [s+-4];", true),
        ("ld.shared.u8 %r2, [s+63];", false),
        ("ld.shared.u8 %r2, [s+64];", true),
        ("ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s+48];", false),
        ("ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s+52];", true),
        ("st.shared.u32 [s+60], %r1;", false),
        ("st.shared.u32 [s+64], %r1;", true),
        ("atom.shared.add.u32 %r2, [s+60], 1;", false),
        ("atom.shared.add.u32 %r2, [s+64], 1;", true),
        ("ld.shared.u16 %r2, [t];", false),
        ("ld.shared.u8 %r2, [t+1];", false),
        ("ld.shared.u8 %r2, [t+2];", true),
        ("st.local.u32 [l+60], %r1;", false),
        ("st.local.u32 [l+64], %r1;", true),
        ("ld.const.u32 %r2, [c+60];", false),
        ("ld.const.u32 %r2, [c+64];", true),
        ("ld.global.u32 %r2, [g+60];", false),
        ("ld.global.u32 %r2, [g+64];", true),
        // Parameters by name, which lie in the parameter block.
        ("ld.param.u32 %r2, [p+4];", false),
        // Global memory always gets a bound.
        ("ld.global.u32 %r2, [%rd1];", true),
        ("st.global.u32 [%rd1], %r1;", true),
        ("atom.global.add.u32 %r2, [%rd1], 1;", true),
        ("red.global.add.u32 [%rd1], 1;", true),
        ("ld.u32 %r2, [%rd1];", true),
        ("st.u8 [%rd1+3], %r1;", true),
    ] {
        match access(instruction) {
            Outcome::Fenced(text, _) => {
                assert_eq!(text.contains("[%atoll_address"), is_bounded, "{instruction}\n{text}")
            }
            Outcome::Refused(reason) => panic!("{instruction}: {reason}"),
        }
    }
}

#[test]
fn accesses_without_a_bound_are_refused_with_their_cause() {
    for (instruction, cause) in [
        // Larger than its variable, so that no offset would do.
        ("ld.shared.u32 %r2, [t];", "cannot determine which shared variable is accessed"),
        // Not derived from a variable.
        ("ld.shared.u32 %r2, [%r1];", "cannot determine which shared variable is accessed"),
        ("st.local.u32 [%rd1], %r1;", "cannot determine which local variable is accessed"),
        ("ld.param.u32 %r2, [n+1];", "the access to bytes 1 to 5 is outside of `n`"),
        ("ld.param.u32 %r2, [n+4];", "the access to bytes 4 to 8 is outside of `n`"),
        ("ld.param.u32 %r2, [p+5];", "the access to bytes 5 to 9 is outside of `p`"),
        ("st.global.u32 [g], %r1;", "`g` is global memory of the module, outside of every region"),
        ("atom.global.add.u32 %r2, [g+60], 1;", "`g` is global memory of the module, outside of every region"),
        ("mov.u32 %r2, %r1; .reg .b32 %atoll_mine; mov.u32 %atoll_mine, 1;", "its name is reserved for the fence"),
    ] {
        match access(instruction) {
            Outcome::Refused(reason) => assert!(reason.contains(cause), "{instruction}: {reason}"),
            Outcome::Fenced(text, _) => panic!("{instruction} was accepted:\n{text}"),
        }
    }
}

#[test]
fn an_index_is_bounded_by_the_last_label_of_its_table() {
    for (labels, last) in [("$a", 0), ("$a, $b", 1), ("$a, $b, $a", 2)] {
        let branch = format!("ways: .branchtargets {labels};\nbrx.idx %r1, ways;\n$a:\nret;\n$b:");
        match access(&branch) {
            Outcome::Fenced(text, _) => {
                let bound = format!("%atoll_index, %r1, {last};");
                assert!(text.contains(&bound) && text.contains("brx.idx\t%atoll_index, ways;"), "{text}");
            }
            Outcome::Refused(reason) => panic!("{labels}: {reason}"),
        }
    }
}

/// The fence has 36 bytes of parameters at a multiple of 8, and `sm_75` allows 4,096 bytes in all.
#[test]
fn appended_parameters_must_fit() {
    for (bytes, expected) in
        [(1, Ok(8)), (8, Ok(8)), (9, Ok(16)), (4056, Ok(4056)), (4057, Err(4100)), (4064, Err(4100))]
    {
        let params = format!(".param .align 8 .b8 all[{bytes}]");
        match (fence("", &params, "mov.u32 %r1, 0;"), expected) {
            (Outcome::Fenced(_, offset), Ok(at)) => assert_eq!(offset, at, "{bytes} bytes"),
            (Outcome::Refused(reason), Err(all)) => {
                assert_eq!(
                    reason,
                    format!("{all} bytes of parameters exceed the 4096 that `.version` and `.target` allow")
                );
            }
            (found, expected) => panic!("{bytes} bytes: expected {expected:?}, found {found:?}"),
        }
    }
}

/// A context that tenants share must survive their kernels: what may destroy it besides an address is
/// refused in the form for GPUs.
#[test]
fn what_may_destroy_a_context_is_refused_on_gpus() {
    let module = ".func (.reg .b32 %n) deep(.reg .b32 %m) {\ncall (%n), deep, (%m);\nret;\n}\n\
        .global .align 4 .b8 g[64];";
    let on = |form, body: &str| fence_by(form, module, ".param .align 4 .b8 p[16]", body);
    for (instruction, reason) in [
        ("brkpt;", "it stops the context"),
        ("bar.sync %r1;", "its barrier or its number of threads may be invalid"),
        ("bar.sync 16;", "its barrier or its number of threads may be invalid"),
        ("barrier.sync 0, 33;", "its barrier or its number of threads may be invalid"),
        ("bar.arrive 1, %r1;", "its barrier or its number of threads may be invalid"),
        ("bar.red.or.pred %p1, 0, 2048, %p2;", "its barrier or its number of threads may be invalid"),
        ("ld.global.L2::cache_hint.u32 %r1, [%rd1], %rd2;", "its cache policy may be invalid"),
        ("call (%r1), deep, (%r2);", "the device function `deep` calls itself"),
        ("prefetch.global.L2 [%rd1];", "prefetch.global.L2"),
        ("ld.param.u32 %r1, [p+2];", "`p` may not be aligned to the size of the access"),
        ("ld.param.u64 %rd1, [p+8];", "`p` may not be aligned to the size of the access"),
        ("ld.global.u64 %rd1, [g+8];", "`g` may not be aligned to the size of the access"),
    ] {
        match on(FenceForm::Exit, instruction) {
            Outcome::Refused(why) => assert!(why.contains(reason), "{instruction}: {why}"),
            Outcome::Fenced(..) => panic!("{instruction} was accepted"),
        }
    }
    for instruction in [
        "bar.sync 0;",
        "barrier.sync 15, 64;",
        "bar.red.or.pred %p1, 3, %p2;",
        "bar.red.or.pred %p1, 3, 1024, %p2;",
        "bar.warp.sync %r1;",
        "ld.param.u32 %r1, [p+4];",
        "ld.global.u32 %r1, [g+4];",
        "trap;",
    ] {
        let outcome = on(FenceForm::Exit, instruction);
        assert!(matches!(&outcome, Outcome::Fenced(_, 16)), "{instruction}: {outcome:?}");
    }
}

/// In the form for GPUs, a private access whose address is not known to be aligned is rounded down.
#[test]
fn private_addresses_are_aligned_on_gpus() {
    for (instruction, is_rounded) in [
        ("ld.shared.u32 %r2, [s+4];", false),
        ("ld.shared.u8 %r2, [s+5];", false),
        ("ld.shared.u32 %r2, [s+5];", true),
        ("ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s+16];", false),
        ("ld.shared.v4.u32 {%r2, %r3, %r4, %r5}, [s+8];", true),
        ("ld.local.u64 %rd2, [l+8];", false),
        ("ld.local.u64 %rd2, [l+4];", true),
        // The variable is aligned to 4 bytes.
        ("ld.shared.u64 %rd2, [t];", true),
    ] {
        let body = format!(
            ".shared .align 16 .b8 s[64];\n.shared .align 4 .b8 t[16];\n.local .align 16 .b8 l[64];\n{instruction}"
        );
        match fence_by(FenceForm::Exit, "", ".param .u64 p", &body) {
            Outcome::Fenced(text, _) => {
                let rounds = text.contains("and.b64\t%atoll_address, %atoll_address, -");
                assert_eq!(rounds, is_rounded, "{instruction}: {text}");
            }
            refused => panic!("{instruction}: {refused:?}"),
        }
    }
}

#[test]
fn functions_that_no_kernel_reaches_do_not_call_fenced_ones() {
    let module = ".func (.reg .b32 %v) inner(.reg .b64 %a) {\nld.global.u32 %v, [%a];\nret;\n}\n\
        .func (.reg .b32 %v) caller(.reg .b64 %a) {\ncall (%v), inner, (%a);\nret;\n}\n\
        .func (.reg .b32 %v) far_caller(.reg .b64 %a) {\ncall (%v), caller, (%a);\nret;\n}\n\
        .func (.reg .b32 %v) apart(.reg .b32 %a) {\nmov.b32 %v, %a;\nret;\n}";
    match fence(module, ".param .u64 p", "ld.param.u64 %rd1, [p];\ncall (%r1), inner, (%rd1);") {
        Outcome::Fenced(text, _) => {
            assert!(!text.contains("caller") && text.contains(" inner(") && text.contains(" apart("), "{text}");
        }
        refused => panic!("{refused:?}"),
    }
}
