//! Launches on compute units, workgroup by workgroup.

use crate::space::Space;
use crate::status::Status;
use crate::work::LaunchWork;
use atoll_amd_interp::{Dispatch, Fault, FaultKind, Memory, Options, Program, RunError, Workgroup};
use std::sync::Arc;

/// Workgroups that a compute unit holds.
pub(crate) const RESIDENT: u32 = 2;

/// Turns that a workgroup gets before the next one goes on.
const TURNS: u32 = 16;

/// A launch that has begun.
struct Active {
    stream: u64,
    priority: i32,
    /// The compute units that it may use; all if absent.
    mask: Option<Vec<u32>>,
    dispatch: Dispatch<Arc<Program>>,
    /// Workgroups with their compute units.
    groups: Vec<(u32, Workgroup)>,
}

/// The compute units, and what runs on them. One thread has it.
pub(crate) struct Machine {
    memory: Memory,
    units: u32,
    active: Vec<Active>,
    /// Number of launches so far: each gets another seed.
    begun: u64,
}

/// How a launch ended, or all work did.
pub(crate) enum Outcome {
    /// The launch of this stream has ended.
    Ended(u64),
    /// A kernel faulted.
    Fault(Status, String),
}

impl Machine {
    pub(crate) fn new(space: Arc<Space>, units: u32) -> Machine {
        Machine { memory: Memory::beside(space), units, active: Vec::new(), begun: 0 }
    }

    pub(crate) fn is_busy(&self) -> bool {
        !self.active.is_empty()
    }

    /// Takes a launch that is the next of its stream.
    pub(crate) fn begin(
        &mut self,
        stream: u64,
        priority: i32,
        mask: Option<Vec<u32>>,
        work: LaunchWork,
    ) -> Result<(), RunError> {
        self.begun += 1;
        let options = Options { limit: u64::MAX, seed: self.begun, ..Options::default() };
        let LaunchWork { program, kernel, launch } = work;
        program.map(&mut self.memory);
        let dispatch = Dispatch::new(vec![program], &kernel, launch, &options)?;
        self.active.push(Active { stream, priority, mask, dispatch, groups: Vec::new() });
        // Stable, so launches of one priority stay in their order.
        self.active.sort_by_key(|active| active.priority);
        Ok(())
    }

    /// Takes code out of memory.
    pub(crate) fn forget(&mut self, program: &Program) {
        program.unmap(&mut self.memory);
    }

    /// Ends all workgroups that run, without their results; those that wait start as usual.
    pub(crate) fn reset(&mut self) {
        self.active.iter_mut().for_each(|active| active.groups.clear());
    }

    /// Starts workgroups on free places, and lets each go on for a while.
    pub(crate) fn round(&mut self) -> Vec<Outcome> {
        self.fill();
        let mut outcomes = Vec::new();
        for active in &mut self.active {
            if let Err(fault) = active.go_on(&mut self.memory) {
                outcomes.push(Outcome::Fault(status(&fault), fault.to_string()));
            }
        }
        if !outcomes.is_empty() {
            self.active.clear();
            return outcomes;
        }
        let is_over = |active: &mut Active| active.groups.is_empty() && active.dispatch.waiting() == 0;
        outcomes.extend(self.active.extract_if(.., is_over).map(|active| Outcome::Ended(active.stream)));
        outcomes
    }

    /// The most urgent launches first: a place on each compute unit in turn.
    fn fill(&mut self) {
        let mut free = vec![RESIDENT; self.units as usize];
        for (unit, _) in self.active.iter().flat_map(|active| &active.groups) {
            free[*unit as usize] -= 1;
        }
        for active in &mut self.active {
            for _ in 0..RESIDENT {
                for unit in (0..self.units).filter(|unit| allows(active.mask.as_deref(), *unit)) {
                    let places = &mut free[unit as usize];
                    if *places == 0 {
                        continue;
                    }
                    let slot = (unit * RESIDENT + *places - 1) as usize;
                    let Some(group) = active.dispatch.start(slot) else { break };
                    *places -= 1;
                    active.groups.push((unit, group));
                }
            }
        }
    }
}

impl Active {
    fn go_on(&mut self, memory: &mut Memory) -> Result<(), Box<Fault>> {
        self.dispatch.attach(memory);
        let Active { groups, dispatch, .. } = self;
        let mut fault = None;
        groups.retain_mut(|(_, group)| {
            for _ in 0..TURNS {
                match dispatch.turn(group, memory) {
                    Ok(false) => {}
                    Ok(true) => return false,
                    Err(error) => {
                        fault = fault.take().or(Some(error));
                        return false;
                    }
                }
            }
            true
        });
        self.dispatch.detach(memory);
        fault.map_or(Ok(()), Err)
    }
}

fn allows(mask: Option<&[u32]>, unit: u32) -> bool {
    mask.is_none_or(|words| words.get(unit as usize / 32).is_some_and(|word| word >> (unit % 32) & 1 == 1))
}

/// The library's error of a fault.
fn status(fault: &Fault) -> Status {
    match fault.kind {
        FaultKind::OutsideBuffers { .. } | FaultKind::ReadOnly { .. } | FaultKind::Misaligned { .. } => {
            Status::IllegalAddress
        }
        _ => Status::LaunchFailure,
    }
}
