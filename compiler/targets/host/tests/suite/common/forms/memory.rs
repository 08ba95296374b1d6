//! Instructions on memory. Each thread has 32 bytes of its own in every space: `[%cs]` in shared,
//! `[%cg]` in global, `[cell]` in local memory; `%cx` is the generic address of the shared ones.

use super::{Forms, I16, I32, I64};
use crate::common::op::Kind::{self, Bf16, Bf16x2, F16, F16x2, F32, F64};

/// State spaces, as modifiers, with the address of the thread's cell.
const SPACES: [(&str, &str); 5] =
    [(".shared", "%cs"), (".shared::cta", "%cs"), (".global", "%cg"), (".local", "cell"), ("", "%cx")];

/// Every width, extended according to the type, single and in vectors.
pub(crate) fn loads_and_stores(forms: &mut Forms) {
    for (space, cell) in SPACES {
        for ty in ["u8", "s8", "b8", "u16", "s16", "b16", "u32", "s32", "b32"] {
            let offset = if ty.ends_with('8') { 3 } else { 4 };
            forms.code(format!("st{space}.b64 [{cell}], %a; ld{space}.{ty} %d, [{cell}+{offset}];"), I64, &[I64]);
        }
        for ty in ["u64", "s64", "b64", "f64"] {
            let d = if ty == "f64" { F64 } else { I64 };
            forms.code(format!("st{space}.{ty} [{cell}+8], %a; ld{space}.{ty} %d, [{cell}+8];"), d, &[d]);
        }
        for ty in ["b8", "u8", "s8", "b16", "u16", "s16", "b32"] {
            let code =
                format!("st{space}.b64 [{cell}], %a; st{space}.{ty} [{cell}+4], %b; ld{space}.b64 %d, [{cell}];");
            forms.code(code, I64, &[I64, I64]);
        }
        let code = format!(
            "{{ .reg .b32 %s, %t; mov.b64 {{%s, %t}}, %a; st{space}.v2.b32 [{cell}], {{%t, %s}}; \
             ld{space}.b64 %d, [{cell}]; }}"
        );
        forms.code(code, I64, &[I64]);
        let code = format!(
            "{{ .reg .b16 %s, %t, %u, %v; st{space}.b64 [{cell}], %a; ld{space}.v4.s8 {{%s, %t, %u, %v}}, [{cell}+4]; \
             mov.b64 %d, {{%v, %u, %t, %s}}; }}"
        );
        forms.code(code, I64, &[I64]);
        let code = format!(
            "{{ .reg .b16 %s, %t, %u, %v; st{space}.b64 [{cell}], %a; ld{space}.v4.u16 {{%s, %t, _, %v}}, [{cell}]; \
             mov.b64 %d, {{%v, %v, %t, %s}}; }}"
        );
        forms.code(code, I64, &[I64]);
        let code = format!(
            "{{ .reg .b64 %s; st{space}.v2.b64 [{cell}+16], {{%a, %b}}; ld{space}.v2.u64 {{%s, %d}}, [{cell}+16]; \
             sub.u64 %d, %d, %s; }}"
        );
        forms.code(code, I64, &[I64, I64]);
        let code = format!(
            "{{ .reg .b32 %s, %t, %u; st{space}.v4.f32 [{cell}], {{%a, %b, %b, %a}}; \
             ld{space}.v4.b32 {{%s, %t, %u, %d}}, [{cell}]; xor.b32 %d, %d, %t; }}"
        );
        forms.code(code, I32, &[I32, I32]);
    }
}

/// Orders, scopes and hints, which do not change values.
pub(crate) fn orders(forms: &mut Forms) {
    let all = ["volatile", "weak", "relaxed.cta", "relaxed.gpu", "relaxed.sys", "relaxed.cluster"];
    let loads = [
        "acquire.cta",
        "acquire.gpu",
        "acquire.sys",
        "ca",
        "cg",
        "cs",
        "lu",
        "cv",
        "L1::evict_last",
        "L1::no_allocate",
        "L2::128B",
    ];
    let stores = ["release.cta", "release.gpu", "release.sys", "wb", "cg", "cs", "wt"];
    for words in all.iter().chain(&loads) {
        forms.code(orders_code("", words, ".global", "%cg"), I32, &[I32]);
        if !words.starts_with('L') {
            forms.code(orders_code("", words, "", "%cx"), I32, &[I32]);
        }
    }
    for words in all.iter().chain(&stores) {
        forms.code(orders_code(words, "", ".global", "%cg"), I32, &[I32]);
    }
    for words in &all[..4] {
        forms.code(orders_code(words, words, ".shared", "%cs"), I32, &[I32]);
    }
    for nc in ["ld.global.nc", "ld.global.ca.nc", "ldu.global"] {
        forms.code(format!("{nc}.u32 %d, [%ci]; add.u32 %d, %d, %a;"), I32, &[I32]);
    }
}

fn orders_code(store: &str, load: &str, space: &str, cell: &str) -> String {
    let dotted = |words: &str| if words.is_empty() { String::new() } else { format!(".{words}") };
    // Hints on cache levels follow the space, the others precede it.
    let load =
        if load.starts_with('L') { format!("ld{space}{}", dotted(load)) } else { placed("ld", &dotted(load), space) };
    let store = placed("st", &dotted(store), space);
    format!("{store}.u32 [{cell}+4], %a; {load}.u32 %d, [{cell}+4];")
}

/// Cache operators follow the space, orders precede it.
fn placed(opcode: &str, words: &str, space: &str) -> String {
    let is_cache = matches!(words, ".ca" | ".cg" | ".cs" | ".lu" | ".cv" | ".wb" | ".wt");
    if is_cache { format!("{opcode}{space}{words}") } else { format!("{opcode}{words}{space}") }
}

/// Fences, hints and waits, which have no effect on values.
pub(crate) fn hints(forms: &mut Forms) {
    let plain = [
        "prefetch.global.L1 [%cg];",
        "prefetch.global.L2 [%cg];",
        "prefetch.global.L2::evict_last [%cg];",
        "prefetch.local.L1 [cell];",
        "prefetch.L2 [%cx];",
        "prefetchu.L1 [%cx];",
        "applypriority.global.L2::evict_normal [%ci], 128;",
        "membar.cta;",
        "membar.gl;",
        "membar.sys;",
        "fence.acq_rel.cta;",
        "fence.acq_rel.gpu;",
        "fence.acquire.gpu;",
        "fence.release.sys;",
        "fence.sc.cta;",
        "fence.sc.sys;",
        "fence.proxy.alias;",
        "fence.proxy.async;",
        "fence.proxy.async.global;",
        "nanosleep.u32 20;",
        "pmevent 3;",
        "griddepcontrol.wait;",
        "griddepcontrol.launch_dependents;",
    ];
    for hint in plain {
        forms.code(format!("st.global.u32 [%cg+4], %a; {hint} ld.global.u32 %d, [%cg+4];"), I32, &[I32]);
    }
    for policy in ["fractional.L2::evict_last.b64 %p, 0f3F000000", "fractional.L2::evict_first.b64 %p"] {
        let code = format!(
            "{{ .reg .b64 %p; createpolicy.{policy}; st.global.L2::cache_hint.u32 [%cg+4], %a, %p; \
             atom.global.add.L2::cache_hint.u32 %d, [%cg+4], 7, %p; ld.global.L2::cache_hint.u32 %d, [%cg+4], %p; }}"
        );
        forms.code(code, I32, &[I32]);
    }
}

/// Atomics and reductions of vectors, and of 128 bits.
pub(crate) fn wide_atomics(forms: &mut Forms) {
    for sum in ["%s", "%t"] {
        let code = format!(
            "{{ .reg .f32 %s, %t; st.global.v2.b32 [%cg+8], {{%a, %b}}; red.global.add.v2.f32 [%cg+8], {{%b, %c}}; \
             ld.global.v2.f32 {{%s, %t}}, [%cg+8]; mov.b32 %d, {sum}; }}"
        );
        forms.code(code, F32, &[F32, F32, F32]);
    }
    for (ty, kind) in [("f16x2", F16x2), ("bf16x2", Bf16x2)] {
        for op in ["add", "min", "max"] {
            let code = format!(
                "{{ .reg .b32 %s; st.global.v2.b32 [%cg], {{%a, %b}}; \
                 atom.global.v2.{ty}.{op}.noftz {{%s, %d}}, [%cg], {{%b, %a}}; \
                 ld.global.b32 %d, [%cg]; }}"
            );
            forms.code(code, kind, &[kind, kind]);
        }
    }
    for (space, cell) in [(".global", "%cg"), (".shared", "%cs"), ("", "%cx")] {
        let code = format!(
            "{{ .reg .b128 %s, %t, %u; .reg .b64 %v; mov.b128 %s, {{%a, %b}}; mov.b128 %t, {{%b, %a}}; \
             st{space}.v2.b64 [{cell}], {{%a, %b}}; \
             atom{space}.cas.b128 %u, [{cell}], %s, %t; atom{space}.exch.b128 %u, [{cell}], %s; \
             mov.b128 {{%v, %d}}, %u; sub.u64 %d, %d, %v; }}"
        );
        forms.code(code, I64, &[I64, I64]);
    }
}

/// Atomics and reductions: the memory afterwards, and the old value.
pub(crate) fn atomics(forms: &mut Forms) {
    const OPERATIONS: &[(&str, &[(&str, Kind)])] = &[
        ("add", &[("u32", I32), ("s32", I32), ("u64", I64), ("f32", F32), ("f64", F64)]),
        ("add.noftz", &[("f16", F16), ("f16x2", F16x2), ("bf16", Bf16), ("bf16x2", Bf16x2)]),
        ("min", &[("u32", I32), ("s32", I32), ("u64", I64), ("s64", I64)]),
        ("max", &[("u32", I32), ("s32", I32), ("u64", I64), ("s64", I64)]),
        ("and", &[("b32", I32), ("b64", I64)]),
        ("or", &[("b32", I32), ("b64", I64)]),
        ("xor", &[("b32", I32), ("b64", I64)]),
        ("inc", &[("u32", I32)]),
        ("dec", &[("u32", I32)]),
    ];
    for (space, cell) in [(".global", "%cg"), (".shared", "%cs"), ("", "%cx")] {
        for (op, types) in OPERATIONS {
            for (ty, kind) in *types {
                let bits = kind.bits();
                let red = format!(
                    "st{space}.b{bits} [{cell}], %a; red{space}.{op}.{ty} [{cell}], %b; ld{space}.b{bits} %d, [{cell}];"
                );
                forms.code(red, *kind, &[*kind, *kind]);
                let atom = format!(
                    "{{ .reg .b{bits} %t; st{space}.b{bits} [{cell}], %a; \
                     atom.relaxed.gpu{space}.{op}.{ty} %d, [{cell}], %b; }}"
                );
                forms.code(atom, *kind, &[*kind, *kind]);
            }
        }
        for (bits, kind) in [(16, I16), (32, I32), (64, I64)] {
            // Half of the threads find the value that they compare with.
            let code = format!(
                "{{ .reg .b{bits} %t; .reg .pred %q; setp.lt.u{bits} %q, %b, %c; selp.b{bits} %t, %a, %b, %q; \
                 st{space}.b{bits} [{cell}], %t; \
                 atom{space}.cas.b{bits} %t, [{cell}], %a, %c; ld{space}.b{bits} %d, [{cell}]; \
                 xor.b{bits} %d, %d, %t; }}"
            );
            forms.code(code, kind, &[kind, kind, kind]);
            if bits > 16 {
                let code = format!(
                    "{{ .reg .b{bits} %t; st{space}.b{bits} [{cell}], %a; \
                     atom.acq_rel.cta{space}.exch.b{bits} %t, [{cell}], %b; \
                     ld{space}.b{bits} %d, [{cell}]; sub.u{bits} %d, %d, %t; }}"
                );
                forms.code(code, kind, &[kind, kind]);
            }
        }
    }
}

/// `cp.async`: full size, shortened, skipped.
pub(crate) fn copies(forms: &mut Forms) {
    let copy = |operands: &str| {
        format!(
            "st.global.b64 [%cg], %a; st.global.b64 [%cg+8], %a; st.shared.b64 [%cs+8], %b; cp.async.{operands}; \
             cp.async.commit_group; cp.async.wait_group 0; ld.shared.b64 %d, [%cs+8];"
        )
    };
    for operands in [
        "ca.shared.global [%cs+8], [%cg+8], 8",
        "ca.shared.global [%cs+8], [%cg+4], 4",
        "cg.shared.global [%cs], [%cg], 16",
        "ca.shared.global.L2::128B [%cs], [%cg], 16",
    ] {
        forms.code(copy(operands), I64, &[I64, I64]);
    }
    forms.code(
        format!(
            "{{ .reg .b32 %n; cvt.u32.u64 %n, %b; and.b32 %n, %n, 7; {} }}",
            copy("ca.shared.global [%cs+8], [%cg], 8, %n")
        ),
        I64,
        &[I64, I64],
    );
    forms.code(
        format!("{{ .reg .pred %q; setp.lt.s64 %q, %b, 3; {} }}", copy("ca.shared.global [%cs+8], [%cg], 8, %q")),
        I64,
        &[I64, I64],
    );
}

/// Conversion of addresses, and tests of their space.
pub(crate) fn addresses(forms: &mut Forms) {
    // On the host constants are part of global memory, so they are not tested.
    for (from, symbol) in [("shared", "cells"), ("local", "cell"), ("global", "variable")] {
        for asked in ["shared", "local", "global"] {
            let code = format!(
                "{{ .reg .b64 %s, %t; .reg .pred %q; mov.u64 %s, {symbol}; cvta.{from}.u64 %t, %s; \
                 isspacep.{asked} %q, %t; selp.b32 %d, %a, 0, %q; \
                 cvta.to.{from}.u64 %t, %t; setp.eq.u64 %q, %s, %t; @!%q xor.b32 %d, %d, 0x5555; }}"
            );
            forms.code(code, I32, &[I32]);
        }
    }
    let code = "{ .reg .b64 %s, %t; mov.u64 %s, constants; and.b64 %t, %a, 60; add.u64 %s, %s, %t; \
    ld.const.s32 %d, [%s]; cvta.const.u64 %s, %s; ld.s16 %t, [%s]; sub.u64 %d, %d, %t; }";
    forms.code(code.into(), I64, &[I64]);
}

/// Registers declared as vectors, used whole and by element.
pub(crate) fn vectors_of_registers(forms: &mut Forms) {
    for (space, cell) in SPACES {
        for ty in ["b32", "u32", "f32"] {
            forms.code(
                format!(
                    "{{ .reg .v4 .{ty} %v; st{space}.v4.{ty} [{cell}], {{%a, %b, %c, %a}}; \
                ld{space}.v4.{ty} %v, [{cell}]; mov.b32 %d, %v.z; }}"
                ),
                I32,
                &[I32, I32, I32],
            );
        }
        forms.code(
            format!(
                "{{ .reg .v2 .b64 %v<3>; mov.v2.b64 %v2, {{%a, %b}}; st{space}.v2.b64 [{cell}+16], %v2; \
            ld{space}.b64 %d, [{cell}+24]; sub.s64 %d, %d, %v2.x; }}"
            ),
            I64,
            &[I64, I64],
        );
    }
    for code in [
        ".reg .v2 .b32 %v; mov.b64 %v, %a; mov.b32 %v.x, %v.y; mov.b64 %d, %v;",
        ".reg .v2 .u32 %v, %w; mov.b64 %v, %a; mov.v2.u32 %w, %v; add.u32 %w.x, %v.r, %w.g; mov.b64 %d, %w;",
        ".reg .v4 .b16 %v; mov.b64 %v, %a; mov.b16 %v.w, %v.z; mov.b64 %d, {%v.a, %v.b, %v.y, %v.x};",
        ".reg .v2 .u32 %v; .reg .pred %p; mov.b64 %v, %b; setp.lt.u64 %p, %a, %b; @%p mov.u32 %v.y, WARP_SZ; \
         mov.b64 %d, %v;",
        ".reg .v4 .u32 %v; mov.v4.u32 %v, %ntid; mad.wide.u32 %d, %v.y, %v.z, %a;",
        ".reg .u32 %s, %t; mov.v4.u32 {_, %s, _, %t}, %tid; mad.wide.u32 %d, %s, %t, %a;",
    ] {
        forms.code(format!("{{ {code} }}"), I64, &[I64, I64]);
    }
}
