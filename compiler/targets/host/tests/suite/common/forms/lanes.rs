//! Instructions that the lanes of a warp execute together.

use super::{Forms, I32, I64};
use crate::common::op::Kind::F64;

/// Shuffles, matches and reductions, by whole warps and by divergent halves.
pub(crate) fn exchanges(forms: &mut Forms) {
    for mode in ["up", "down", "bfly", "idx"] {
        let code =
            format!("{{ .reg .pred %q; shfl.sync.{mode}.b32 %d|%q, %a, %b, %c, -1; @%q xor.b32 %d, %d, 0x1111; }}");
        forms.code(code, I32, &[I32, I32, I32]);
        for (by, clamp) in [(1, if mode == "up" { 0 } else { 31 }), (16, 31), (3, 0x181f), (5, 0x1c03), (31, 0)] {
            let code = format!(
                "{{ .reg .pred %q; shfl.sync.{mode}.b32 %d|%q, %a, {by}, {clamp}, 0xffffffff; \
                 @%q xor.b32 %d, %d, 0x1111; }}"
            );
            forms.code(code, I32, &[I32]);
        }
        forms.code(halves(&format!("shfl.sync.{mode}.b32 %d, %a, 7, 0x100f, %m;")), I32, &[I32]);
    }
    for (bits, kind) in [(32, I32), (64, I64)] {
        forms.code(format!("match.any.sync.b{bits} %d, %a, -1;"), I32, &[kind]);
        forms.code(
            format!("{{ .reg .pred %q; match.all.sync.b{bits} %d|%q, %a, -1; @%q xor.b32 %d, %d, 0x1111; }}"),
            I32,
            &[kind],
        );
        forms.code(halves(&format!("match.any.sync.b{bits} %d, %a, %m;")), I32, &[kind]);
    }
    for op in ["add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"] {
        forms.code(format!("redux.sync.{op} %d, %a, -1;"), I32, &[I32]);
        forms.code(halves(&format!("redux.sync.{op} %d, %a, %m;")), I32, &[I32]);
    }
}

/// Votes, masks and special registers of a lane.
pub(crate) fn votes(forms: &mut Forms) {
    let vote = |instruction: &str| format!(".reg .pred %q, %s; setp.lt.s32 %q, %a, 5; {instruction}");
    for mode in ["all", "any", "uni"] {
        for not in ["", "!"] {
            let code = vote(&format!("vote.sync.{mode}.pred %s, {not}%q, -1; selp.b32 %d, 1, 0, %s;"));
            forms.code(format!("{{ {code} }}"), I32, &[I32]);
            let code = vote(&format!("vote.sync.{mode}.pred %s, {not}%q, %m; selp.b32 %d, 1, 0, %s;"));
            forms.code(halves(&code), I32, &[I32]);
        }
    }
    forms.code(format!("{{ {} }}", vote("vote.sync.ballot.b32 %d, %q, -1;")), I32, &[I32]);
    forms.code(halves(&vote("vote.sync.ballot.b32 %d, !%q, %m;")), I32, &[I32]);
    forms.code(halves("bar.warp.sync %m; activemask.b32 %d; and.b32 %d, %d, %a;"), I32, &[I32]);
    forms.code(
        "st.shared.u32 [%cs], %a; barrier.cta.sync.aligned 1; bar.sync 2; barrier.sync 3; ld.shared.u32 %d, [%cs];"
            .into(),
        I32,
        &[I32],
    );
    for op in ["popc.u32 %d, 0, %q", "and.pred %q, 1, %q", "or.pred %q, 2, !%q"] {
        let code = format!(
            "{{ .reg .pred %q; setp.lt.s32 %q, %a, 5; mov.b32 %d, 0; bar.red.{op}; @%q add.u32 %d, %d, 100; }}"
        );
        forms.code(code, I32, &[I32]);
    }
    for register in ["laneid", "lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge"] {
        forms.code(format!("mov.u32 %d, %{register}; xor.b32 %d, %d, %a;"), I32, &[I32]);
    }
}

/// The same code for the lower and the upper half of the lanes, each with its mask in `%m`.
fn halves(code: &str) -> String {
    let (lower, upper) = (code, code.replace("%d", "%e"));
    format!(
        "{{ .reg .b32 %m, %e, %l; .reg .pred %h; mov.u32 %l, %laneid; setp.lt.u32 %h, %l, 16; \
         selp.b32 %m, 0xffff, 0xffff0000, %h;\n\
         @!%h bra $upper; {{ {lower} }} bra.uni $end;\n$upper: {{ {upper} }} mov.b32 %d, %e;\n$end: }}"
    )
}

/// Matrix products (floats hold small integers, so that the order of the sum does not matter), and
/// transfers of fragments.
pub(crate) fn matrices(forms: &mut Forms) {
    let half = |ty: &'static str| (ty, "f16x2");
    let products = [
        ("m16n8k8", "f32", half("f16"), 2, 1, 4),
        ("m16n8k16", "f32", half("f16"), 4, 2, 4),
        ("m16n8k16", "f16", half("f16"), 4, 2, 2),
        ("m16n8k8", "f32", ("bf16", "bf16x2"), 2, 1, 4),
        ("m16n8k16", "f32", ("bf16", "bf16x2"), 4, 2, 4),
        ("m16n8k4", "f32", ("tf32", "tf32"), 2, 1, 4),
        ("m16n8k8", "f32", ("tf32", "tf32"), 4, 2, 4),
        ("m8n8k16", "s32", ("s8", "b32"), 1, 1, 2),
        ("m16n8k16", "s32", ("u8", "b32"), 2, 1, 4),
        ("m16n8k32", "s32", ("s8", "b32"), 4, 2, 4),
        ("m16n8k32", "s32", ("u8", "b32"), 4, 2, 4),
    ];
    for (shape, sum, (ty, packing), a, b, c) in products {
        let saturations = if sum == "s32" { &["", ".satfinite"][..] } else { &[""] };
        for saturation in saturations {
            let instruction = format!("mma.sync.aligned.{shape}.row.col{saturation}.{sum}.{ty}.{ty}.{sum}");
            forms.code(product(&instruction, packing, sum, [a, b, c]), I32, &[I32, I32, I32]);
        }
    }
    forms.code(
        product("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32", "b32", "s32", [4, 2, 4]),
        I32,
        &[I32, I32, I32],
    );
    forms.code(
        "{ .reg .f64 %s, %t; cvt.rni.f64.f64 %s, %a; min.f64 %s, %s, 0d4059000000000000; \
         max.f64 %s, %s, 0dC059000000000000;\n\
         mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%t, %d}, {%s}, {%s}, {%s, 0d3FF0000000000000}; \
         sub.f64 %d, %d, %t; }"
            .into(),
        F64,
        &[F64],
    );
    forms.code("movmatrix.sync.aligned.m8n8.trans.b16 %d, %a;".into(), I32, &[I32]);
    for (layouts, stride) in [("row.col", 16), ("col.row", 20)] {
        let [a, b] = [&layouts[..3], &layouts[4..]];
        // Each warp's cells hold matrices of bytes, which are loaded, multiplied and overwritten
        // with the product.
        let code = format!(
            "{{ .reg .b32 %A<2>, %B<2>, %C<8>, %w; st.shared.v4.b32 [%cs], {{%a, %b, %a, %b}}; \
             st.shared.v4.b32 [%cs+16], {{%b, %b, %a, %a}};\n\
             bar.warp.sync -1; mov.u32 %w, %tid.x; and.b32 %w, %w, 31; mul.lo.u32 %w, %w, 32; sub.u32 %w, %cs, %w;\n\
             wmma.load.a.sync.aligned.{a}.m16n16k16.shared.s8 {{{A}}}, [%w], {stride};\n\
             wmma.load.b.sync.aligned.{b}.m16n16k16.shared.s8 {{{B}}}, [%w+16], 16;\n\
             wmma.load.c.sync.aligned.row.m16n16k16.shared.s32 {{{C}}}, [%w]; bar.warp.sync -1;\n\
             wmma.mma.sync.aligned.{a}.{b}.m16n16k16.s32.s8.s8.s32 {{{C}}}, {{{A}}}, {{{B}}}, {{{C}}};\n\
             wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [%w], {{{C}}}; bar.warp.sync -1;\n\
             ld.shared.b32 %d, [%cs+8]; ld.shared.b32 %w, [%cs+28]; xor.b32 %d, %d, %w; }}",
            A = registers("A", 2),
            B = registers("B", 2),
            C = registers("C", 8)
        );
        forms.code(code, I32, &[I32, I32]);
    }
    for trans in ["", ".trans"] {
        for (count, list) in [(1, "{%d}"), (2, "{%d, %s}"), (4, "{%d, %s, %t, %u}")] {
            // Each lane's cell is a row of a matrix.
            let code = format!(
                "{{ .reg .b32 %s, %t, %u; mov.b32 %s, 0; mov.b32 %t, 0; mov.b32 %u, 0; \
                 st.shared.v4.b32 [%cs], {{%a, %b, %a, %b}}; bar.warp.sync -1;\n\
                 ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {list}, [%cs]; bar.warp.sync -1; \
                 sub.u32 %d, %d, %s; sub.u32 %t, %t, %u; xor.b32 %d, %d, %t; }}"
            );
            forms.code(code, I32, &[I32, I32]);
            let code = format!(
                "{{ .reg .b32 %s, %t, %u; sub.u32 %s, %a, %b; xor.b32 %t, %a, %b; mov.b32 %u, %b; mov.b32 %d, %a; \
                 st.shared.v4.b32 [%cs], {{%b, %a, %b, %a}}; bar.warp.sync -1;\n\
                 stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%cs], {list}; bar.warp.sync -1; \
                 ld.shared.v4.b32 {{%d, %s, %t, %u}}, [%cs]; sub.u32 %d, %d, %s; sub.u32 %t, %t, %u; \
                 xor.b32 %d, %d, %t; }}"
            );
            forms.code(code, I32, &[I32, I32]);
        }
    }
}

/// The register names of a fragment.
fn registers(name: &str, count: usize) -> String {
    (0..count).map(|n| format!("%{name}{n}")).collect::<Vec<_>>().join(", ")
}

/// An `mma` whose fragments are made from the operands: byte-sized numbers, packed in the
/// instruction's format.
fn product(instruction: &str, packing: &str, sum: &str, [a, b, c]: [usize; 3]) -> String {
    let mut code = String::from("{ .reg .b32 %s, %A<4>, %B<2>, %C<4>, %D<4>; .reg .f32 %f, %g;\n");
    let fragments = [("A", a, "%a"), ("B", b, "%b")];
    for (name, count, operand) in fragments {
        for n in 0..count {
            code += &format!("shf.l.wrap.b32 %s, {operand}, %c, {};", 5 * n);
            code += &match packing {
                "b32" => format!(" mov.b32 %{name}{n}, %s;\n"),
                "tf32" => format!(" cvt.s32.s8 %s, %s; cvt.rn.f32.s32 %f, %s; mov.b32 %{name}{n}, %f;\n"),
                _ => format!(
                    " cvt.rn.f32.s8 %f, %s; shr.u32 %s, %s, 9; cvt.rn.f32.u8 %g, %s; mul.f32 %g, %g, 0f3E800000; \
                     cvt.rn.{packing}.f32 %{name}{n}, %f, %g;\n"
                ),
            };
        }
    }
    for n in 0..c {
        code += &format!("shf.r.wrap.b32 %s, %c, %a, {};", 7 * n);
        code += &match sum {
            "s32" => format!(" mov.b32 %C{n}, %s;\n"),
            "f32" => format!(" cvt.rn.f32.s16 %f, %s; mov.b32 %C{n}, %f;\n"),
            _ => format!(" cvt.rn.f32.s8 %f, %s; cvt.rn.f16x2.f32 %C{n}, %f, %f;\n"),
        };
    }
    code += &format!(
        "{instruction} {{{}}}, {{{}}}, {{{}}}, {{{}}};\n",
        registers("D", c),
        registers("A", a),
        registers("B", b),
        registers("C", c)
    );
    code += "mov.b32 %d, %D0;";
    (1..c).for_each(|n| code += &format!(" shf.l.wrap.b32 %d, %d, %d, 3; xor.b32 %d, %d, %D{n};"));
    code + " }"
}
