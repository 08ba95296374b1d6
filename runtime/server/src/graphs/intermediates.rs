//! Tensors between the stages of a graph: in host memory, or on the device of the function that made
//! them.

use crate::tensors::dtype_of;
use atoll_engine::{InputTensor, OutputTensor, RetainedTensor};
use atoll_protocol::TensorMetadata;
use std::sync::Arc;

/// A tensor of a run in host memory.
pub(super) type Held = Arc<InputTensor>;

/// A tensor that a stage made; neither in host memory nor on a device if no stage needs it.
#[derive(Clone, Default)]
pub(super) struct Intermediate {
    pub(super) host: Option<Held>,
    pub(super) device: Option<RetainedTensor>,
}

impl Intermediate {
    pub(super) fn in_host_memory(tensor: InputTensor) -> Intermediate {
        Intermediate { host: Some(Arc::new(tensor)), device: None }
    }

    /// Whether it has to be made again before a stage can take it.
    pub(super) fn is_gone(&self) -> bool {
        self.host.is_none() && self.device.as_ref().is_none_or(RetainedTensor::is_lost)
    }

    /// Bytes of host memory that it takes, or may take once its device needs the memory.
    pub(super) fn bytes(&self) -> usize {
        let (host, device) = (self.host.as_ref(), self.device.as_ref());
        host.map_or(0, |tensor| tensor.bytes.len()) + device.map_or(0, |tensor| tensor.bytes() as usize)
    }
}

/// The outputs of a function by index, of which a run uses those in `used`.
pub(super) fn placed(
    metadata: &[TensorMetadata],
    used: &[usize],
    outputs: Vec<OutputTensor>,
    retained: Vec<(usize, RetainedTensor)>,
) -> Vec<Intermediate> {
    let mut places = vec![Intermediate::default(); metadata.len()];
    for (&output, OutputTensor { shape, bytes }) in used.iter().zip(outputs) {
        let dtype = dtype_of(metadata[output].datatype);
        places[output] = Intermediate::in_host_memory(InputTensor { dtype, shape, bytes });
    }
    for (index, tensor) in retained {
        let place = &mut places[used[index]];
        // Without bytes unless these were asked for.
        place.host.take_if(|host| host.bytes.len() as u64 != tensor.bytes());
        place.device = Some(tensor);
    }
    places
}
