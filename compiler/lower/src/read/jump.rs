//! Indexed branches, and barriers.

use super::*;

/// Longest table that is searched linearly; longer ones use binary search.
const SHORT_TABLE: usize = 4;

impl<'m> Reader<'m> {
    /// `brx.idx`: becomes comparisons, because the switch tables that compilers emit in PTX are
    /// short. PTX does not define the result of an index beyond the table; this crate takes the
    /// last target.
    pub(super) fn branch_by_index(
        &mut self,
        instruction: &Instruction,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        let (Some(index), Some(Operand::Name(table))) = (instruction.operands.first(), instruction.operands.get(1))
        else {
            return Err(self.malformed(line, "`brx.idx` needs an index and a table"));
        };
        let index = self.operand(index, line)?;
        let Some(Table::Labels(targets)) = self.table(table) else {
            return Err(self.malformed(line, format!("`{table}` is not a table of labels")));
        };
        let targets = targets.iter().map(|t| self.label_block(t, line)).collect::<Result<Vec<_>, _>>()?;
        let past = self.under_guard(guard, line)?;
        self.search(&index, 0, &targets, line)?;
        if let Some(past) = past {
            self.start(past);
        }
        Ok(())
    }

    /// Branches to a new block where a guard holds; returns the block for threads that fail it.
    pub(super) fn under_guard(&mut self, guard: Option<(Reg, bool)>, line: u32) -> Result<Option<BlockId>, LowerError> {
        let Some((pred, negated)) = guard else { return Ok(None) };
        let (holds, past) = (self.new_block()?, self.new_block()?);
        self.end(Term::Branch { pred, negated, taken: holds, other: past }, line);
        self.start(holds);
        Ok(Some(past))
    }

    /// Ends the block with a jump to `targets[index - first]`.
    fn search(&mut self, index: &Opnd, first: usize, targets: &[BlockId], line: u32) -> Result<(), LowerError> {
        match targets {
            [] => self.end(Term::Goto(EXIT), line),
            [only] => self.end(Term::Goto(*only), line),
            [target, rest @ ..] if rest.iter().all(|t| t == target) => self.end(Term::Goto(*target), line),
            [target, rest @ ..] if targets.len() <= SHORT_TABLE => {
                let pred = self.compare_index("setp.eq.u32", index, first, line);
                self.jump(Some((pred, false)), *target, line)?;
                self.search(index, first + 1, rest, line)?;
            }
            _ => {
                let (low, high) = targets.split_at(targets.len() / 2);
                let pred = self.compare_index("setp.lt.u32", index, first + low.len(), line);
                let (below, above) = (self.new_block()?, self.new_block()?);
                self.end(Term::Branch { pred, negated: false, taken: below, other: above }, line);
                self.start(below);
                self.search(index, first, low, line)?;
                self.start(above);
                self.search(index, first + low.len(), high, line)?;
            }
        }
        Ok(())
    }

    fn compare_index(&mut self, dotted: &str, index: &Opnd, number: usize, line: u32) -> Reg {
        let pred = self.new_register("%brx", Elem::I1);
        self.emit(dotted, None, vec![Opnd::Reg(pred), index.clone(), Opnd::Imm(Immediate::Int(number as i128))], line);
        pred
    }

    /// `bar` and `barrier` in a block of several warps end the basic block.
    pub(super) fn barrier(
        &mut self,
        instruction: &Instruction,
        guard: Option<(Reg, bool)>,
        line: u32,
    ) -> Result<(), LowerError> {
        if instruction.has("cluster") {
            return Err(self.unsupported(line, format!("`{}`", instruction.dotted())));
        }
        let past = self.under_guard(guard, line)?;
        let operands = instruction.operands.iter().map(|o| self.operand(o, line)).collect::<Result<Vec<_>, _>>()?;
        let (reduce, place) = if instruction.has("red") {
            let (Some(dst), Some(source)) = (operands.first(), operands.last()) else {
                return Err(self.malformed(line, "`bar.red` needs a destination and a predicate"));
            };
            (Some(self.reduction(instruction, dst, source, line)?), operands.get(1..operands.len() - 1).unwrap_or(&[]))
        } else {
            (None, operands.as_slice())
        };
        let number = place.first().cloned().unwrap_or(Opnd::Imm(Immediate::Int(0)));
        let participants =
            Participants { number, threads: place.get(1).cloned(), only_arrives: instruction.has("arrive") };
        if participants.only_arrives && participants.threads.is_none() {
            return Err(self.malformed(line, "`bar.arrive` needs a count of threads"));
        }
        let after = self.new_block()?;
        self.end(Term::Barrier { next: after, participants, reduce }, line);
        self.start(after);
        if let Some(past) = past {
            self.end(Term::Goto(past), line);
            self.start(past);
        }
        Ok(())
    }

    fn reduction(&self, instruction: &Instruction, dst: &Opnd, source: &Opnd, line: u32) -> Result<Reduce, LowerError> {
        let op = match instruction.modifiers.iter().find_map(|m| match m.as_str() {
            "popc" => Some(ReduceOp::Popc),
            "and" => Some(ReduceOp::And),
            "or" => Some(ReduceOp::Or),
            _ => None,
        }) {
            Some(op) => op,
            None => return Err(self.malformed(line, "`bar.red` without .popc, .and or .or")),
        };
        let Opnd::Reg(dst) = *dst else { return Err(self.malformed(line, "`bar.red` must write a register")) };
        match *source {
            Opnd::Reg(source) => Ok(Reduce { op, dst, source, negated: false }),
            Opnd::Not(source) => Ok(Reduce { op, dst, source, negated: true }),
            _ => Err(self.malformed(line, "`bar.red` must read a predicate")),
        }
    }
}
