//! Control flow of one warp within a region.
//!
//! Vocabulary. A *context* is a copy of some blocks under one kind of mask: all lanes (`Full`), the
//! live lanes (`Live`), or a mask of its own (`Slot`). Within a context blocks are copied one to
//! one, and uniform branches stay branches. The influence of a divergent branch is *linearised*:
//! its blocks are placed one after another in topological order, each under its own pending mask.
//! Loops repeat while a lane is pending at their head. At the reconvergence point control returns
//! to the context. If all lanes agree on a divergent branch at run time, control stays in the
//! context. The full warps of a kernel with a tail guard therefore run the copy without masks.
//!
//! Registers are kept in stack slots, so a copy of a block can be entered from anywhere at the same
//! program point.

mod linearise;

use super::*;
use atoll_lower::analysis::Split;
use atoll_lower::loops::LoopId;
use atoll_lower::program::{BlockId, ENTRY, EXIT, Term};
use std::collections::HashSet;
use std::rc::Rc;

/// Limits on the instructions of linearised influences: per instruction of the kernel, and a
/// minimum. Beyond them no copy is made for warps whose lanes agree.
const MAX_LINEARISED: usize = 8;
const MIN_LINEARISED: usize = 2000;

/// Limit on the nesting of loops that lanes leave in different iterations, and of exits that follow
/// other exits. Emitting them recurses, and each needs its own copy or mask.
const MAX_NESTED: usize = 256;

/// A context.
pub(super) type ContextId = usize;

/// The lanes that run in a context.
#[derive(Clone, Debug)]
enum MaskSource {
    /// All 32 lanes, known at compile time.
    Full,
    /// The lanes that have not left the kernel.
    Live,
    /// The lanes in a stack slot.
    Slot(Val),
}

/// A copy of blocks under one kind of mask.
#[derive(Clone, Debug)]
struct Context {
    mask: MaskSource,
    /// The region it belongs to.
    region: usize,
    /// The context for the remaining lanes of the same region, after some have left.
    live: ContextId,
    /// For a loop nested in a linearised influence: its blocks, and the destinations of lanes that
    /// leave it.
    nest: Option<Rc<Nest>>,
}

#[derive(Debug)]
struct Nest {
    blocks: HashSet<BlockId>,
    pending: Pending,
    end: Label,
}

/// Pending masks of the blocks of a linearised influence.
pub(super) type Pending = HashMap<BlockId, Val>;

/// The copies made so far.
#[derive(Debug, Default)]
pub(super) struct Flow {
    contexts: Vec<Context>,
    labels: HashMap<(ContextId, BlockId), Label>,
    queue: Vec<(ContextId, BlockId)>,
    /// Position of each block in reverse postorder; unreachable blocks come first.
    place: Vec<Option<usize>>,
    /// Number of exits that the current code follows.
    exits: usize,
    /// Instructions of influences emitted so far, each counted every time it is emitted.
    linearised: usize,
    /// Limit on `linearised`, beyond which warps whose lanes agree no longer stay in their context.
    /// Influences nest, and the code that follows in the context is emitted again with all its
    /// influences: for a chain of branches with a common end, as often as the chain is long.
    most_linearised: usize,
}

impl Flow {
    pub(super) fn new(program: &Program, analysis: &Analysis) -> Flow {
        let instructions: usize = program.blocks.iter().map(|block| block.insts.len() + 1).sum();
        let mut place = vec![None; program.blocks.len()];
        let order = analysis.flow.reverse_postorder(ENTRY);
        order.into_iter().enumerate().for_each(|(at, block)| place[block] = Some(at));
        Flow { place, most_linearised: MAX_LINEARISED * instructions + MIN_LINEARISED, ..Flow::default() }
    }
}

impl Emitter<'_> {
    /// The contexts of a region: for all lanes, and for the live lanes.
    pub(super) fn region_contexts(&mut self, region: usize) -> (ContextId, ContextId) {
        let first = self.flow.contexts.len();
        for mask in [MaskSource::Full, MaskSource::Live] {
            self.flow.contexts.push(Context { mask, region, live: first + 1, nest: None });
        }
        (first, first + 1)
    }

    /// The label of a block's copy; the copy is emitted when the queue reaches it.
    pub(super) fn copy_label(&mut self, context: ContextId, block: BlockId) -> Label {
        if let Some(label) = self.flow.labels.get(&(context, block)) {
            return label.clone();
        }
        let label = self.w.label(&format!("c{context}.b{block}"));
        self.flow.labels.insert((context, block), label.clone());
        self.flow.queue.push((context, block));
        label
    }

    /// Emits all copies in the queue.
    pub(super) fn run_queue(&mut self) -> Result<(), HostError> {
        while let Some((context, block)) = self.flow.queue.pop() {
            let label = self.flow.labels[&(context, block)].clone();
            self.w.place(&label);
            // What precedes the block's instructions, such as a poll, must not keep the line of the
            // block that was emitted before.
            self.w.lines.locate(self.first_line(block), None);
            self.enter(context);
            match self.analysis.divergent_loops.get(&block) {
                Some(&inside) if self.runs_around(context, inside) => self.divergent_loop(context, block, inside)?,
                _ => {
                    self.instructions(block)?;
                    self.terminator(context, block)?;
                }
            }
        }
        Ok(())
    }

    /// The line of a block's first instruction.
    fn first_line(&self, block: BlockId) -> u32 {
        let block = &self.program.blocks[block];
        block.insts.first().map_or(block.line, |inst| inst.line)
    }

    /// Whether a loop is a part of what a context runs: always, unless the context is a nest that
    /// is the loop itself or does not contain it.
    fn runs_around(&self, context: ContextId, inside: LoopId) -> bool {
        let blocks = self.analysis.loops.blocks(inside);
        let nest = self.flow.contexts[context].nest.as_ref();
        nest.is_none_or(|n| blocks.len() < n.blocks.len() && blocks.iter().all(|b| n.blocks.contains(b)))
    }

    /// Makes the context's mask current.
    fn enter(&mut self, context: ContextId) {
        self.mask = match self.flow.contexts[context].mask.clone() {
            MaskSource::Full => None,
            MaskSource::Live => {
                let live = self.live.clone();
                Some(self.w.load(MASK, &live))
            }
            MaskSource::Slot(slot) => Some(self.w.load(MASK, &slot)),
        };
    }

    fn instructions(&mut self, block: BlockId) -> Result<(), HostError> {
        let program = self.program;
        if self.analysis.spins.contains(&block) {
            self.yield_while_spinning(self.first_line(block));
        }
        for inst in &program.blocks[block].insts {
            self.instruction(inst)?;
        }
        // Instructions emitted from here on belong to the terminator.
        self.w.lines.locate(program.blocks[block].line, None);
        Ok(())
    }

    /// Emits the terminator of a copied block.
    fn terminator(&mut self, context: ContextId, block: BlockId) -> Result<(), HostError> {
        match self.program.blocks[block].term.clone() {
            Term::Goto(next) => self.goto(context, next),
            Term::Branch { pred, negated, taken, other } => match self.analysis.split[block] {
                Split::Divergent => self.divergent_branch(context, block, (pred, negated), (taken, other))?,
                _ => {
                    let (yes, no) = (self.w.label("taken"), self.w.label("other"));
                    let holds = self.read(pred, 1);
                    let (first, second) = if negated { (&no, &yes) } else { (&yes, &no) };
                    self.w.br_if(&holds, first, second);
                    self.w.place(&yes);
                    self.goto(context, taken);
                    self.w.place(&no);
                    self.goto(context, other);
                }
            },
            Term::Barrier { next, participants, reduce } if self.analysis.scheduled => {
                self.barrier(&participants, reduce.as_ref(), self.program.blocks[block].line);
                self.goto(context, next);
            }
            Term::Barrier { next, reduce, .. } => {
                let region = self.flow.contexts[context].region;
                self.stop(region, block, next, reduce.as_ref());
            }
            Term::Exit => self.goto(context, EXIT),
        }
        Ok(())
    }

    /// Jumps to a block within a context, or out of it.
    fn goto(&mut self, context: ContextId, target: BlockId) {
        let found = self.flow.contexts[context].clone();
        match found.nest {
            _ if target == EXIT => self.exit_lanes(&found),
            Some(nest) if !nest.blocks.contains(&target) => {
                if let (Some(slot), MaskSource::Slot(mask)) = (nest.pending.get(&target), &found.mask) {
                    let mask = self.w.load(MASK, mask);
                    self.add_to_mask(slot, &mask);
                }
                self.w.br(&nest.end);
            }
            _ => {
                let label = self.copy_label(context, target);
                self.w.br(&label);
            }
        }
    }

    /// The lanes of a context leave the kernel.
    fn exit_lanes(&mut self, context: &Context) {
        match (&context.nest, &context.mask) {
            (Some(nest), MaskSource::Slot(slot)) => {
                let lanes = self.w.load(MASK, slot);
                self.remove_from_live(&lanes);
                let end = nest.end.clone();
                self.w.br(&end);
            }
            _ => {
                let live = self.live.clone();
                self.w.store(&constant(MASK, 0), &live);
                self.warp_done(context.region);
            }
        }
    }

    fn add_to_mask(&mut self, slot: &Val, lanes: &Val) {
        let old = self.w.load(MASK, slot);
        let new = self.w.bin("or", &old, lanes);
        self.w.store(&new, slot);
    }

    fn remove_from_live(&mut self, lanes: &Val) {
        let slot = self.live.clone();
        let live = self.w.load(MASK, &slot);
        let others = self.not(lanes);
        let rest = self.w.bin("and", &live, &others);
        self.w.store(&rest, &slot);
    }

    pub(super) fn not(&mut self, mask: &Val) -> Val {
        self.w.bin_const("xor", mask, 1)
    }

    /// Whether any lane of a mask is set.
    pub(super) fn any(&mut self, mask: &Val) -> Val {
        let bits = self.mask_bits(mask);
        self.w.compare("icmp ne", &bits, &constant(I32, 0))
    }

    /// A mask as a 32-bit integer; lane 0 is the lowest bit.
    pub(super) fn mask_bits(&mut self, mask: &Val) -> Val {
        self.w.value(I32, format_args!("bitcast {mask} to i32"))
    }

    /// The current mask, with all lanes set if it is full.
    pub(super) fn mask_value(&mut self) -> Val {
        self.mask.clone().unwrap_or_else(|| constant(MASK, 1))
    }

    /// The lanes of the current mask for which a predicate holds, and those for which it does not.
    fn split_lanes(&mut self, (pred, negated): (Reg, bool)) -> (Val, Val) {
        let holds = self.read(pred, LANES);
        let fails = self.not(&holds);
        let (yes, no) = if negated { (fails, holds) } else { (holds, fails) };
        match self.mask.clone() {
            None => (yes, no),
            Some(mask) => (self.w.bin("and", &mask, &yes), self.w.bin("and", &mask, &no)),
        }
    }

    fn divergent_branch(
        &mut self,
        context: ContextId,
        block: BlockId,
        pred: (Reg, bool),
        (taken, other): (BlockId, BlockId),
    ) -> Result<(), HostError> {
        let (yes, no) = self.split_lanes(pred);
        match self.analysis.exit_side[block] {
            Some(side) if side == taken => self.exit_edge(context, side, other, &yes, &no),
            Some(side) => self.exit_edge(context, side, taken, &no, &yes),
            None => self.diverge(context, block, (taken, &yes), (other, &no)),
        }
    }

    /// Runs the lanes in `leaving` to the end of the kernel at once; the other lanes continue at
    /// `next`.
    fn exit_edge(
        &mut self,
        context: ContextId,
        side: BlockId,
        next: BlockId,
        leaving: &Val,
        staying: &Val,
    ) -> Result<(), HostError> {
        let (some, none) = (self.w.label("leave"), self.w.label("stay"));
        let any = self.any(leaving);
        self.w.br_if(&any, &some, &none);
        self.w.place(&none);
        self.goto(context, next);
        self.w.place(&some);
        if side != EXIT {
            self.run_to_exit(side, leaving)?;
        }
        self.remove_from_live(leaving);
        self.continue_with(context, next, staying);
        Ok(())
    }

    /// Continues at `next` with the remaining lanes, if there are any.
    fn continue_with(&mut self, context: ContextId, next: BlockId, remaining: &Val) {
        let found = self.flow.contexts[context].clone();
        if let MaskSource::Slot(slot) = &found.mask {
            self.w.store(remaining, slot);
        }
        let (rest, gone) = (self.w.label("rest"), self.w.label("gone"));
        let any = self.any(remaining);
        self.w.br_if(&any, &rest, &gone);
        self.w.place(&gone);
        self.goto(context, EXIT);
        self.w.place(&rest);
        let context = if matches!(found.mask, MaskSource::Full) { found.live } else { context };
        self.goto(context, next);
    }

    /// If `lanes`, of a linearised influence, is not empty, runs them from `side` to their end.
    fn exit_if_any(&mut self, side: BlockId, lanes: &Val) -> Result<(), HostError> {
        let (some, none) = (self.w.label("leave"), self.w.label("left"));
        let any = self.any(lanes);
        self.w.br_if(&any, &some, &none);
        self.w.place(&some);
        self.run_to_exit(side, lanes)?;
        self.remove_from_live(lanes);
        self.w.place(&none);
        Ok(())
    }

    /// Runs all code from `side` to the exit for some lanes, and restores the state that the other
    /// lanes still need.
    fn run_to_exit(&mut self, side: BlockId, lanes: &Val) -> Result<(), HostError> {
        if self.flow.exits >= MAX_NESTED {
            return Err(self.too_deep(side, "nested divergent exits"));
        }
        let reached = self.analysis.flow.reachable(&[side], None);
        let nodes: Vec<BlockId> = (0..reached.len()).filter(|&b| reached[b] && b != EXIT).collect();
        let mut written: Vec<Reg> =
            nodes.iter().flat_map(|&b| self.program.blocks[b].insts.iter().flat_map(Inst::defs)).collect();
        written.sort_unstable();
        written.dedup();
        let saved: Vec<(Reg, Val)> = written.into_iter().map(|r| (r, self.load_slot(r))).collect();
        let pending = self.pending_masks(&nodes);
        self.w.store(lanes, &pending[&side]);
        self.flow.exits += 1;
        self.linearise(&pending, &nodes, &mut HashSet::new())?;
        self.flow.exits -= 1;
        for (reg, value) in saved {
            let slot = self.slots[reg].clone();
            self.w.store(&value, &slot);
        }
        Ok(())
    }

    /// Loads the slot of a register without conversion.
    pub(super) fn load_slot(&mut self, reg: Reg) -> Val {
        let lanes = if self.analysis.shapes[reg].is_scalar() { 1 } else { LANES };
        let slot = self.slots[reg].clone();
        self.w.load(Ty { elem: self.program.regs[reg].elem, lanes }, &slot)
    }
}
