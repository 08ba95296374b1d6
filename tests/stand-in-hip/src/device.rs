//! A device: its streams, and the thread that carries out their work.

use crate::machine::{Machine, Outcome};
use crate::options::Options;
use crate::space::Space;
use crate::status::Status;
use crate::work::{Marker, Work};
use atoll_amd_interp::{Program, RunError};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// A device.
pub(crate) struct Device {
    pub(crate) ordinal: u32,
    space: Arc<Space>,
    units: u32,
    aborts: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    /// The error that all calls return after a fault.
    failure: Option<Status>,
    has_thread: bool,
    /// Code that was unloaded and is still in memory.
    forgotten: Vec<Arc<Program>>,
    resets: Resets,
}

/// Resets of running waves.
#[derive(Default)]
struct Resets {
    /// Number of resets that were requested, and that were carried out.
    wanted: u64,
    done: u64,
    /// Whether the next one loses the device if waves run.
    loses: bool,
    /// Whether waves ran at the last one.
    any: bool,
}

struct Stream {
    priority: i32,
    mask: Option<Vec<u32>>,
    waiting: VecDeque<Work>,
    /// Number of operations that were added, and that are complete.
    taken: u64,
    done: u64,
    is_closed: bool,
}

impl Device {
    pub(crate) fn new(ordinal: u32, space: Arc<Space>, options: &Options) -> Device {
        Device {
            ordinal,
            space,
            units: options.compute_units,
            aborts: options.aborts,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// The error that every call returns after a fault.
    pub(crate) fn check(&self) -> Result<(), Status> {
        self.lock().failure.map_or(Ok(()), Err)
    }

    /// Adds a stream.
    pub(crate) fn open(self: &Arc<Device>, handle: u64, priority: i32, mask: Option<Vec<u32>>) -> Result<(), Status> {
        let mut state = self.lock();
        if !state.has_thread {
            let device = self.clone();
            let thread = std::thread::Builder::new().name("stand-in-hip".to_owned());
            thread.spawn(move || device.work()).map_err(|_| Status::OperatingSystem)?;
            state.has_thread = true;
        }
        let stream = Stream { priority, mask, waiting: VecDeque::new(), taken: 0, done: 0, is_closed: false };
        state.streams.insert(handle, stream);
        Ok(())
    }

    /// Accepts no more work for a stream. Its present work still runs.
    pub(crate) fn close(&self, handle: u64) -> Result<(), Status> {
        let mut state = self.lock();
        state.open_stream(handle)?.is_closed = true;
        state.streams.retain(|_, stream| !stream.is_closed || stream.done < stream.taken);
        Ok(())
    }

    /// The mask of a stream; all compute units if it has none.
    pub(crate) fn mask(&self, handle: u64) -> Result<Vec<u32>, Status> {
        let units = self.units;
        let all = || (0..units.div_ceil(32)).map(|word| full_word(units, word)).collect();
        Ok(self.lock().open_stream(handle)?.mask.clone().unwrap_or_else(all))
    }

    /// Adds an operation to a stream.
    pub(crate) fn push(&self, handle: u64, work: Work) -> Result<(), Status> {
        let mut state = self.lock();
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let stream = state.open_stream(handle)?;
        stream.waiting.push_back(work);
        stream.taken += 1;
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    /// Waits until all operations of a stream that were added so far are complete.
    pub(crate) fn synchronize(&self, handle: u64) -> Result<(), Status> {
        let mut state = self.lock();
        let until = state.open_stream(handle)?.taken;
        loop {
            if let Some(failure) = state.failure {
                return Err(failure);
            }
            if state.streams.get(&handle).is_none_or(|stream| stream.done >= until) {
                return Ok(());
            }
            state = self.wait(state);
        }
    }

    /// Waits until all operations that were added so far are complete.
    pub(crate) fn synchronize_all(&self) -> Result<(), Status> {
        let mut state = self.lock();
        let until: Vec<(u64, u64)> = state.streams.iter().map(|(handle, stream)| (*handle, stream.taken)).collect();
        let is_over = |state: &State| {
            until.iter().all(|(handle, taken)| state.streams.get(handle).is_none_or(|stream| stream.done >= *taken))
        };
        while state.failure.is_none() && !is_over(&state) {
            state = self.wait(state);
        }
        state.failure.map_or(Ok(()), Err)
    }

    /// Returns success if all operations of a stream are complete.
    pub(crate) fn query(&self, handle: u64) -> Result<(), Status> {
        let mut state = self.lock();
        if let Some(failure) = state.failure {
            return Err(failure);
        }
        let stream = state.open_stream(handle)?;
        if stream.done == stream.taken { Ok(()) } else { Err(Status::NotReady) }
    }

    /// Waits until the stream has reached the point that `marker` stands for.
    pub(crate) fn wait_for(&self, marker: &Marker) -> Result<(), Status> {
        let mut state = self.lock();
        while marker.at().is_none() {
            if let Some(failure) = state.failure {
                return Err(failure);
            }
            state = self.wait(state);
        }
        Ok(())
    }

    /// Removes code from memory once no work is left that could use it.
    pub(crate) fn forget(&self, program: Arc<Program>) {
        let mut state = self.lock();
        if state.has_thread {
            state.forgotten.push(program);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Ends all workgroups that are running. Returns whether there were any; if so, `loses` says
    /// that the device is lost by it.
    pub(crate) fn reset_waves(&self, loses: bool) -> Result<bool, Status> {
        let mut state = self.lock();
        state.resets.wanted += 1;
        state.resets.loses = loses;
        let wanted = state.resets.wanted;
        self.changed.notify_all();
        while state.has_thread && state.resets.done < wanted && state.failure.is_none() {
            state = self.wait(state);
        }
        let any = state.has_thread && state.resets.any;
        state.failure.map_or(Ok(any), Err)
    }

    /// The loop of the device's thread.
    fn work(&self) {
        let mut machine = Machine::new(self.space.clone(), self.units);
        loop {
            let mut state = self.lock();
            while !self.advance(&mut state, &mut machine) && !machine.is_busy() {
                state = self.wait(state);
            }
            drop(state);
            for outcome in machine.round() {
                self.note(outcome);
            }
        }
    }

    /// Carries out operations that need no compute unit, and passes launches to the machine.
    /// Returns whether there were any.
    fn advance(&self, state: &mut State, machine: &mut Machine) -> bool {
        if state.failure.is_some() {
            return false;
        }
        let mut has_moved = false;
        if state.resets.done < state.resets.wanted {
            state.resets.any = machine.reset();
            state.resets.done = state.resets.wanted;
            if state.resets.any && state.resets.loses {
                log("the GPU is lost: its waves were reset");
                if self.aborts {
                    std::process::abort();
                }
                machine.clear();
                state.lose(Status::LaunchFailure);
            }
            has_moved = true;
        }
        if !machine.is_busy() {
            state.forgotten.drain(..).for_each(|program| machine.forget(&program));
        }
        let mut failed = None;
        for (handle, stream) in &mut state.streams {
            while stream.waiting.front().is_some_and(|work| work.perform(&self.space)) {
                stream.waiting.pop_front();
                stream.done += 1;
                has_moved = true;
            }
            let Some(front) = stream.waiting.front_mut() else { continue };
            if let Work::Launch(_) = front
                && let Work::Launch(work) = std::mem::replace(front, Work::Running)
            {
                has_moved = true;
                if let Err(error) = machine.begin(*handle, stream.priority, stream.mask.clone(), *work) {
                    failed = Some(error);
                }
            }
        }
        if let Some(error) = failed {
            self.fail(state, &error);
        }
        if has_moved {
            state.streams.retain(|_, stream| !stream.is_closed || stream.done < stream.taken);
            self.changed.notify_all();
        }
        has_moved
    }

    fn note(&self, outcome: Outcome) {
        let mut state = self.lock();
        match outcome {
            Outcome::Ended(handle) => {
                if let Some(stream) = state.streams.get_mut(&handle) {
                    stream.waiting.pop_front();
                    stream.done += 1;
                }
            }
            Outcome::Fault(status, why) => {
                log(&why);
                if self.aborts {
                    std::process::abort();
                }
                state.lose(status);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Fails the device: the machine refuses a launch that its call had accepted.
    fn fail(&self, state: &mut State, error: &RunError) {
        log(&error.to_string());
        state.lose(Status::LaunchFailure);
    }
}

impl State {
    fn open_stream(&mut self, handle: u64) -> Result<&mut Stream, Status> {
        self.streams.get_mut(&handle).filter(|stream| !stream.is_closed).ok_or(Status::InvalidHandle)
    }

    fn lose(&mut self, status: Status) {
        self.failure = self.failure.or(Some(status));
        for stream in self.streams.values_mut() {
            stream.waiting.clear();
            stream.done = stream.taken;
        }
    }
}

/// The bits of one word of a mask of all compute units.
fn full_word(units: u32, word: u32) -> u32 {
    match units.saturating_sub(word * 32) {
        32.. => u32::MAX,
        rest => (1 << rest) - 1,
    }
}

/// Writes a message to standard error.
fn log(what: &str) {
    let _ = writeln!(std::io::stderr(), "stand-in HIP runtime: {what}");
}
