//! Value checks: reads the violations that the kernels of an invocation found, once it has ended.

use super::Worker;
use crate::chain::Stage;
use crate::error::InvokeError;
use crate::instance::Instance;
use atoll_device::DeviceError;

impl Worker {
    /// Reads the check words of a stage. A nonzero word means that its check was violated and that
    /// the outputs are invalid.
    pub(super) fn read_checks(
        &mut self,
        stage: &Stage,
        instance: &Instance,
    ) -> Result<Option<InvokeError>, DeviceError> {
        let place = instance.binding.layout.checks;
        if place.bytes == 0 {
            return Ok(None);
        }
        let mut words = vec![0; place.bytes as usize];
        self.device.read(instance.at(place.offset), &mut words)?;
        let violated = words.chunks_exact(4).position(|word| word != [0; 4]);
        Ok(violated.map(|check| InvokeError::BadInput(explain(stage, instance, check))))
    }
}

fn explain(stage: &Stage, instance: &Instance, check: usize) -> String {
    let graph = stage.function.graph();
    let check = &graph.checks[check];
    // If a value cannot be evaluated, the text is shown without values.
    let text = check.message(&instance.binding.symbols).unwrap_or_else(|_| check.text.clone());
    format!("node {}: {text}", graph.nodes[check.node.0 as usize].name)
}
