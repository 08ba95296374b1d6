//! Video instructions: scalar ones with selectors, and SIMD ones on two or four numbers per
//! register.

use super::{Forms, I32};

const THREE: &[super::Kind] = &[I32, I32, I32];
const TYPES: [&str; 4] = ["u32.u32.u32", "s32.s32.s32", "s32.u32.s32", "u32.s32.u32"];
const COMPARISONS: [&str; 6] = ["eq", "ne", "lt", "le", "gt", "ge"];

/// Selectors of the sources.
const PARTS: [(&str, &str); 5] = [("", ""), (".b0", ".h1"), (".b3", ""), (".h0", ".b1"), ("", ".b2")];

/// Plain, with a second operation, and merged into the third source; each with other selectors.
pub(crate) fn scalar(forms: &mut Forms) {
    let mut places = ["b0", "b1", "b2", "b3", "h0", "h1"].into_iter().cycle();
    let mut seconds = ["add", "min", "max"].into_iter().cycle();
    let mut parts = PARTS.into_iter().cycle();
    let mut of = |op: &str| {
        let (a, b) = parts.next().unwrap_or_default();
        forms.code(format!("{op} %d, %a{a}, %b{b};"), I32, THREE);
        let ((a, b), merged) = (parts.next().unwrap_or_default(), places.next().unwrap_or_default());
        forms.code(format!("mov.b32 %d, 0; {op} %d.{merged}, %a{a}, %b{b}, %c;"), I32, THREE);
        let ((a, _), second) = (parts.next().unwrap_or_default(), seconds.next().unwrap_or_default());
        forms.code(format!("{op}.{second} %d, %a{a}, 200, %c;"), I32, THREE);
    };
    for types in TYPES {
        for op in ["vadd", "vsub", "vabsdiff", "vmin", "vmax"] {
            of(&format!("{op}.{types}"));
        }
        of(&format!("vadd.{types}.sat"));
        of(&format!("vsub.sat.{types}"));
    }
    for types in ["u32.u32.u32", "s32.s32.u32"] {
        for mode in ["clamp", "wrap", "sat.clamp", "wrap.sat"] {
            ["vshl", "vshr"].into_iter().for_each(|op| of(&format!("{op}.{types}.{mode}")));
        }
    }
    COMPARISONS
        .into_iter()
        .zip(["u32.u32", "s32.u32", "s32.s32"].into_iter().cycle())
        .for_each(|(op, types)| of(&format!("vset.{types}.{op}")));
}

/// Products, negated, scaled and saturated.
pub(crate) fn products(forms: &mut Forms) {
    let operands =
        ["%a, %b, %c", "%a.h0, %b.h1, %c", "-%a, %b, %c", "%a.b3, -%b.h0, %c", "-%a, -%b, %c", "%a, %b, -%c"];
    let mut all = operands.into_iter().cycle();
    for types in TYPES {
        for mode in ["", ".sat", ".shr7", ".sat.shr7", ".shr15", ".shr15.sat"] {
            (0..2).for_each(|_| {
                forms.code(format!("vmad.{types}{mode} %d, {};", all.next().unwrap_or_default()), I32, THREE)
            });
        }
        forms.code(format!("vmad.{types}.po.sat %d, %a, %b.h1, %c;"), I32, THREE);
        // One more each time, so that every type gets other operands.
        all.next();
    }
}

/// Two and four numbers, selected from both sources, under masks.
pub(crate) fn several(forms: &mut Forms) {
    let halves = ["%d, %a, %b, %c", "%d.h1, %a.h01, %b.h30, %c", "%d.h0, %a.h32, %b.h11, %c", "%d.h10, %a.h20, %b, %c"];
    let bytes =
        ["%d, %a, %b, %c", "%d.b310, %a.b7041, %b.b0123, %c", "%d.b2, %a.b4567, %b, %c", "%d.b3210, %a, %b.b0000, %c"];
    let (mut halves, mut bytes) = (halves.into_iter().cycle(), bytes.into_iter().cycle());
    let mut of = |op: &str, rest: &str| {
        for (count, operands) in [(2, halves.next()), (4, bytes.next())] {
            forms.code(format!("mov.b32 %d, 0; {op}{count}.{rest} {};", operands.unwrap_or_default()), I32, THREE);
        }
    };
    for op in ["vadd", "vsub", "vavrg", "vabsdiff", "vmin", "vmax"] {
        for types in TYPES {
            ["", ".sat", ".add"].into_iter().for_each(|mode| of(op, &format!("{types}{mode}")));
        }
    }
    for comparison in COMPARISONS {
        of("vset", &format!("s32.u32.{comparison}"));
        of("vset", &format!("u32.u32.{comparison}.add"));
    }
}
