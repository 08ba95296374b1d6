//! Runs every instruction in every form on edge values and random operands. The code for each CPU
//! level, with operands that differ between lanes and with uniform operands (computed as scalars),
//! and the interpreter must agree bit for bit; approximate instructions agree within
//! [`APPROXIMATE`].
//!
//! NaNs that an instruction produces compare equal, because the host does not produce NVIDIA's
//! payloads. An instruction that moves bits must keep the payload.

use crate::common::forms::{self, Form};
use crate::common::op::{Kind, operands};
use crate::common::{Args, HEADER, Launch, levels, try_compile};
use atoll_interp::{Access, Memory, Options, Program};
use atoll_target_host::CpuLevel;
use std::collections::BTreeMap;

/// Forms per kernel.
const BATCH: usize = 24;

/// Bytes of memory of each thread, in each of global, shared and local memory.
const CELL: usize = 32;

/// Threads per block; without and with operands that are uniform in a block.
const THREADS: usize = 64;
const UNIFORM_THREADS: usize = 32;

/// Allowed difference of approximate instructions between the devices: in units in the last place
/// of the result, or absolute. The first page of `atoll-target-host` lists the host's errors; the
/// interpreter's error is at most half a unit.
const APPROXIMATE: &[(&str, Bound)] = &[
    // The last of the 32 bits that these compute.
    ("rcp.approx.ftz.f64", Bound { ulps: 1 << 32, absolute: 0.0 }),
    ("rsqrt.approx.ftz.f64", Bound { ulps: 1 << 32, absolute: 0.0 }),
    // The host's own limits are 1, 1, 1½ and 6.
    ("ex2.approx", Bound { ulps: 2, absolute: 3e-45 }),
    ("lg2.approx", Bound { ulps: 2, absolute: 1e-10 }),
    ("rsqrt.approx", Bound { ulps: 2, absolute: 0.0 }),
    ("tanh.approx", Bound { ulps: 7, absolute: 0.0 }),
    // Near a multiple of π the result is small, and its error is that of the reduction. Beyond 10⁴
    // only the range is guaranteed.
    ("sin.approx", Bound { ulps: 3, absolute: 1.2e-7 }),
    ("cos.approx", Bound { ulps: 3, absolute: 1.2e-7 }),
];

/// For arguments beyond this, sines and cosines only have to lie between −1 and 1.
const ANGLE_MAX: f64 = 1e4;

#[derive(Clone, Copy, Debug)]
struct Bound {
    ulps: u64,
    absolute: f64,
}

#[test]
fn integers_agree() {
    check_all(forms::of_integers(), false);
}

#[test]
fn floats_agree() {
    check_all(forms::of_floats(), false);
}

#[test]
fn comparisons_and_conversions_agree() {
    check_all(forms::between_types(), false);
}

#[test]
fn memory_agrees() {
    check_all(forms::of_memory(), false);
}

#[test]
fn lanes_agree() {
    check_all(forms::of_lanes(), true);
}

/// Checks forms; forms with the same operands share a kernel. `crosses` means that a lane's result
/// depends on other lanes.
fn check_all(forms: Vec<Form>, crosses: bool) {
    let mut groups: BTreeMap<String, Vec<Form>> = BTreeMap::new();
    for form in forms {
        groups.entry(format!("{:?}", form.operands)).or_default().push(form);
    }
    let mut failures = Vec::new();
    for forms in groups.values().flat_map(|g| g.chunks(BATCH)) {
        if let Err(refusal) = check_batch(forms, crosses, &mut failures) {
            failures.push(refusal);
        }
    }
    assert!(failures.is_empty(), "{} forms differ\n{}", failures.len(), failures.join("\n"));
}

/// Collects differences; returns an error if one of the devices rejects the kernel.
fn check_batch(forms: &[Form], crosses: bool, failures: &mut Vec<String>) -> Result<(), String> {
    let mut lists = operands(&forms[0].operands, forms.len() as u64);
    if crosses {
        // A matrix product computes tens of results from a warp's operands.
        lists.iter_mut().for_each(|list| *list = spread(list, 8 * THREADS));
    }
    let varying = Batch { forms, lists: &lists, uniform: false };
    let expected = varying.interpreted()?;
    let same_in_block = Batch { forms, lists: &lists, uniform: true };
    let expected_of_uniform =
        if crosses { same_in_block.interpreted()? } else { repeat_each(&expected, UNIFORM_THREADS) };
    for level in levels() {
        for (batch, expected) in [(&varying, &expected), (&same_in_block, &expected_of_uniform)] {
            let found = batch.native(level)?;
            let per_form = batch.threads();
            for (form, (found, expected)) in forms.iter().zip(found.chunks(per_form).zip(expected.chunks(per_form))) {
                let differs = (0..per_form).find(|&i| !agree(form, &batch.given(i), found[i], expected[i]));
                failures.extend(differs.map(|i| {
                    let (code, given, uniform) = (&form.code, batch.given(i), batch.uniform);
                    format!(
                        "{code}\n  of {given:x?} ({level:?}, uniform {uniform}): the host has {:#x}, the interpreter \
                         {:#x}",
                        found[i], expected[i]
                    )
                }));
            }
        }
    }
    Ok(())
}

/// `count` elements at equal distances.
fn spread(list: &[u64], count: usize) -> Vec<u64> {
    (0..count).map(|i| list[i * list.len() / count]).collect()
}

fn repeat_each(list: &[u64], times: usize) -> Vec<u64> {
    list.iter().flat_map(|v| std::iter::repeat_n(*v, times)).collect()
}

/// Forms that one kernel runs one after another, each on all operands.
struct Batch<'a> {
    forms: &'a [Form],
    /// The list of first operands, the list of second ones, …
    lists: &'a [Vec<u64>],
    /// Whether the lanes of a warp share their operands.
    uniform: bool,
}

impl Batch<'_> {
    fn block(&self) -> usize {
        if self.uniform { UNIFORM_THREADS } else { THREADS }
    }

    fn blocks(&self) -> usize {
        self.lists[0].len() / if self.uniform { 1 } else { THREADS }
    }

    fn threads(&self) -> usize {
        self.block() * self.blocks()
    }

    /// The operands of a thread.
    fn given(&self, thread: usize) -> Vec<u64> {
        let index = if self.uniform { thread / UNIFORM_THREADS } else { thread };
        self.lists.iter().map(|list| list[index]).collect()
    }

    /// The kernel's text. Results are ordered by form, then by thread.
    fn text(&self) -> String {
        let kinds: &[Kind] = &self.forms[0].operands;
        let index = if self.uniform { "%ctaid.x" } else { "%r0" };
        let mut text = String::from(
            ".global .align 16 .b32 variable[4];\n.const .align 16 .b32 constants[16] = {7, 77, -1, 0x80000000, 4, 5, \
             -60000, 7, 8, 9, 10, 11, 12, 13, 14, 15};\n\
             .visible .entry op(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pg, .param .u64 pd)\n{\n",
        );
        text +=
            &format!("  .shared .align 16 .b8 cells[{}]; .local .align 16 .b8 cell[{CELL}];\n", self.block() * CELL);
        text += "  .reg .b32 %r<3>, %cs; .reg .b64 %x<3>, %cg, %cx, %ci;\n";
        text += &format!(
            "  mov.u32 %r1, %tid.x; mov.u32 %r0, %ctaid.x; mad.lo.u32 %r0, %r0, {}, %r1; mov.u32 %r2, {index};\n",
            self.block()
        );
        text += &format!(
            "  mov.u32 %cs, cells; mad.lo.u32 %cs, %r1, {CELL}, %cs; cvt.u64.u32 %cx, %cs; cvta.shared.u64 %cx, %cx;\n"
        );
        text += &format!("  ld.param.u64 %cg, [pg]; mad.wide.u32 %cg, %r0, {CELL}, %cg; ld.param.u64 %ci, [pa];\n");
        text += "  mul.wide.u32 %x0, %r2, 8;\n";
        for (name, kind) in ["a", "b", "c"].iter().zip(kinds) {
            let (register, bits) = (kind.bits().max(16), kind.bits());
            text += &format!(
                "  .reg .b{register} %{name}; ld.param.u64 %x1, [p{name}]; add.u64 %x1, %x1, %x0; \
                 ld.global.b{bits} %{name}, [%x1];\n"
            );
        }
        text += "  ld.param.u64 %x1, [pd]; mad.wide.u32 %x1, %r0, 8, %x1;\n";
        for (number, form) in self.forms.iter().enumerate() {
            let bits = form.result.bits();
            let code = form.code.replace('$', &format!("label{number}_"));
            text += &format!(
                "  {{ .reg .b{bits} %d; {code} st.global.b{bits} [%x1+{}], %d; }}\n",
                number * self.threads() * 8
            );
        }
        text + "  ret;\n}\n"
    }

    /// Results on the host.
    fn native(&self, level: CpuLevel) -> Result<Vec<u64>, String> {
        let loaded = try_compile(&self.text(), "op", [self.block() as u32, 1, 1], level);
        let loaded = loaded.map_err(|e| self.refusal(&e.to_string()))?;
        let mut inputs = self.lists.to_vec();
        inputs.resize(3, vec![0]);
        let mut cells = vec![0u128; self.threads() * CELL / 16];
        let mut out = vec![0u64; self.threads() * self.forms.len()];
        let args = inputs.iter_mut().fold(Args::new(), |args, list| args.slice(list));
        loaded.run(Launch::grid(self.blocks() as u32, 1, 1), args.slice(&mut cells).slice(&mut out));
        Ok(out)
    }

    /// Results of the interpreter.
    fn interpreted(&self) -> Result<Vec<u64>, String> {
        let module = atoll_ptx::parse(&format!("{HEADER}{}", self.text())).unwrap_or_else(|e| panic!("{e}"));
        let program = Program::new(&module, "op").map_err(|e| self.refusal(&e.to_string()))?;
        let bytes = |list: &[u64]| list.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
        let mut memory = Memory::new();
        let mut inputs = self.lists.to_vec();
        inputs.resize(3, vec![0]);
        let mut params: Vec<u64> =
            inputs.iter().map(|list| memory.add("operands", bytes(list), Access::Read)).collect();
        params.push(memory.add("cells", vec![0; self.threads() * CELL], Access::ReadWrite));
        let out = memory.add("results", vec![0; self.threads() * self.forms.len() * 8], Access::ReadWrite);
        params.push(out);
        let launch = atoll_interp::Launch {
            grid: [self.blocks() as u32, 1, 1],
            block: [self.block() as u32, 1, 1],
            shared_bytes: 0,
            params: bytes(&params),
        };
        let report =
            atoll_interp::run(&program, &launch, &mut memory, &Options { steps: u64::MAX, ..Options::default() });
        report.map_err(|e| self.refusal(&e.to_string()))?;
        Ok(memory.bytes(out).as_chunks::<8>().0.iter().map(|c| u64::from_le_bytes(*c)).collect())
    }

    /// An error, with the line of the text that it names.
    fn refusal(&self, error: &str) -> String {
        let numbered: Vec<String> =
            self.text().lines().enumerate().map(|(n, line)| format!("{:4} {line}", n + 4)).collect();
        format!("{error}\n{}", numbered.join("\n"))
    }
}

/// Whether two results of a form are as close as required.
fn agree(form: &Form, given: &[u64], found: u64, expected: u64) -> bool {
    let bound = APPROXIMATE.iter().find(|(name, _)| form.code.starts_with(name));
    let Some((name, bound)) = bound.filter(|_| !form.result.same(found, expected)) else {
        return form.result.same(found, expected);
    };
    let parts = |bits: u64, kind: Kind| {
        kind.parts(bits).into_iter().map(|(kind, bits)| (kind.ordered(bits), kind.number(bits)))
    };
    let is_angle = name.starts_with("sin") || name.starts_with("cos");
    let angles: Vec<f64> = form.operands[0].parts(given[0]).into_iter().map(|(kind, bits)| kind.number(bits)).collect();
    let pairs = parts(found, form.result).zip(parts(expected, form.result)).zip(angles);
    pairs.into_iter().all(|(((a, x), (b, y)), angle)| {
        let near = a.abs_diff(b) <= bound.ulps || (x - y).abs() <= bound.absolute || x.is_nan() && y.is_nan();
        near || is_angle && angle.abs() > ANGLE_MAX && x.abs() <= 1.0 && y.abs() <= 1.0
    })
}
