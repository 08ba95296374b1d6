//! Writes the inputs of invocations: bytes of clients, and outputs that earlier invocations left on
//! the device.

use super::Worker;
use crate::chain::Given;
use crate::error::InvokeError;
use crate::instance::Instance;
use crate::invocation::Invocation;
use atoll_core::TaskId;
use atoll_device::DeviceError;

impl Worker {
    /// Writes the inputs of an invocation. Returns why it fails if one of them is lost.
    pub(super) fn write_inputs(
        &mut self,
        task: TaskId,
        instances: &mut [Instance],
    ) -> Result<Option<InvokeError>, DeviceError> {
        self.write_rows(task, &instances[0])?;
        for (stage, instance) in instances.iter_mut().enumerate() {
            for input in 0..instance.binding.inputs.len() {
                let lost = self.write_input(task, stage, input, instance)?;
                if lost.is_some() {
                    return Ok(lost);
                }
            }
            let control = instance.binding.layout.control;
            self.device.fill(instance.at(control.offset), 0, control.bytes)?;
            self.device.watch_epoch(instance.epoch_word());
            instance.begin();
        }
        Ok(None)
    }

    /// Writes the inputs of a batch, if the invocation is one.
    fn write_rows(&mut self, task: TaskId, instance: &Instance) -> Result<(), DeviceError> {
        let Worker { invocations, holdings, device, shared, .. } = self;
        let invocation = invocations.get_mut(&task).expect("the scheduler names only unfinished invocations");
        let Some(batch) = &mut invocation.batch else { return Ok(()) };
        let place_of = |tensor: &_| holdings.place_of(tensor, instance, &shared.outputs);
        invocation.stages[0].usage.written_bytes += batch.write_inputs(instance, &mut **device, place_of)?;
        Ok(())
    }

    /// Writes an input that the stages of the invocation do not compute. It is kept for a retry.
    fn write_input(
        &mut self,
        task: TaskId,
        stage: usize,
        input: usize,
        instance: &Instance,
    ) -> Result<Option<InvokeError>, DeviceError> {
        let Worker { invocations, holdings, device, shared, .. } = self;
        let invocation = invocations.get_mut(&task).expect("the scheduler names only unfinished invocations");
        let Invocation { submission, stages, handed_over_bytes, .. } = invocation;
        let to = instance.at(instance.binding.inputs[input].offset);
        let place_of = |tensor: &_| holdings.place_of(tensor, instance, &shared.outputs);
        match submission.chain.stages[stage].inputs[input].given(place_of) {
            Given::Bytes(bytes) => {
                stages[stage].usage.written_bytes += bytes.len() as u64;
                device.write(to, bytes)?;
            }
            Given::OnDevice { at, bytes } => {
                *handed_over_bytes += bytes;
                device.copy(at, to, bytes)?;
            }
            Given::Lost => return Ok(Some(lost_input(input))),
            Given::Later => {}
        }
        Ok(None)
    }
}

/// The error of an invocation whose input was on the device and is lost.
fn lost_input(input: usize) -> InvokeError {
    InvokeError::Unavailable(format!("input {input} was lost with the device or the executor that had it"))
}
