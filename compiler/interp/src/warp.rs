//! Instructions that the lanes of a warp execute together, once all members have arrived.

use crate::block::{BlockRun, State};
use crate::fault::FaultKind;
use crate::lanes::{Lanes, WARP};
use crate::memory::Memory;
use crate::op::Op;
use crate::warp_op::{Redux, Shuffle, Vote, WarpKind, WarpOp};

impl BlockRun<'_> {
    fn warp_op(&self, thread: usize) -> Option<&WarpOp> {
        let t = &self.threads[thread];
        let code: &Op = &self.program.functions[t.function as usize].code.get(t.at as usize)?.op;
        match code {
            Op::Warp(op) => Some(op),
            _ => None,
        }
    }

    /// Executes the warp instruction of a thread if all its members have arrived.
    pub(crate) fn meet(&mut self, memory: &mut Memory, thread: usize) -> Result<(), FaultKind> {
        let Some(op) = self.warp_op(thread) else { return Ok(()) };
        let lanes = self.lanes_of(thread / WARP);
        let first = lanes.start;
        let live =
            lanes.filter(|t| self.threads[*t].state != State::Exited).fold(0u32, |mask, t| mask | 1 << (t - first));
        let mask = op.mask.map_or(live, |m| self.value(thread, m) as u32);
        if mask >> (thread - first) & 1 == 0 {
            return Err(FaultKind::Operand(format!(
                "the member mask {mask:#010x} does not include the executing lane"
            )));
        }
        let members: Vec<usize> =
            (0..WARP).filter(|lane| mask & live & 1 << lane != 0).map(|lane| first + lane).collect();
        if !members.iter().all(|t| self.has_met(thread, *t, op.mask.is_some().then_some(mask))) {
            return Ok(());
        }
        let program = self.program;
        let t = &self.threads[thread];
        let Op::Warp(op) = &program.functions[t.function as usize].code[t.at as usize].op else { return Ok(()) };
        self.together(memory, op, mask, &members)?;
        for member in members {
            let t = &mut self.threads[member];
            (t.state, t.at) = (State::Ready, t.at + 1);
        }
        Ok(())
    }

    /// Whether another member waits at the same instruction. Warp barriers also match at different
    /// instructions.
    fn has_met(&self, thread: usize, other: usize, mask: Option<u32>) -> bool {
        let (a, b) = (&self.threads[thread], &self.threads[other]);
        let (Some(op), Some(other_op)) = (self.warp_op(thread), self.warp_op(other)) else { return false };
        let same_place = (a.function, a.at, a.frames.len()) == (b.function, b.at, b.frames.len());
        let both_barriers = op.kind == WarpKind::Barrier && other_op.kind == WarpKind::Barrier;
        let same_mask = || other_op.mask.map(|m| self.value(other, m) as u32) == mask;
        b.state == State::AtWarp && (same_place || both_barriers) && same_mask()
    }

    fn together(&mut self, memory: &mut Memory, op: &WarpOp, mask: u32, members: &[usize]) -> Result<(), FaultKind> {
        let mut lanes: Lanes = [const { None }; WARP];
        for &member in members {
            let address = op.addr.iter().map(|a| self.address(member, a));
            lanes[member % WARP] = Some(address.chain(op.src.iter().map(|s| self.value(member, *s))).collect());
        }
        let results = match op.kind {
            WarpKind::Barrier => return Ok(()),
            WarpKind::Shuffle(shuffle) => each(&lanes, |lane, values| shuffled(shuffle, lane, values, &lanes)),
            WarpKind::Vote(vote) => each(&lanes, |_, _| vec![voted(vote, &lanes)]),
            WarpKind::Match { all } => each(&lanes, |_, values| matched(all, values[0], mask, &lanes)),
            WarpKind::Redux(redux, signed) => each(&lanes, |_, _| vec![reduced(redux, signed, &lanes)]),
            WarpKind::Elect => {
                let leader = lanes.iter().position(Option::is_some).unwrap_or(0);
                each(&lanes, |lane, _| vec![leader as u64, u64::from(lane == leader)])
            }
            WarpKind::Product(product) => product.multiply(&lanes),
            WarpKind::Transpose => crate::matrix::transpose(&lanes),
            WarpKind::LoadMatrices { .. }
            | WarpKind::StoreMatrices { .. }
            | WarpKind::LoadFragment(_)
            | WarpKind::StoreFragment(_) => self.move_fragments(memory, op, &lanes, members)?,
        };
        for &member in members {
            if let Some(values) = &results[member % WARP] {
                for (register, value) in op.dst.iter().zip(values) {
                    self.set(member, *register, *value);
                }
            }
        }
        Ok(())
    }
}

fn each(lanes: &Lanes, f: impl Fn(usize, &[u64]) -> Vec<u64>) -> Lanes {
    std::array::from_fn(|lane| lanes[lane].as_ref().map(|values| f(lane, values)))
}

/// The first value of every participating lane.
fn firsts(lanes: &Lanes) -> impl Iterator<Item = u64> + '_ {
    lanes.iter().flatten().filter_map(|values| values.first().copied())
}

/// `shfl`: the sources are the value, the lane or distance, and a word with the clamp in its low
/// byte and the segment mask in its second byte. If the source lane does not take part, the reader
/// gets its own value.
fn shuffled(shuffle: Shuffle, lane: usize, values: &[u64], lanes: &Lanes) -> Vec<u64> {
    let lane = lane as i64;
    let (by, clamp, segment) = ((values[1] & 31) as i64, (values[2] & 31) as i64, (values[2] >> 8 & 31) as i64);
    let most = (lane & segment) | (clamp & !segment);
    let least = lane & segment;
    let (source, inside) = match shuffle {
        Shuffle::Up => (lane - by, lane - by >= most),
        Shuffle::Down => (lane + by, lane + by <= most),
        Shuffle::Butterfly => (lane ^ by, lane ^ by <= most),
        Shuffle::Index => (least | (by & !segment), (least | (by & !segment)) <= most),
    };
    let source = if inside { source as usize } else { lane as usize };
    let value = lanes.get(source).and_then(Option::as_ref).map_or(values[0], |v| v[0]);
    vec![value, inside.into()]
}

fn voted(vote: Vote, lanes: &Lanes) -> u64 {
    let all = firsts(lanes).all(|v| v != 0);
    let any = firsts(lanes).any(|v| v != 0);
    match vote {
        Vote::All => all.into(),
        Vote::Any => any.into(),
        Vote::Uniform => u64::from(all || !any),
        Vote::Ballot => lanes_where(lanes, |v| v != 0),
    }
}

fn lanes_where(lanes: &Lanes, test: impl Fn(u64) -> bool) -> u64 {
    let is_one = |values: &Option<Vec<u64>>| values.as_ref().is_some_and(|v| test(v[0]));
    lanes.iter().enumerate().filter(|(_, values)| is_one(values)).fold(0, |mask, (lane, _)| mask | 1 << lane)
}

fn matched(all: bool, value: u64, mask: u32, lanes: &Lanes) -> Vec<u64> {
    if !all {
        return vec![lanes_where(lanes, |v| v == value)];
    }
    let same = firsts(lanes).all(|v| v == value);
    vec![if same { mask.into() } else { 0 }, same.into()]
}

fn reduced(redux: Redux, signed: bool, lanes: &Lanes) -> u64 {
    let number = |v: u64| if signed { i64::from(v as i32) } else { i64::from(v as u32) };
    let folded = firsts(lanes).map(number).reduce(|a, b| match redux {
        Redux::Add => a.wrapping_add(b),
        Redux::Min => a.min(b),
        Redux::Max => a.max(b),
        Redux::And => a & b,
        Redux::Or => a | b,
        Redux::Xor => a ^ b,
    });
    folded.unwrap_or(0) as u64
}
