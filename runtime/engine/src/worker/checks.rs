//! What kernels found wrong with the values of an invocation that ran to its end.

use super::Worker;
use crate::chain::Stage;
use crate::error::InvokeError;
use crate::instance::Instance;
use atoll_device::DeviceError;

impl Worker {
    /// Reads the words of the checks of a stage. Where a word is not zero its check was violated,
    /// and what the kernels computed from there on means nothing.
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
    // What has no value is shown as it stands.
    let text = check.message(&instance.binding.symbols).unwrap_or_else(|_| check.text.clone());
    format!("node {}: {text}", graph.nodes[check.node.0 as usize].name)
}
