//! Linearised influences of divergent branches, and divergent loops.

use super::*;

/// An influence with at least this many instructions gets a jump around it for the case that no
/// lane executes it.
const WORTH_A_JUMP: usize = 6;

impl Emitter<'_> {
    /// Cleared pending masks for some blocks.
    pub(super) fn pending_masks(&mut self, nodes: &[BlockId]) -> Pending {
        let pending: Pending = nodes.iter().map(|&b| (b, self.w.register(MASK))).collect();
        nodes.iter().for_each(|b| self.w.store(&constant(MASK, 0), &pending[b]));
        pending
    }

    /// A divergent branch with a reconvergence point.
    pub(super) fn diverge(
        &mut self,
        context: ContextId,
        block: BlockId,
        yes: (BlockId, &Val),
        no: (BlockId, &Val),
    ) -> Result<(), HostError> {
        let nodes = self.analysis.influence(block);
        let length: usize = nodes.iter().map(|&b| self.program.blocks[b].insts.len() + 1).sum();
        self.flow.linearised += length;
        if length >= WORTH_A_JUMP && self.flow.linearised <= self.flow.most_linearised {
            // If the whole warp agrees, it stays in its context.
            for ((_, lanes), (target, _)) in [(yes, no), (no, yes)] {
                let (agree, part) = (self.w.label("agree"), self.w.label("part"));
                let any = self.any(lanes);
                self.w.br_if(&any, &part, &agree);
                self.w.place(&agree);
                self.goto(context, target);
                self.w.place(&part);
            }
        }
        let pending = self.pending_masks(&nodes);
        for (target, lanes) in [yes, no] {
            if let Some(slot) = pending.get(&target) {
                self.w.store(lanes, slot);
            }
        }
        self.linearised(context, &pending, &nodes, self.analysis.reconvergence[block])
    }

    /// A loop that lanes leave in different iterations, entered at `entry`.
    pub(super) fn divergent_loop(
        &mut self,
        context: ContextId,
        entry: BlockId,
        inside: LoopId,
    ) -> Result<(), HostError> {
        let mut meet = self.analysis.reconvergence[entry];
        while self.analysis.loops.contains(inside, meet) {
            meet = self.analysis.reconvergence[meet];
        }
        let reached = self.analysis.flow.reachable(&[entry], Some(meet));
        let nodes: Vec<BlockId> = (0..reached.len()).filter(|&b| reached[b] && b != EXIT).collect();
        let lanes = self.mask_value();
        let pending = self.pending_masks(&nodes);
        self.w.store(&lanes, &pending[&entry]);
        self.linearised(context, &pending, &nodes, meet)
    }

    /// Runs an influence whose pending masks are set, and continues at `meet` in the context.
    fn linearised(
        &mut self,
        context: ContextId,
        pending: &Pending,
        nodes: &[BlockId],
        meet: BlockId,
    ) -> Result<(), HostError> {
        self.linearise(pending, nodes, &mut HashSet::new())?;
        let leaves = |b: BlockId| {
            self.analysis.exit_side[b].is_some() || self.program.blocks[b].term.successors().contains(&EXIT)
        };
        let loses_lanes = nodes.iter().any(|&b| leaves(b));
        if meet == EXIT {
            self.enter(context);
            let lanes = self.mask_value();
            self.remove_from_live(&lanes);
            self.goto(context, EXIT);
        } else if loses_lanes {
            self.enter(context);
            let live = self.live.clone();
            let live = self.w.load(MASK, &live);
            let mask = self.mask_value();
            let remaining = self.w.bin("and", &mask, &live);
            self.continue_after_influence(context, meet, &remaining);
        } else {
            self.goto(context, meet);
        }
        Ok(())
    }

    /// Continues at `meet`, in the same context if no lane has left the kernel.
    fn continue_after_influence(&mut self, context: ContextId, meet: BlockId, remaining: &Val) {
        let (all, fewer) = (self.w.label("all_back"), self.w.label("fewer"));
        let mask = self.mask_value();
        let lost = self.w.bin("xor", &mask, remaining);
        let any = self.any(&lost);
        self.w.br_if(&any, &fewer, &all);
        self.w.place(&all);
        self.goto(context, meet);
        self.w.place(&fewer);
        self.continue_with(context, meet, remaining);
    }

    /// Emits blocks one after another, each under its pending mask. `cut` holds the heads of the
    /// enclosing loops.
    pub(super) fn linearise(
        &mut self,
        pending: &Pending,
        nodes: &[BlockId],
        cut: &mut HashSet<BlockId>,
    ) -> Result<(), HostError> {
        let components = self.analysis.flow.components(nodes, |_, to| cut.contains(&to));
        for component in components {
            let only = component[0];
            let repeats =
                component.len() > 1 || (self.analysis.flow.succs[only].contains(&only) && !cut.contains(&only));
            if !repeats {
                self.pending_block(pending, only)?;
                continue;
            }
            let inside: HashSet<BlockId> = component.iter().copied().collect();
            let entered = |b: &BlockId| self.analysis.flow.preds[*b].iter().any(|p| !inside.contains(p));
            let entries: Vec<BlockId> = component.iter().copied().filter(entered).collect();
            match entries[..] {
                [entry] if self.stays_together(&inside) => self.nest(pending, inside, entry),
                _ => self.masked_loop(pending, &component, &entries, cut)?,
            }
        }
        Ok(())
    }

    /// Whether all lanes that enter a loop stay together in it.
    fn stays_together(&self, inside: &HashSet<BlockId>) -> bool {
        !inside.iter().any(|&b| {
            self.analysis.split[b] == Split::Divergent
                && self.analysis.exit_side[b].is_none()
                && !inside.contains(&self.analysis.reconvergence[b])
        })
    }

    /// A loop under one mask, as a context of its own.
    fn nest(&mut self, pending: &Pending, blocks: HashSet<BlockId>, entry: BlockId) {
        let mask = self.w.load(MASK, &pending[&entry]);
        self.w.store(&constant(MASK, 0), &pending[&entry]);
        let slot = self.w.register(MASK);
        self.w.store(&mask, &slot);
        let (run, end) = (self.w.label("nest"), self.w.label("nest_end"));
        let any = self.any(&mask);
        self.w.br_if(&any, &run, &end);
        let context = self.flow.contexts.len();
        let nest = Rc::new(Nest { blocks, pending: pending.clone(), end: end.clone() });
        self.flow.contexts.push(Context { mask: MaskSource::Slot(slot), region: 0, live: context, nest: Some(nest) });
        self.w.place(&run);
        let label = self.copy_label(context, entry);
        self.w.br(&label);
        self.w.place(&end);
    }

    /// A loop that repeats while a lane is pending at its head: the first of its entries.
    fn masked_loop(
        &mut self,
        pending: &Pending,
        component: &[BlockId],
        entries: &[BlockId],
        cut: &mut HashSet<BlockId>,
    ) -> Result<(), HostError> {
        let first = |b: &&BlockId| self.flow.place[**b];
        let head = *entries.iter().min_by_key(first).unwrap_or(&component[0]);
        if cut.len() >= MAX_NESTED {
            return Err(self.too_deep(head, "nested loops that lanes leave in different iterations"));
        }
        let (again, out) = (self.w.label("masked_loop"), self.w.label("masked_out"));
        self.w.place(&again);
        cut.insert(head);
        self.linearise(pending, component, cut)?;
        cut.remove(&head);
        let mask = self.w.load(MASK, &pending[&head]);
        let any = self.any(&mask);
        self.w.br_if(&any, &again, &out);
        self.w.place(&out);
        Ok(())
    }

    pub(super) fn too_deep(&self, block: BlockId, what: &str) -> HostError {
        let (line, what) = (self.program.blocks[block].line, format!("more than {MAX_NESTED} {what}"));
        LowerError::Unsupported { target: TARGET, kernel: self.program.name.clone(), line, what }.into()
    }

    /// One block of a linearised influence.
    fn pending_block(&mut self, pending: &Pending, block: BlockId) -> Result<(), HostError> {
        let slot = &pending[&block];
        let mask = self.w.load(MASK, slot);
        self.w.store(&constant(MASK, 0), slot);
        let skip = self.w.label("skip");
        let meets = matches!(self.program.blocks[block].term, Term::Barrier { .. });
        if meets || !self.program.blocks[block].insts.is_empty() || self.analysis.spins.contains(&block) {
            let run = self.w.label("pending");
            let any = self.any(&mask);
            self.w.br_if(&any, &run, &skip);
            self.w.place(&run);
        }
        self.mask = Some(mask.clone());
        self.instructions(block)?;
        self.mask = Some(mask.clone());
        match self.program.blocks[block].term.clone() {
            Term::Goto(next) => self.add_pending(pending, next, &mask),
            Term::Branch { pred, negated, taken, other } => {
                let (yes, no) = self.split_lanes((pred, negated));
                for (target, lanes) in [(taken, yes), (other, no)] {
                    match self.analysis.exit_side[block] {
                        Some(side) if side == target && side != EXIT => self.exit_if_any(side, &lanes)?,
                        _ => self.add_pending(pending, target, &lanes),
                    }
                }
            }
            Term::Barrier { next, participants, reduce } if self.analysis.scheduled => {
                self.barrier(&participants, reduce.as_ref(), self.program.blocks[block].line);
                self.add_pending(pending, next, &mask);
            }
            Term::Barrier { .. } | Term::Exit => {
                return Err(LowerError::Malformed {
                    kernel: self.program.name.clone(),
                    line: self.program.blocks[block].line,
                    reason: "internal error: the analysis missed a barrier under a mask".into(),
                }
                .into());
            }
        }
        self.w.place(&skip);
        Ok(())
    }

    /// Moves lanes to a block of the influence, to the exit, or to the reconvergence point.
    fn add_pending(&mut self, pending: &Pending, target: BlockId, lanes: &Val) {
        if target == EXIT {
            self.remove_from_live(lanes);
        } else if let Some(slot) = pending.get(&target) {
            self.add_to_mask(slot, lanes);
        }
    }
}
