//! The two devices. A failed launch may have ended its device, so the device is restarted.

use super::trial::Trial;
use crate::commands::kernel::place::Place;
use anyhow::Result;
use atoll_workbench::random_kernel::RandomKernel;
use atoll_workbench::{BenchError, Runner, Verdict, compare};
use std::time::Duration;

/// Device memory for buffers; test kernels need little.
const BUFFERS_BYTES: u64 = 256 << 20;

/// Timeout of a launch. Test kernels take milliseconds; only a faulty one runs longer.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The device under test and the reference.
pub(super) struct Pair {
    device: Side,
    reference: Side,
    lost: bool,
}

struct Side {
    place: Place,
    /// `None` after a failed launch, until the next kernel.
    runner: Option<Box<dyn Runner>>,
}

impl Side {
    fn start(place: Place) -> Result<Side> {
        Ok(Side { place, runner: Some(place.start(BUFFERS_BYTES, TIMEOUT)?) })
    }

    fn runner(&mut self) -> Result<&mut dyn Runner> {
        let runner = match self.runner.take() {
            Some(runner) => runner,
            None => self.place.start(BUFFERS_BYTES, TIMEOUT)?,
        };
        Ok(self.runner.insert(runner).as_mut())
    }
}

impl Pair {
    pub(super) fn start(device: Place, reference: Place) -> Result<Pair> {
        Ok(Pair { device: Side::start(device)?, reference: Side::start(reference)?, lost: false })
    }

    /// Whether the device can no longer run kernels.
    pub(super) fn is_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn compare(&mut self, trial: &Trial) -> Result<Verdict> {
        let verdict = compare(self.device.runner()?, self.reference.runner()?, &trial.kernel(), &trial.inputs);
        match &verdict {
            Verdict::Failed(BenchError::Stuck { .. }) => {
                // Its kernel is still running; dropping the runner would wait for it.
                std::mem::forget(self.device.runner.take());
                self.lost = true;
            }
            Verdict::Failed(_) => self.device.runner = None,
            Verdict::NoReference(_) => self.reference.runner = None,
            _ => {}
        }
        Ok(verdict)
    }

    /// Removes statements of a random kernel that do not affect the difference.
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
