//! Every arithmetic instruction in every form: code for different CPU levels agrees, and so does code for operands that are the same in all lanes, which is
//! computed as scalars.

mod common;

use common::forms::{self, Form};
use common::op::{Kind, operands};
use common::{Args, Launch, levels, try_compile};
use std::collections::BTreeMap;

/// Forms in one kernel.
const BATCH: usize = 24;

/// A kernel that runs forms with the same operands one after the other. Thread or, with `uniform`, block i takes the i-th operands; results lie by form, then by i.
fn kernel(forms: &[Form], count: usize, uniform: bool) -> String {
    let index =
        if uniform { "mov.u32 %r0, %ctaid.x;" } else { "mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mad.lo.u32 %r0, %r1, 64, %r0;" };
    let mut text = String::from(".visible .entry op(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd)\n{\n");
    text += &format!("  .reg .b32 %r<2>; .reg .b64 %x<4>;\n  {index} mul.wide.u32 %x0, %r0, 8;\n");
    for (name, kind) in ["a", "b", "c"].iter().zip(&forms[0].operands) {
        let (register, bits) = (kind.bits().max(16), kind.bits());
        text += &format!(
            "  .reg .b{register} %{name}; ld.param.u64 %x1, [p{name}]; add.u64 %x1, %x1, %x0; ld.global.b{bits} %{name}, [%x1];\n"
        );
    }
    text += "  ld.param.u64 %x1, [pd]; add.u64 %x1, %x1, %x0;\n";
    for (number, form) in forms.iter().enumerate() {
        let bits = form.result.bits();
        text += &format!("  {{ .reg .b{bits} %d; {} st.global.b{bits} [%x1+{}], %d; }}\n", form.code, number * count * 8);
    }
    text + "  ret;\n}\n"
}

#[test]
fn integers_agree() {
    check_all(forms::of_integers());
}

#[test]
fn floats_agree() {
    check_all(forms::of_floats());
}

#[test]
fn comparisons_and_conversions_agree() {
    check_all(forms::between_types());
}

fn check_all(forms: Vec<Form>) {
    let mut groups: BTreeMap<String, Vec<Form>> = BTreeMap::new();
    for form in forms {
        groups.entry(format!("{:?}", form.operands)).or_default().push(form);
    }
    for forms in groups.values().flat_map(|g| g.chunks(BATCH)) {
        check_batch(forms);
    }
}

fn check_batch(forms: &[Form]) {
    let kinds: &[Kind] = &forms[0].operands;
    let lists = operands(kinds, forms.len() as u64);
    let count = lists[0].len();
    let mut first: Option<Vec<u64>> = None;
    for level in levels() {
        for uniform in [false, true] {
            let loaded = try_compile(&kernel(forms, count, uniform), "op", [if uniform { 32 } else { 64 }, 1, 1], level);
            let loaded = loaded.unwrap_or_else(|e| panic!("{}: {e}", forms[0].code));
            let mut out = vec![0u64; count * forms.len()];
            let mut inputs = lists.clone();
            inputs.resize(3, vec![0]);
            let mut args = Args::new();
            for list in &mut inputs {
                args = args.slice(list);
            }
            loaded.run(Launch::grid((count / if uniform { 1 } else { 64 }) as u32, 1, 1), args.slice(&mut out));
            let wanted = first.get_or_insert_with(|| out.clone());
            for (slot, (found, wanted)) in out.iter().zip(wanted.iter()).enumerate() {
                let (form, i) = (&forms[slot / count], slot % count);
                let given: Vec<u64> = lists.iter().map(|l| l[i]).collect();
                assert!(
                    form.result.same(*found, *wanted),
                    "{} of {given:x?}, {level:?}, uniform {uniform}: {found:#x}, elsewhere {wanted:#x}",
                    form.code
                );
            }
        }
    }
}
