//! Sizes computed by kernels: read back between launches; they determine the steps that follow.

use super::Worker;
use crate::binding::Work;
use crate::chain::StagePlace;
use crate::error::InvokeError;
use crate::instance::Instance;
use atoll_core::{Event, TaskId};
use atoll_device::DeviceError;
use atoll_kgraph::{DType, ReadBack, Scalar};
use std::sync::Arc;

impl Worker {
    /// The read-back of a host step, if the step is one.
    pub(super) fn read_back_of(&mut self, task: TaskId, step: u32) -> Option<ReadBack> {
        let invocation = self.invocation(task);
        let StagePlace { stage, step } = invocation.submission.chain.locate(step);
        let Work::ReadBack(index) = invocation.instances[stage].binding.work[step? as usize] else { return None };
        Some(invocation.submission.chain.stages[stage].function.graph().read_backs[index as usize].clone())
    }

    /// Reads a size back and reports the steps that follow from it to the scheduler.
    pub(super) fn read_size_back(&mut self, task: TaskId, step: u32, read_back: ReadBack) {
        let invocation = self.invocation(task);
        let stage = invocation.submission.chain.locate(step).stage;
        // Taken, because reading needs the device.
        let instances = std::mem::take(&mut invocation.instances);
        let answer = self.read_scalar(&instances[stage], read_back.value);
        self.invocation(task).instances = instances;
        let size = match self.check(answer) {
            Ok(size) => size,
            Err(error) => return self.fail_on(task, "a size cannot be read back", &error),
        };
        let invocation = self.invocation(task);
        let function = Arc::clone(&invocation.submission.chain.stages[stage].function);
        match function.with_size(&invocation.instances[stage].binding, size) {
            Ok(binding) => {
                let steps = Some(Arc::clone(&binding.steps));
                invocation.instances[stage].bind(binding);
                self.host_steps_done.push_back(Event::HostStepDone { task, steps, next: None });
            }
            Err(error) => self.fail(task, InvokeError::Device(error.to_string())),
        }
    }

    /// Reads a scalar of an invocation from the device. The caller passes the result to
    /// [`Worker::check`].
    pub(super) fn read_scalar(&mut self, instance: &Instance, scalar: Scalar) -> Result<i64, DeviceError> {
        let Scalar { buffer, offset, dtype } = scalar;
        let at = instance.at(instance.binding.layout.buffer(buffer).offset + offset);
        let mut bytes = [0; 8];
        self.device.read(at, &mut bytes[..dtype.bytes() as usize])?;
        Ok(integer(dtype, bytes))
    }
}

/// The value of an integer type in the first bytes; clamped to `i64::MAX` if it does not fit.
fn integer(dtype: DType, bytes: [u8; 8]) -> i64 {
    let number = i64::from_le_bytes(bytes);
    match dtype {
        DType::I8 => (number as i8).into(),
        DType::I16 => (number as i16).into(),
        DType::I32 => (number as i32).into(),
        DType::U64 => i64::try_from(number as u64).unwrap_or(i64::MAX),
        // The remaining bytes are zero.
        _ => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_signs() {
        let of = |number: i64, dtype: DType| {
            let mut bytes = [0; 8];
            let width = dtype.bytes() as usize;
            bytes[..width].copy_from_slice(&number.to_le_bytes()[..width]);
            integer(dtype, bytes)
        };
        for dtype in [DType::I8, DType::I16, DType::I32, DType::I64] {
            assert_eq!((of(-3, dtype), of(100, dtype)), (-3, 100));
        }
        assert_eq!(
            [DType::Bool, DType::U8, DType::U16, DType::U32].map(|dtype| of(-1, dtype)),
            [255, 255, 65_535, 4_294_967_295]
        );
        assert_eq!(of(-1, DType::U64), i64::MAX);
    }
}
