//! Divides a kernel into regions and lays out the records of its warps.

use super::*;
use atoll_lower::TooLarge;
use atoll_lower::analysis::Split;
use atoll_lower::live::Live;
use atoll_lower::program::ENTRY;
use atoll_lower::shape::Level;

impl Regions {
    pub(in crate::emit) fn plan(program: &Program, analysis: &Analysis) -> Result<Regions, TooLarge> {
        let graph = atoll_lower::graph::Graph::new(program.successors());
        let live = Live::of(program, &graph)?;
        let mut starts = vec![(ENTRY, None)];
        // If every warp has its own stack, barriers do not divide the code into regions.
        for (id, block) in program.blocks.iter().enumerate().filter(|_| !analysis.scheduled) {
            if let Term::Barrier { next, .. } = block.term {
                starts.push((next, Some(id)));
            }
        }
        let list: Vec<Region> =
            starts.into_iter().map(|(entry, barrier)| Region::new(program, entry, barrier, &live)).collect();
        let needs_record = |reg: &Reg| list.iter().skip(1).any(|r| r.live[*reg]) && !is_block_wide(analysis, *reg);
        let (mut record, mut at) = (HashMap::new(), 4u32);
        for reg in (0..program.regs.len()).filter(needs_record) {
            let (bytes, align) = record_size(program, analysis, reg);
            at = at.next_multiple_of(align);
            record.insert(reg, at);
            at += bytes;
        }
        let warps = analysis.block.warps();
        let leaves =
            (0..program.blocks.len()).any(|b| analysis.split[b] == Split::Divergent && analysis.exit_side[b].is_some());
        Ok(Regions {
            list,
            record,
            record_bytes: at.next_multiple_of(RECORD_ALIGN),
            local_bytes: (program.local_bytes * warps * LANES).next_multiple_of(RECORD_ALIGN),
            warps,
            partial: leaves || !analysis.block.is_full(),
            frame_bytes: if analysis.scheduled { fibers::FRAME_BYTES } else { 0 },
            state: Vec::new(),
            next: None,
        })
    }

    /// Bytes of scratch memory per compute unit.
    pub(in crate::emit) fn scratch_bytes(&self) -> u32 {
        let records = if self.list.len() > 1 { self.record_bytes * self.warps } else { 0 };
        self.local_bytes + self.frame_bytes + records
    }

    /// Bytes of local memory of the whole block.
    pub(in crate::emit) fn local_bytes(&self) -> u32 {
        self.local_bytes
    }
}

impl Region {
    fn new(program: &Program, entry: BlockId, barrier: Option<BlockId>, live: &Live) -> Region {
        let mut seen = vec![false; program.blocks.len()];
        let mut writes = vec![false; program.regs.len()];
        let mut stops = Vec::new();
        // The result of the barrier in front is written at the start of the region.
        if let Some(Term::Barrier { reduce: Some(reduce), .. }) = barrier.map(|id| &program.blocks[id].term) {
            writes[reduce.dst] = true;
        }
        let mut work = vec![entry];
        while let Some(id) = work.pop() {
            if std::mem::replace(&mut seen[id], true) {
                continue;
            }
            let block = &program.blocks[id];
            block.insts.iter().flat_map(Inst::defs).for_each(|r| writes[r] = true);
            match &block.term {
                Term::Barrier { .. } => stops.push(id),
                term => work.extend(term.successors()),
            }
        }
        let live = (0..program.regs.len()).map(|reg| live.contains(entry, reg)).collect();
        Region { entry, barrier, live, writes, stops }
    }
}

pub(super) fn is_block_wide(analysis: &Analysis, reg: Reg) -> bool {
    let shape = analysis.shapes[reg];
    shape.is_scalar() && shape.level == Level::Block
}

/// Bytes and alignment of a register in a record; a mask is stored as 32 bits.
fn record_size(program: &Program, analysis: &Analysis, reg: Reg) -> (u32, u32) {
    let bytes = program.regs[reg].elem.bytes();
    match (analysis.shapes[reg].is_scalar(), program.regs[reg].elem) {
        (true, _) => (bytes, bytes),
        (false, Elem::I1) => (4, 4),
        (false, _) => (bytes * LANES, RECORD_ALIGN),
    }
}
