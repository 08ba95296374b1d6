//! The two devices. A launch that failed may have ended its device with it, so that is started
//! anew.

use super::trial::Trial;
use crate::commands::kernel::place::Place;
use anyhow::Result;
use atoll_workbench::random_kernel::RandomKernel;
use atoll_workbench::{BenchError, Runner, Verdict, compare};
use std::time::Duration;

/// Device memory for buffers; kernels of tests take little.
const BUFFERS_BYTES: u64 = 256 << 20;

/// How long a launch may take. Those of tests take milliseconds; only an error runs on.
const PATIENCE: Duration = Duration::from_secs(20);

/// A device, and what it is compared with.
pub(super) struct Pair {
    device: Side,
    reference: Side,
    lost: bool,
}

struct Side {
    place: Place,
    /// `None` until the next kernel, when a launch failed.
    runner: Option<Box<dyn Runner>>,
}

impl Side {
    fn start(place: Place) -> Result<Side> {
        Ok(Side { place, runner: Some(place.start(BUFFERS_BYTES, PATIENCE)?) })
    }

    fn runner(&mut self) -> Result<&mut dyn Runner> {
        let runner = match self.runner.take() {
            Some(runner) => runner,
            None => self.place.start(BUFFERS_BYTES, PATIENCE)?,
        };
        Ok(self.runner.insert(runner).as_mut())
    }
}

impl Pair {
    pub(super) fn start(device: Place, reference: Place) -> Result<Pair> {
        Ok(Pair { device: Side::start(device)?, reference: Side::start(reference)?, lost: false })
    }

    /// Whether the device runs nothing any more.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn compare(&mut self, trial: &Trial) -> Result<Verdict> {
        let verdict = compare(self.device.runner()?, self.reference.runner()?, &trial.kernel(), &trial.inputs);
        match &verdict {
            Verdict::Failed(BenchError::Stuck { .. }) => {
                // Its kernel still runs, and dropping it would wait for that.
                std::mem::forget(self.device.runner.take());
                self.lost = true;
            }
            Verdict::Failed(_) => self.device.runner = None,
            Verdict::NoReference(_) => self.reference.runner = None,
            _ => {}
        }
        Ok(verdict)
    }

    /// Leaves out of a random kernel what it does not need to differ.
    pub(super) fn shrink(&mut self, seed: u64) -> Result<String> {
        let random = RandomKernel::new(seed);
        let small = random.shrink(&mut |candidate| {
            let verdict = Trial::random(candidate)
                .and_then(|trial| if self.lost { Ok(Verdict::Equal) } else { self.compare(&trial) });
            matches!(verdict, Ok(Verdict::Different(_)))
        });
        Ok(format!("shrunk from {} to {} statements:\n{}", random.len(), small.len(), small.body()))
    }
}
