//! The cost of dkp modules for AMD GPUs, in instructions that an interpreter counts.

use super::{MeasuredKernel, bundle, in_module, parameters};
use crate::failure::OrUserError;
use crate::output::{Align, Table};
use crate::report::Findings;
use anyhow::{Context, Result, anyhow, ensure};
use atoll_amd_interp::{Launch, Memory, Options, Program, run as interpret};
use atoll_kgraph::{AmdFacts, KernelFacts, amd_abi};
use atoll_pipeline::{PaddedKernels, Target, pad_bundles};
use atoll_proxy_kernels::{AmdModel, KernelNeeds};
use serde::Serialize;

/// Blocks of a kernel that are interpreted: blocks of these kernels do the same work.
const BLOCKS: u32 = 1;

#[derive(Debug, Serialize)]
struct Report {
    architecture: String,
    rows: Vec<Row>,
    /// Kernels that no dkp module contains.
    left_out: Vec<String>,
}

/// A kernel in one of the modules that contain it.
#[derive(Debug, Serialize)]
struct Row {
    name: &'static str,
    /// Entry of the module, which contains the registers of its level.
    module: String,
    alone: Resources,
    dkp: Resources,
    /// Instructions per wave that the module adds.
    added_instructions: f64,
}

/// A kernel's registers, and the occupancy and instructions that result.
#[derive(Clone, Copy, Debug, Serialize)]
struct Resources {
    vgprs: u32,
    sgprs: u32,
    /// Blocks that fit a compute unit.
    unit_blocks: u32,
    /// Waves of them on a SIMD.
    simd_waves: u32,
    /// Instructions that a wave executes, on average.
    instructions: f64,
}

/// A launch of the first blocks of a kernel.
struct Interpreted<'a> {
    program: &'a Program,
    entry: &'a str,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
}

/// Counts for some architectures.
pub(super) fn run(kernels: &[&MeasuredKernel], architectures: &[String]) -> Result<Findings> {
    let reports =
        architectures.iter().map(|architecture| count(kernels, architecture)).collect::<Result<Vec<Report>>>()?;
    let text: String = reports.iter().map(text).collect();
    Findings::new(&reports, text)
}

fn count(kernels: &[&MeasuredKernel], architecture: &str) -> Result<Report> {
    let target = format!("amd:{architecture}").parse::<Target>().or_user_error()?;
    let model = AmdModel::find(architecture).context("padding knows every architecture that is compiled for")?;
    let bundle = bundle(kernels, target)?;
    let padded = pad_bundles(target, std::slice::from_ref(&bundle), None)?;
    let load = |code: &[u8]| Program::load(code).map_err(|error| anyhow!("the code object: {error}"));
    let plain = load(bundle.code(target.name()).unwrap_or_default())?;
    let programs = padded.iter().map(|padded| load(&padded.code)).collect::<Result<Vec<Program>>>()?;
    let facts = &bundle.target(target.name()).context("the bundle is for this target")?.kernels;
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for kernel in kernels {
        let number =
            facts.iter().position(|facts| facts.name == kernel.entry).context("the kernel is in the bundle")?;
        let of_kernel = &facts[number];
        let alone = Interpreted {
            program: &plain,
            entry: &of_kernel.name,
            grid: kernel.grid,
            block: kernel.block,
            shared_bytes: of_kernel.shared_bytes,
        };
        let (instructions, expected) = alone.run(kernel, of_kernel, None)?;
        let amd = of_kernel.amd.context("the facts of code for AMD")?;
        let alone = resources(model, amd, of_kernel.shared_bytes, kernel.block.iter().product(), instructions);
        let before = rows.len();
        for (padded, program) in padded.iter().zip(&programs) {
            let Some((dkp, found)) = beside_nothing(model, kernel, (number, of_kernel), padded, program)? else {
                continue;
            };
            ensure!(found == expected, "{}: {} gives other results", kernel.name, padded.facts.entry);
            rows.push(Row {
                name: kernel.name,
                module: padded.facts.entry.clone(),
                alone,
                dkp,
                added_instructions: dkp.instructions - alone.instructions,
            });
        }
        if rows.len() == before {
            left_out.push(kernel.name.to_owned());
        }
    }
    Ok(Report { architecture: architecture.to_owned(), rows, left_out })
}

/// Runs a kernel as the only one of a module; returns also the contents of its buffers. `None` if
/// the module does not contain it.
fn beside_nothing(
    model: &AmdModel,
    kernel: &MeasuredKernel,
    (number, facts): (usize, &KernelFacts),
    padded: &PaddedKernels,
    program: &Program,
) -> Result<Option<(Resources, Vec<Vec<u8>>)>> {
    // Only sizes matter here: the parameters get their values later.
    let params = vec![0; facts.params_bytes as usize];
    let Some(launch) = in_module(padded, kernel, number, &params, BLOCKS)? else { return Ok(None) };
    let proxy = &padded.kernels[launch.size];
    let entry = Interpreted {
        program,
        entry: &padded.facts.entry,
        grid: [launch.blocks, 1, 1],
        block: proxy.block,
        shared_bytes: launch.shared_bytes,
    };
    let (instructions, buffers) = entry.run(kernel, facts, Some((padded, number)))?;
    let amd = proxy.amd.context("the facts of a proxy kernel")?;
    let threads = proxy.block.iter().product();
    Ok(Some((resources(model, amd, launch.shared_bytes, threads, instructions), buffers)))
}

fn resources(model: &AmdModel, amd: AmdFacts, shared_bytes: u32, threads: u32, instructions: f64) -> Resources {
    // A kernel gets the registers of its level, which also depend on its scalar registers.
    let registers = model.level_of(amd.vgprs, amd.sgprs).map_or(amd.vgprs, |level| level.vgprs);
    let occupancy = model.device.occupancy(KernelNeeds { registers, shared_bytes, threads });
    Resources {
        vgprs: amd.vgprs,
        sgprs: amd.sgprs,
        unit_blocks: occupancy.blocks,
        simd_waves: occupancy.warps.div_ceil(model.device.registers.parts),
        instructions,
    }
}

impl Interpreted<'_> {
    /// Runs the first blocks with new buffers, in a dkp module if one is given with the kernel's
    /// number. Returns the instructions per wave and the buffers' contents.
    fn run(
        &self,
        kernel: &MeasuredKernel,
        facts: &KernelFacts,
        padded: Option<(&PaddedKernels, usize)>,
    ) -> Result<(f64, Vec<Vec<u8>>)> {
        let (mut memory, mut buffers) = (Memory::new(), Vec::new());
        let blocks: u32 = kernel.grid.iter().product();
        let words = [4, 4, blocks as usize].map(|bytes| memory.add("word", vec![0; bytes]));
        let (mut params, _) = parameters(kernel, facts, words, |bytes| {
            buffers.push(memory.add("buffer", bytes));
            Ok(buffers[buffers.len() - 1])
        })?;
        if let Some((padded, number)) = padded {
            let launch = in_module(padded, kernel, number, &params, BLOCKS)?;
            params = launch.context("the module contains the kernel")?.params;
        }
        let launch = Launch {
            // Kernels read the extents of the grid from the hidden arguments.
            grid: [BLOCKS, 1, 1],
            block: self.block,
            // Room for the gap in front of dynamic memory.
            dynamic_lds: if self.shared_bytes == 0 { 0 } else { self.shared_bytes + amd_abi::DYNAMIC_SHARED_ALIGN },
            kernarg: amd_abi::kernarg(&params, self.grid, self.block, self.shared_bytes, amd_abi::Records::default()),
        };
        let stats = interpret(&[self.program], self.entry, &launch, &mut memory, &Options::default())
            .map_err(|error| anyhow!("{}: {error}", self.entry))?;
        let contents = buffers.iter().filter_map(|at| memory.bytes(*at)).map(<[u8]>::to_vec).collect();
        Ok((stats.total() as f64 / stats.waves.max(1) as f64, contents))
    }
}

fn text(report: &Report) -> String {
    use Align::{Left, Right};
    let mut table = Table::new([
        ("kernel", Left),
        ("module", Left),
        ("vgprs", Right),
        ("sgprs", Right),
        ("blocks/unit", Right),
        ("in module", Right),
        ("waves/SIMD", Right),
        ("in module", Right),
        ("instructions", Right),
        ("added", Right),
    ]);
    for Row { name, module, alone, dkp, added_instructions } in &report.rows {
        table.row([
            (*name).to_owned(),
            module.clone(),
            alone.vgprs.to_string(),
            alone.sgprs.to_string(),
            alone.unit_blocks.to_string(),
            dkp.unit_blocks.to_string(),
            alone.simd_waves.to_string(),
            dkp.simd_waves.to_string(),
            format!("{:.1}", alone.instructions),
            format!("{added_instructions:+.1}"),
        ]);
    }
    let mut text = format!("{}, interpreted: instructions are per wave\n{table}", report.architecture);
    if !report.left_out.is_empty() {
        text += &format!("in no dkp module: {}\n", report.left_out.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::KERNELS;
    use super::*;

    /// One of the kernels has static shared memory, one none.
    #[test]
    fn a_proxy_adds_instructions_and_changes_no_result() {
        let kernels: Vec<&MeasuredKernel> =
            KERNELS.iter().filter(|kernel| ["vector_add", "transpose"].contains(&kernel.entry)).collect();
        let report = count(&kernels, "gfx90a").unwrap();
        assert!(report.left_out.is_empty(), "{:?}", report.left_out);
        for kernel in &kernels {
            let row = report.rows.iter().find(|row| row.name == kernel.name).unwrap();
            assert!(row.alone.instructions > 5.0, "{row:?}");
            assert!((20.0..200.0).contains(&row.added_instructions), "{row:?}");
            assert!(row.dkp.unit_blocks > 0 && row.dkp.unit_blocks <= row.alone.unit_blocks, "{row:?}");
        }
        assert!(text(&report).contains("transpose_f32_1024"));
    }

    #[test]
    fn an_unknown_architecture_is_the_users_mistake() {
        let error = run(&[&KERNELS[1]], &["gfx803".to_owned()]).err().unwrap().to_string();
        assert!(error.contains("gfx803"), "{error}");
    }
}
