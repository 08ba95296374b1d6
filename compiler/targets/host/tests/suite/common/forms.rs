//! Every instruction in every form, as text: the input of the form tests.

use super::op::{Kind, Kind::*};

pub(crate) mod lanes;
pub(crate) mod memory;
mod video;

/// A form of an instruction: code that reads `%a`, `%b`, `%c` and writes `%d`.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub(crate) code: String,
    pub(crate) result: Kind,
    pub(crate) operands: Vec<Kind>,
}

pub(crate) const I8: Kind = Int(8);
pub(crate) const I16: Kind = Int(16);
pub(crate) const I32: Kind = Int(32);
pub(crate) const I64: Kind = Int(64);
const OPERANDS: &str = "%a, %b, %c";

/// Collects forms.
#[derive(Default)]
pub(crate) struct Forms(Vec<Form>);

impl Forms {
    /// Adds `name %d, %a, …` with one operand per element of `operands`.
    pub(crate) fn add(&mut self, name: &str, result: Kind, operands: &[Kind]) {
        let list = OPERANDS.split(", ").take(operands.len()).collect::<Vec<_>>().join(", ");
        self.code(format!("{name} %d, {list};"), result, operands);
    }

    pub(crate) fn code(&mut self, code: String, result: Kind, operands: &[Kind]) {
        self.0.push(Form { code, result, operands: operands.to_vec() });
    }
}

/// Integer arithmetic and bit operations.
pub(crate) fn of_integers() -> Vec<Form> {
    collected(&[integers, bits, video::scalar, video::products, video::several])
}

/// Arithmetic of floats and halves.
pub(crate) fn of_floats() -> Vec<Form> {
    collected(&[floats, halves])
}

/// Comparisons and conversions.
pub(crate) fn between_types() -> Vec<Form> {
    collected(&[comparisons, conversions])
}

/// Loads, stores, atomics, copies and addresses; each thread uses cells of its own.
pub(crate) fn of_memory() -> Vec<Form> {
    collected(&[
        memory::loads_and_stores,
        memory::orders,
        memory::hints,
        memory::atomics,
        memory::wide_atomics,
        memory::copies,
        memory::addresses,
        memory::vectors_of_registers,
    ])
}

/// Operations of all lanes of a warp.
pub(crate) fn of_lanes() -> Vec<Form> {
    collected(&[lanes::exchanges, lanes::votes, lanes::matrices])
}

fn collected(parts: &[fn(&mut Forms)]) -> Vec<Form> {
    let mut forms = Forms::default();
    parts.iter().for_each(|add| add(&mut forms));
    forms.0
}

fn integers(forms: &mut Forms) {
    for (bits, kind) in [(16, I16), (32, I32), (64, I64)] {
        for sign in ["u", "s"] {
            let ty = format!("{sign}{bits}");
            for op in ["add", "sub", "mul.lo", "mul.hi", "div", "rem", "min", "max"] {
                forms.add(&format!("{op}.{ty}"), kind, &[kind, kind]);
            }
            for op in ["mad.lo", "mad.hi", "sad"] {
                forms.add(&format!("{op}.{ty}"), kind, &[kind, kind, kind]);
            }
            if bits < 64 {
                let wide = Int(2 * bits);
                forms.add(&format!("mul.wide.{ty}"), wide, &[kind, kind]);
                forms.add(&format!("mad.wide.{ty}"), wide, &[kind, kind, wide]);
            }
        }
        for op in ["neg", "abs"] {
            forms.add(&format!("{op}.s{bits}"), kind, &[kind]);
        }
        for op in ["not", "cnot"] {
            forms.add(&format!("{op}.b{bits}"), kind, &[kind]);
        }
        for op in ["and", "or", "xor"] {
            forms.add(&format!("{op}.b{bits}"), kind, &[kind, kind]);
        }
        forms.add(&format!("shl.b{bits}"), kind, &[kind, I32]);
        forms.add(&format!("shr.u{bits}"), kind, &[kind, I32]);
        forms.add(&format!("shr.s{bits}"), kind, &[kind, I32]);
    }
    for op in [
        "add.sat.s32",
        "sub.sat.s32",
        "add.u16x2",
        "add.s16x2",
        "min.u16x2",
        "max.s16x2",
        "min.relu.s16x2",
        "max.relu.s32",
        "min.relu.s32",
    ] {
        forms.add(op, I32, &[I32, I32]);
    }
    for op in [
        "mad.hi.sat.s32",
        "mad24.lo.s32",
        "mad24.hi.u32",
        "mad24.hi.sat.s32",
        "dp4a.s32.s32",
        "dp4a.u32.s32",
        "dp4a.u32.u32",
        "dp4a.s32.u32",
        "dp2a.lo.s32.s32",
        "dp2a.hi.u32.s32",
        "dp2a.lo.s32.u32",
        "dp2a.hi.u32.u32",
    ] {
        forms.add(op, I32, &[I32, I32, I32]);
    }
    for op in ["mul24.lo.u32", "mul24.lo.s32", "mul24.hi.u32", "mul24.hi.s32"] {
        forms.add(op, I32, &[I32, I32]);
    }
    for (bits, kind) in [(32, I32), (64, I64)] {
        let b = format!("b{bits}");
        // Instructions that set the carry and instructions that read it, in every combination.
        for first in ["add.cc", "sub.cc", "mad.lo.cc", "mad.hi.cc"] {
            let set = format!("{first}.u{bits} %t, %a, %b{};", if first.starts_with("mad") { ", %c" } else { "" });
            for second in ["addc", "subc", "madc.lo", "madc.hi"] {
                let third = if second.starts_with("madc") { ", %t" } else { "" };
                let mut mix =
                    |code: String| forms.code(format!("{{ .reg .{b} %t; {set} {code} }}"), kind, &[kind, kind, kind]);
                mix(format!("{second}.u{bits} %d, %c, %a{third};"));
                for last in ["addc", "subc"] {
                    mix(format!("{second}.cc.s{bits} %t, %a, %c{third}; {last}.u{bits} %d, %t, 0;"));
                }
            }
        }
        forms.code(
            format!(
                "{{ .reg .{b} %t; mad.hi.cc.s{bits} %t, %a, %b, %c; madc.lo.cc.u{bits} %t, %t, %b, %c; \
            addc.u{bits} %d, %t, 0; }}"
            ),
            kind,
            &[kind, kind, kind],
        );
        forms.code(
            format!("{{ .reg .{b} %t; mad.lo.cc.u{bits} %t, %a, %b, %c; madc.hi.u{bits} %d, %a, %b, %c; }}"),
            kind,
            &[kind, kind, kind],
        );
    }
}

fn bits(forms: &mut Forms) {
    for (bits, kind) in [(32, I32), (64, I64)] {
        for op in ["popc.b", "clz.b", "bfind.u", "bfind.s", "bfind.shiftamt.u", "bfind.shiftamt.s"] {
            forms.add(&format!("{op}{bits}"), I32, &[kind]);
        }
        forms.add(&format!("brev.b{bits}"), kind, &[kind]);
        forms.add(&format!("bfe.u{bits}"), kind, &[kind, I32, I32]);
        forms.add(&format!("bfe.s{bits}"), kind, &[kind, I32, I32]);
        forms.code(format!("bfi.b{bits} %d, %a, %b, %c, 5;"), kind, &[kind, kind, I32]);
        forms.code(format!("bfi.b{bits} %d, %a, %b, 3, %c;"), kind, &[kind, kind, I32]);
    }
    for op in ["shf.l.clamp.b32", "shf.l.wrap.b32", "shf.r.clamp.b32", "shf.r.wrap.b32"] {
        forms.add(op, I32, &[I32, I32, I32]);
    }
    for mode in ["", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"] {
        forms.add(&format!("prmt.b32{mode}"), I32, &[I32, I32, I32]);
        forms.code(format!("prmt.b32{mode} %d, %a, %b, 0x5213;"), I32, &[I32, I32]);
    }
    forms.add("fns.b32", I32, &[I32, I32, I32]);
    for combine in ["and", "or"] {
        forms.code(
            format!(
                "{{ .reg .pred %q, %s; setp.ne.u32 %s, %c, 3; lop3.{combine}.b32 %d|%q, %a, %b, %c, 0x1b, %s; \
                 @%q xor.b32 %d, %d, 0x55; }}"
            ),
            I32,
            &[I32, I32, I32],
        );
    }
    for table in [0x00, 0x1b, 0x96, 0xca, 0xe8, 0xff] {
        forms.code(format!("lop3.b32 %d, %a, %b, %c, {table};"), I32, &[I32, I32, I32]);
    }
    for op in
        ["bmsk.clamp.b32", "bmsk.wrap.b32", "szext.clamp.s32", "szext.wrap.s32", "szext.clamp.u32", "szext.wrap.u32"]
    {
        forms.add(op, I32, &[I32, I32]);
    }
}

fn floats(forms: &mut Forms) {
    for (ty, kind) in [("f32", F32), ("f64", F64)] {
        for mode in ["rn", "rz", "rm", "rp"] {
            for modifiers in if kind == F32 { &["", ".ftz", ".sat", ".ftz.sat"][..] } else { &[""] } {
                for op in ["add", "sub", "mul"] {
                    forms.add(&format!("{op}.{mode}{modifiers}.{ty}"), kind, &[kind, kind]);
                }
                for op in ["fma", "mad"] {
                    forms.add(&format!("{op}.{mode}{modifiers}.{ty}"), kind, &[kind, kind, kind]);
                }
            }
            for ftz in if kind == F32 { &["", ".ftz"][..] } else { &[""] } {
                forms.add(&format!("div.{mode}{ftz}.{ty}"), kind, &[kind, kind]);
                forms.add(&format!("rcp.{mode}{ftz}.{ty}"), kind, &[kind]);
                forms.add(&format!("sqrt.{mode}{ftz}.{ty}"), kind, &[kind]);
            }
        }
        for ftz in if kind == F32 { &["", ".ftz"][..] } else { &[""] } {
            forms.add(&format!("min{ftz}.{ty}"), kind, &[kind, kind]);
            forms.add(&format!("max{ftz}.{ty}"), kind, &[kind, kind]);
            forms.add(&format!("abs{ftz}.{ty}"), kind, &[kind]);
            forms.add(&format!("neg{ftz}.{ty}"), kind, &[kind]);
        }
        forms.add(&format!("copysign.{ty}"), kind, &[kind, kind]);
        for class in ["finite", "infinite", "number", "notanumber", "normal", "subnormal"] {
            forms.code(format!("{{ .reg .pred %q; testp.{class}.{ty} %q, %a; selp.b32 %d, 1, 0, %q; }}"), I32, &[kind]);
        }
    }
    for op in ["min.ftz.NaN.abs", "max", "min.NaN.xorsign.abs"] {
        forms.add(&format!("{op}.f32"), F32, &[F32, F32, F32]);
    }
    for op in ["rcp", "rsqrt"] {
        forms.add(&format!("{op}.approx.ftz.f64"), F64, &[F64]);
    }
    for op in ["ex2.approx.ftz.bf16", "tanh.approx.bf16"] {
        forms.add(op, Bf16, &[Bf16]);
        forms.add(&format!("{op}x2"), Bf16x2, &[Bf16x2]);
    }
    for op in ["ex2.approx.f16", "ex2.approx.ftz.f16", "tanh.approx.f16"] {
        forms.add(op, F16, &[F16]);
        forms.add(&format!("{op}x2"), F16x2, &[F16x2]);
    }
    for op in ["min.NaN", "max.NaN", "min.ftz.NaN", "min.xorsign.abs", "max.xorsign.abs", "max.NaN.xorsign.abs"] {
        forms.add(&format!("{op}.f32"), F32, &[F32, F32]);
    }
    for op in ["ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt"] {
        forms.add(&format!("{op}.approx.f32"), F32, &[F32]);
        if op != "tanh" {
            forms.add(&format!("{op}.approx.ftz.f32"), F32, &[F32]);
        }
    }
    for op in ["div.approx", "div.full", "div.approx.ftz", "div.full.ftz"] {
        forms.add(&format!("{op}.f32"), F32, &[F32, F32]);
    }
}

fn halves(forms: &mut Forms) {
    for (ty, kind) in [("f16", F16), ("f16x2", F16x2), ("bf16", Bf16), ("bf16x2", Bf16x2)] {
        let is_f16 = ty.starts_with("f16");
        for op in ["add", "sub", "mul"] {
            forms.add(&format!("{op}.rn.{ty}"), kind, &[kind, kind]);
            if is_f16 {
                forms.add(&format!("{op}.rn.ftz.{ty}"), kind, &[kind, kind]);
                forms.add(&format!("{op}.rn.sat.{ty}"), kind, &[kind, kind]);
            }
        }
        for modifiers in if is_f16 { &["", ".ftz", ".sat", ".relu", ".ftz.relu"][..] } else { &["", ".relu"] } {
            forms.add(&format!("fma.rn{modifiers}.{ty}"), kind, &[kind, kind, kind]);
        }
        for op in ["min", "max", "min.NaN", "max.NaN", "min.xorsign.abs", "max.NaN.xorsign.abs"] {
            forms.add(&format!("{op}.{ty}"), kind, &[kind, kind]);
        }
        for op in ["neg", "abs"] {
            forms.add(&format!("{op}.{ty}"), kind, &[kind]);
            if is_f16 {
                forms.add(&format!("{op}.ftz.{ty}"), kind, &[kind]);
            }
        }
        if is_f16 {
            for op in ["min.ftz", "max.ftz.NaN"] {
                forms.add(&format!("{op}.{ty}"), kind, &[kind, kind]);
            }
            forms.add(&format!("fma.rn.ftz.sat.{ty}"), kind, &[kind, kind, kind]);
        }
    }
}

fn comparisons(forms: &mut Forms) {
    let unordered = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"];
    for (ty, kind) in [("f32", F32), ("ftz.f32", F32), ("f64", F64), ("f16", F16), ("bf16", Bf16)] {
        for op in unordered {
            forms.code(
                format!(
                    "{{ .reg .pred %q, %p, %s; setp.ne.b32 %s, 0, 1; setp.{op}.and.{ty} %q|%p, %a, %b, %s; \
                selp.b32 %d, 1, 0, %q; @%p add.u32 %d, %d, 2; }}"
                ),
                I32,
                &[kind, kind],
            );
        }
    }
    for (bits, kind) in [(16, I16), (32, I32), (64, I64)] {
        for op in [
            "eq.b", "ne.b", "lt.s", "le.s", "gt.s", "ge.s", "lt.u", "le.u", "gt.u", "ge.u", "lo.u", "ls.u", "hi.u",
            "hs.u",
        ] {
            forms.code(
                format!("{{ .reg .pred %q; setp.{op}{bits} %q, %a, %b; selp.b32 %d, 1, 0, %q; }}"),
                I32,
                &[kind, kind],
            );
        }
        forms.code(
            format!("{{ .reg .pred %q; setp.lt.u32 %q, %c, 100; selp.b{bits} %d, %a, %b, %q; }}"),
            kind,
            &[kind, kind, I32],
        );
        forms.add(&format!("slct.b{bits}.s32"), kind, &[kind, kind, I32]);
        forms.add(&format!("slct.b{bits}.f32"), kind, &[kind, kind, F32]);
    }
    for combine in ["and", "or", "xor"] {
        forms.code(
            format!(
                "{{ .reg .pred %q, %p, %s; setp.gt.s32 %s, %c, 7; setp.le.{combine}.s32 %q|%p, %a, %b, !%s; \
            selp.b32 %d, 1, 0, %q; @%p add.u32 %d, %d, 2; }}"
            ),
            I32,
            &[I32, I32, I32],
        );
        forms.code(
            format!("{{ .reg .pred %q, %s; setp.gt.s32 %s, %c, 7; set.ne.{combine}.u32.s32 %d, %a, %b, %s; }}"),
            I32,
            &[I32, I32, I32],
        );
    }
    for (ty, kind) in [("f16x2", F16x2), ("ftz.f16x2", F16x2), ("bf16x2", Bf16x2)] {
        for op in unordered {
            forms.code(
                format!(
                    "{{ .reg .pred %q, %p; setp.{op}.{ty} %q|%p, %a, %b; selp.b32 %d, 1, 0, %q; \
                @%p add.u32 %d, %d, 2; }}"
                ),
                I32,
                &[kind, kind],
            );
        }
    }
    for (ty, kind) in [("u16", I16), ("s64", I64), ("f64", F64), ("b32", I32)] {
        forms.add(&format!("set.ne.u32.{ty}"), I32, &[kind, kind]);
        forms.add(&format!("set.eq.f32.{ty}"), F32, &[kind, kind]);
    }
    for op in unordered {
        forms.add(&format!("set.{op}.u32.f32"), I32, &[F32, F32]);
    }
    for op in ["lt.u32.s32", "gt.s32.s32", "ge.u32.u64", "lo.f32.u32", "ls.s32.u32", "hi.u32.u16", "hs.u32.u32"] {
        let kind = if op.ends_with("64") {
            I64
        } else if op.ends_with("16") {
            I16
        } else {
            I32
        };
        forms.add(&format!("set.{op}"), if op.contains("f32") { F32 } else { I32 }, &[kind, kind]);
    }
    forms.add("slct.ftz.f32.f32", F32, &[F32, F32, F32]);
    forms.add("slct.f64.s32", F64, &[F64, F64, I32]);
    forms.add("set.lt.ftz.u32.f32", I32, &[F32, F32]);
    forms.add("set.lt.u32.f32", I32, &[F32, F32]);
    forms.add("set.geu.f32.f32", F32, &[F32, F32]);
    forms.add("set.le.f32.s32", F32, &[I32, I32]);
    forms.add("set.gtu.f16x2.f16x2", F16x2, &[F16x2, F16x2]);
    forms.add("set.ne.bf16x2.bf16x2", Bf16x2, &[Bf16x2, Bf16x2]);
}

fn conversions(forms: &mut Forms) {
    let ints =
        [("u8", I8), ("s8", I8), ("u16", I16), ("s16", I16), ("u32", I32), ("s32", I32), ("u64", I64), ("s64", I64)];
    let floats = [("f16", F16), ("bf16", Bf16), ("f32", F32), ("f64", F64)];
    for (to, to_kind) in ints {
        // Narrow results are extended to a 32-bit register.
        let result = if to_kind.bits() < 32 { I32 } else { to_kind };
        for (from, from_kind) in ints {
            forms.add(&format!("cvt.{to}.{from}"), result, &[from_kind]);
            forms.add(&format!("cvt.sat.{to}.{from}"), result, &[from_kind]);
        }
        for (from, from_kind) in floats {
            for mode in ["rni", "rzi", "rmi", "rpi"] {
                forms.add(&format!("cvt.{mode}.{to}.{from}"), result, &[from_kind]);
            }
        }
    }
    for (to, to_kind) in floats {
        for (from, from_kind) in ints {
            for mode in if to_kind == F16 || to_kind == Bf16 { &["rn"][..] } else { &["rn", "rz", "rm", "rp"] } {
                forms.add(&format!("cvt.{mode}.{to}.{from}"), to_kind, &[from_kind]);
            }
        }
    }
    for mode in ["rn", "rz", "rm", "rp"] {
        forms.add(&format!("cvt.{mode}.f32.f64"), F32, &[F64]);
        forms.add(&format!("cvt.{mode}.ftz.f32.f64"), F32, &[F64]);
        forms.add(&format!("cvt.{mode}.f16.f32"), F16, &[F32]);
        forms.add(&format!("cvt.{mode}.f16.f64"), F16, &[F64]);
    }
    for mode in ["rn", "rz", "rn.relu", "rz.relu"] {
        forms.add(&format!("cvt.{mode}.bf16.f32"), Bf16, &[F32]);
        forms.add(&format!("cvt.{mode}.f16x2.f32"), F16x2, &[F32, F32]);
        forms.add(&format!("cvt.{mode}.bf16x2.f32"), Bf16x2, &[F32, F32]);
    }
    for (name, kind) in [("f32", F32), ("f64", F64), ("f16", F16)] {
        for mode in ["rni", "rzi", "rmi", "rpi", "rni.sat"] {
            forms.add(&format!("cvt.{mode}.{name}.{name}"), kind, &[kind]);
        }
    }
    for mode in ["rna", "rn", "rz", "rn.relu", "rz.relu", "rna.satfinite", "rn.satfinite", "rz.relu.satfinite"] {
        forms.add(&format!("cvt.{mode}.tf32.f32"), F32, &[F32]);
    }
    for (to, kind) in [("f16", F16), ("bf16", Bf16)] {
        for mode in ["rn", "rz", "rn.relu"] {
            forms.add(&format!("cvt.{mode}.satfinite.{to}.f32"), kind, &[F32]);
        }
        forms.add(&format!("cvt.rn.satfinite.{to}x2.f32"), if to == "f16" { F16x2 } else { Bf16x2 }, &[F32, F32]);
    }
    for mode in ["rni", "rzi", "rmi", "rpi"] {
        forms.add(&format!("cvt.{mode}.bf16.bf16"), Bf16, &[Bf16]);
        forms.add(&format!("cvt.{mode}.ftz.f32.f32"), F32, &[F32]);
        forms.add(&format!("cvt.{mode}.ftz.s32.f32"), I32, &[F32]);
        forms.add(&format!("cvt.{mode}.sat.u8.f32"), I32, &[F32]);
    }
    for mode in ["sat", "ftz.sat", "ftz"] {
        forms.add(&format!("cvt.{mode}.f32.f16"), F32, &[F16]);
        forms.add(&format!("cvt.rn.{mode}.f16.f32"), F16, &[F32]);
        forms.add(&format!("cvt.rn.{mode}.f32.f64"), F32, &[F64]);
    }
    forms.add("cvt.rn.sat.f32.s32", F32, &[I32]);
    forms.add("cvt.sat.f64.f64", F64, &[F64]);
    forms.add("cvt.rn.bf16.f16", Bf16, &[F16]);
    forms.add("cvt.rn.bf16.f64", Bf16, &[F64]);
    forms.add("cvt.f64.bf16", F64, &[Bf16]);
    forms.add("cvt.f32.f16", F32, &[F16]);
    forms.add("cvt.f64.f16", F64, &[F16]);
    forms.add("cvt.f32.bf16", F32, &[Bf16]);
    forms.add("cvt.f64.f32", F64, &[F32]);
    forms.add("cvt.ftz.f64.f32", F64, &[F32]);
    forms.add("cvt.sat.f32.f32", F32, &[F32]);
    for quarter in ["e4m3x2", "e5m2x2"] {
        forms.add(&format!("cvt.rn.satfinite.{quarter}.f32"), I16, &[F32, F32]);
        forms.add(&format!("cvt.rn.satfinite.relu.{quarter}.f32"), I16, &[F32, F32]);
        forms.add(&format!("cvt.rn.satfinite.{quarter}.f16x2"), I16, &[F16x2]);
        forms.add(&format!("cvt.rn.f16x2.{quarter}"), F16x2, &[I16]);
        forms.add(&format!("cvt.rn.relu.f16x2.{quarter}"), F16x2, &[I16]);
    }
    for to in ["u16", "s16"] {
        forms.add(&format!("cvt.pack.sat.{to}.s32"), I32, &[I32, I32]);
    }
    for to in ["u8", "s8"] {
        forms.add(&format!("cvt.pack.sat.{to}.s32.b32"), I32, &[I32, I32, I32]);
    }
}
