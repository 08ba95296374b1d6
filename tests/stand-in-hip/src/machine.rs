//! Launches on compute units, workgroup by workgroup.

use crate::space::Space;
use crate::status::Status;
use crate::work::LaunchWork;
use atoll_amd_interp::{Dispatch, Fault, FaultKind, Memory, Options, Program, RunError, Workgroup};
use std::sync::Arc;

/// Number of workgroups that a compute unit holds.
pub(crate) const RESIDENT: u32 = 2;

/// Number of turns that a workgroup gets before the next one runs.
const TURNS: u32 = 16;

/// A launch that has begun.
struct Active {
    stream: u64,
    priority: i32,
    /// The compute units that it may use; all if absent.
    mask: Option<Vec<u32>>,
    dispatch: Dispatch<Arc<Program>>,
    /// Running workgroups, each with its slot: a compute unit has [`RESIDENT`] slots.
    groups: Vec<(usize, Workgroup)>,
}

/// The compute units and their launches. Used by one thread only.
pub(crate) struct Machine {
    memory: Memory,
    units: u32,
    active: Vec<Active>,
    /// Number of launches so far; the seed of the next one.
    begun: u64,
}

/// The end of a launch, or a fault that ends all work.
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

    /// Begins a launch, which must be the next one of its stream.
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
        // The sort is stable, so launches of one priority keep their order.
        self.active.sort_by_key(|active| active.priority);
        Ok(())
    }

    /// Removes code from memory.
    pub(crate) fn forget(&mut self, program: &Program) {
        program.unmap(&mut self.memory);
    }

    /// Ends all running workgroups without their results. Waiting workgroups start as usual.
    /// Returns whether any ran.
    pub(crate) fn reset(&mut self) -> bool {
        let any = self.active.iter().any(|active| !active.groups.is_empty());
        self.active.iter_mut().for_each(|active| active.groups.clear());
        any
    }

    /// Ends all launches.
    pub(crate) fn clear(&mut self) {
        self.active.clear();
    }

    /// Starts workgroups in free places, and runs each for some turns.
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

    /// Starts waiting workgroups, of the most urgent launches first, on each compute unit in turn.
    fn fill(&mut self) {
        let mut used = vec![false; (self.units * RESIDENT) as usize];
        for (slot, _) in self.active.iter().flat_map(|active| &active.groups) {
            used[*slot] = true;
        }
        for active in &mut self.active {
            for _ in 0..RESIDENT {
                for unit in (0..self.units).filter(|unit| allows(active.mask.as_deref(), *unit)) {
                    let mut slots = (unit * RESIDENT) as usize..((unit + 1) * RESIDENT) as usize;
                    let Some(slot) = slots.find(|slot| !used[*slot]) else { continue };
                    let Some(group) = active.dispatch.start(slot) else { break };
                    used[slot] = true;
                    active.groups.push((slot, group));
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

/// The library's error for a fault.
fn status(fault: &Fault) -> Status {
    match fault.kind {
        FaultKind::OutsideBuffers { .. } | FaultKind::ReadOnly { .. } | FaultKind::Misaligned { .. } => {
            Status::IllegalAddress
        }
        _ => Status::LaunchFailure,
    }
}
