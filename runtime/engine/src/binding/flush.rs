//! The binding of a flush of a CUDA session: launches of kernels of several functions with the
//! parameters that the program gave, and copies between the session's memory and the client.
//!
//! The program's parameters hold addresses already. Only the parameters that the compiler appended
//! are relocated.

use super::work::{FenceRanges, LaunchTemplate, Relocation, Site, Space, Work};
use crate::limits::{FLUSH_BLOCKS_MAX, FLUSH_BYTES_MIN};
use atoll_core::Step;
use atoll_core::memory::FunctionId;
use atoll_device::AddressSlots;
use atoll_kgraph::{BUFFER_ALIGN, InvocationLayout, KernelFacts, LaunchLayout, Place, fence_params, preempt_params};

/// Alignment of a progress map in bytes, so that it can be read in words.
const PROGRESS_ALIGN: u64 = 16;

/// One piece of work of a flush. Offsets are in bytes from the start of the session's memory.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// A launch of the only kernel of a function.
    Launch { code: FunctionId, kernel: &'a KernelFacts, grid: [u32; 3], params: &'a [u8] },
    /// A copy from the client.
    CopyIn { to: u64, bytes: u64 },
    /// A copy to the client.
    CopyOut { from: u64, bytes: u64 },
    /// A copy within the session's memory.
    Copy { from: u64, to: u64, bytes: u64 },
    /// A fill with a pattern of eight bytes.
    Fill { to: u64, pattern: [u8; 8], bytes: u64 },
}

/// The parts of a binding of a flush.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) layout: InvocationLayout,
    pub(super) inputs: Vec<Place>,
    pub(super) outputs: Vec<Place>,
    pub(super) steps: Vec<Step>,
    pub(super) work: Vec<Work>,
    pub(super) params: Vec<u8>,
    pub(super) relocations: Vec<Relocation>,
    pub(super) code: Vec<FunctionId>,
}

/// The parts of a flush of a session with `memory_bytes` bytes of memory.
///
/// # Errors
/// Why a piece of work is invalid.
pub(super) fn parts(ranges: FenceRanges, memory_bytes: u64, pieces: &[Piece<'_>]) -> Result<Parts, String> {
    let mut flush = Flush::new(memory_bytes);
    for piece in pieces {
        flush.transfer(piece)?;
    }
    flush.begin_control();
    for (index, piece) in pieces.iter().enumerate() {
        flush.add(piece, ranges).map_err(|reason| format!("call {index} of the flush: {reason}"))?;
    }
    Ok(flush.finish())
}

/// A binding under construction.
struct Flush {
    memory_bytes: u64,
    /// Bytes of the invocation's memory so far.
    end: u64,
    /// Offset of the control area, which starts with the epoch word.
    control: u64,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    /// Numbers of inputs and of outputs whose copies were added.
    copied: [usize; 2],
    steps: Vec<Step>,
    work: Vec<Work>,
    params: Vec<u8>,
    relocations: Vec<Relocation>,
    launches: Vec<Option<LaunchLayout>>,
    code: Vec<FunctionId>,
}

impl Flush {
    fn new(memory_bytes: u64) -> Flush {
        Flush {
            memory_bytes,
            end: 0,
            control: 0,
            inputs: Vec::new(),
            outputs: Vec::new(),
            copied: [0; 2],
            steps: Vec::new(),
            work: Vec::new(),
            params: Vec::new(),
            relocations: Vec::new(),
            launches: Vec::new(),
            code: Vec::new(),
        }
    }

    fn take(&mut self, bytes: u64, align: u64) -> Result<Place, String> {
        let too_large = || "its copies and launches need too much memory".to_owned();
        let offset = self.end.checked_next_multiple_of(align).ok_or_else(too_large)?;
        self.end = offset.checked_add(bytes).filter(|end| *end < 1 << 62).ok_or_else(too_large)?;
        Ok(Place { offset, bytes })
    }

    /// Takes memory for the bytes that a piece exchanges with the client.
    fn transfer(&mut self, piece: &Piece<'_>) -> Result<(), String> {
        match *piece {
            Piece::CopyIn { bytes, .. } => {
                let place = self.take(bytes, BUFFER_ALIGN)?;
                self.inputs.push(place);
            }
            Piece::CopyOut { bytes, .. } => {
                let place = self.take(bytes, BUFFER_ALIGN)?;
                self.outputs.push(place);
            }
            Piece::Launch { .. } | Piece::Copy { .. } | Piece::Fill { .. } => {}
        }
        Ok(())
    }

    fn begin_control(&mut self) {
        self.control = self.end.next_multiple_of(BUFFER_ALIGN);
        // The epoch word has a cache line of its own.
        self.end = self.control + BUFFER_ALIGN;
    }

    fn add(&mut self, piece: &Piece<'_>, ranges: FenceRanges) -> Result<(), String> {
        let work = match *piece {
            Piece::Launch { code, kernel, grid, params } => return self.launch(code, kernel, grid, params, ranges),
            Piece::CopyIn { to, bytes } => {
                let from = Site { space: Space::Invocation, offset: self.inputs[self.copied[0]].offset };
                self.copied[0] += 1;
                Work::Copy { from, to: self.state(to, bytes)?, bytes }
            }
            Piece::CopyOut { from, bytes } => {
                let to = Site { space: Space::Invocation, offset: self.outputs[self.copied[1]].offset };
                self.copied[1] += 1;
                Work::Copy { from: self.state(from, bytes)?, to, bytes }
            }
            Piece::Copy { from, to, bytes } => {
                Work::Copy { from: self.state(from, bytes)?, to: self.state(to, bytes)?, bytes }
            }
            Piece::Fill { to, pattern, bytes } => Work::Fill { to: self.state(to, bytes)?, pattern, bytes },
        };
        self.steps.push(Step::Host);
        self.work.push(work);
        Ok(())
    }

    /// A checked range of the session's memory.
    fn state(&self, offset: u64, bytes: u64) -> Result<Site, String> {
        match offset.checked_add(bytes).is_some_and(|end| end <= self.memory_bytes) {
            true => Ok(Site { space: Space::State, offset }),
            false => Err(format!("{bytes} bytes at {offset} lie outside the session's {} bytes", self.memory_bytes)),
        }
    }

    fn launch(
        &mut self,
        code: FunctionId,
        kernel: &KernelFacts,
        grid: [u32; 3],
        params: &[u8],
        ranges: FenceRanges,
    ) -> Result<(), String> {
        let blocks = grid.iter().try_fold(1_u64, |blocks, size| blocks.checked_mul((*size).into()));
        let blocks = blocks.filter(|blocks| (1..=FLUSH_BLOCKS_MAX).contains(blocks));
        let blocks = blocks.ok_or_else(|| format!("a grid has 1 to {FLUSH_BLOCKS_MAX} blocks"))?;
        if ranges.constants.is_none() {
            self.check_fence(kernel)?;
        }
        let own = kernel.fence.map(|fence| fence.offset).or(kernel.preempt_offset).unwrap_or(kernel.params_bytes);
        if params.len() > own as usize {
            return Err(format!("{} bytes of parameters; the kernel takes at most {own}", params.len()));
        }
        let keeps = kernel.keeps_progress();
        let evicted_word = self.take(4, 4)?.offset;
        let progress = if keeps { self.take(blocks, PROGRESS_ALIGN)? } else { Place::default() };
        let start = self.params.len().next_multiple_of(8);
        self.params.resize(start + kernel.params_bytes as usize, 0);
        self.params[start..start + params.len()].copy_from_slice(params);
        let mut address_slots = AddressSlots::NONE;
        let mut addresses = Vec::new();
        if let Some(fence) = kernel.fence {
            let dynamic = u64::from(fence.dynamic_shared_bytes).to_le_bytes();
            self.write(start, fence.offset + fence_params::DYNAMIC_SHARED, &dynamic[..4]);
            for (at, mask) in ranges.masks() {
                let mask = mask.unwrap_or_else(|| self.memory_bytes - 1);
                self.write(start, fence.offset + at, &mask.to_le_bytes());
            }
            let own = Site { space: Space::State, offset: 0 };
            let site = |site| if ranges.constants.is_some() { site } else { own };
            addresses.extend(ranges.addresses().map(|(at, of_domain)| (fence.offset + at, site(of_domain))));
        }
        if let Some(base) = kernel.preempt_offset {
            let site = |offset| Site { space: Space::Invocation, offset };
            addresses.push((base + preempt_params::EPOCH_WORD, site(self.control)));
            addresses.push((base + preempt_params::EVICTED_WORD, site(evicted_word)));
            addresses.push((base + preempt_params::PROGRESS, site(progress.offset)));
        }
        for (at, site) in addresses {
            address_slots.insert(at as usize / 8);
            self.relocations.push(Relocation { at: start + at as usize, site });
        }
        let code = self.code_index(code);
        self.steps.push(if keeps { Step::Preemptible } else { Step::NotPreemptible });
        self.work.push(Work::Launch(LaunchTemplate {
            node: self.launches.len() as u32,
            code: Some(code),
            kernel: 0,
            grid,
            shared_bytes: kernel.shared_bytes,
            evicted_word,
            address_slots,
            params: start..self.params.len(),
            issued_epoch: kernel.preempt_offset.map(|base| (base + preempt_params::ISSUED_EPOCH) as usize),
            keeps_progress: keeps,
            stays: !keeps,
            // The program's pointers are not known, so its blocks must not run again.
            may_run_again: false,
        }));
        self.launches.push(Some(LaunchLayout { grid, evicted_word, progress, variant: None }));
        Ok(())
    }

    /// Checks that a fence can enclose the session's memory. Where constants are in the memory of the
    /// tenants, it encloses nothing else.
    fn check_fence(&self, kernel: &KernelFacts) -> Result<(), String> {
        let bytes = self.memory_bytes;
        match (kernel.fence, bytes.is_power_of_two()) {
            (Some(_), true) => Ok(()),
            (None, _) => Err(format!("kernel '{}' has no fence", kernel.name)),
            (_, false) => Err(format!("the session has {bytes} bytes of memory; a fence needs a power of two")),
        }
    }

    fn code_index(&mut self, code: FunctionId) -> u32 {
        let known = self.code.iter().rposition(|known| *known == code);
        known.unwrap_or_else(|| {
            self.code.push(code);
            self.code.len() - 1
        }) as u32
    }

    fn write(&mut self, start: usize, at: u32, bytes: &[u8]) {
        let at = start + at as usize;
        self.params[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn finish(self) -> Parts {
        let Flush { memory_bytes, end, control, inputs, outputs, steps, work, params, relocations, code, .. } = self;
        let layout = InvocationLayout {
            // Rounded up, so that flushes have few sizes and can reuse the memory of earlier ones.
            bytes: end.next_power_of_two().max(FLUSH_BYTES_MIN),
            buffers: Vec::new(),
            state_bytes: memory_bytes,
            arena: Place::default(),
            control: Place { offset: control, bytes: end - control },
            epoch_word: control,
            checks: Place::default(),
            launches: self.launches,
        };
        Parts { layout, inputs, outputs, steps, work, params, relocations, code }
    }
}

#[cfg(test)]
mod tests;
