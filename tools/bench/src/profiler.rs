//! Measures how long each launch of a model takes alone on a device.

use crate::cache;
use crate::failure::users;
use crate::invoker;
use anyhow::{Context, Result, anyhow};
use atoll_engine::{
    ChainRequest, Class, EngineHandle, FunctionInfo, FunctionKey, InputTensor, InvocationResult, LaunchTime,
    StageInput, StageRequest,
};
use atoll_kgraph::{Bundle, InputForm, NodeProfile, Profile, ShapeProfile, bind_symbols};
use atoll_protocol::Tensor;
use std::path::PathBuf;
use std::sync::mpsc;

/// Warm-up invocations: they bind memory and fill caches.
const WARM_UPS: u32 = 3;

/// Path of the cached profile of a bundle on a device; `None` if there is no cache folder.
pub fn place(bundle: &Bundle, device: &str, compute_units: u32) -> Option<PathBuf> {
    Some(Profile::path(&cache::folder("profiles")?, bundle.digest(), device, compute_units))
}

/// The symbol values that follow from the shapes of these inputs.
///
/// # Errors
/// The inputs do not fit the model.
pub fn symbols(bundle: &Bundle, inputs: &[InputTensor]) -> Result<Vec<i64>> {
    let forms: Vec<InputForm<'_>> = inputs.iter().map(InputTensor::form).collect();
    bind_symbols(bundle.graph(), &forms).map_err(users)
}

/// A loaded model to profile.
pub struct Profiled<'a> {
    /// The engine.
    pub handle: &'a EngineHandle,
    /// The model's bundle.
    pub bundle: &'a Bundle,
    /// The engine's information about it.
    pub function: &'a FunctionInfo,
}

impl Profiled<'_> {
    /// Runs the model `runs` times with these inputs, alone on the device.
    pub fn measure(&self, inputs: &[Tensor], runs: u32, mut progress: impl FnMut()) -> Result<ShapeProfile> {
        let inputs: Vec<InputTensor> = inputs.iter().map(invoker::input).collect();
        let symbols = symbols(self.bundle, &inputs)?;
        for _ in 0..WARM_UPS {
            self.call(&inputs)?;
        }
        let mut results = Vec::new();
        for _ in 0..runs {
            results.push(self.call(&inputs)?);
            progress();
        }
        let launches = self.launches(&results, &symbols)?;
        let whole = |ns: fn(&InvocationResult) -> u64| median(results.iter().map(ns).collect());
        Ok(ShapeProfile {
            symbols,
            runs,
            before_ns: whole(|result| result.timing.queue_ns + result.timing.input_ns),
            total_ns: whole(|result| result.timing.compute_ns),
            after_ns: whole(|result| result.timing.output_ns),
            launches,
        })
    }

    fn call(&self, inputs: &[InputTensor]) -> Result<InvocationResult> {
        let stage = StageRequest {
            function: FunctionKey::local(self.function.key.name.clone()),
            inputs: inputs.iter().cloned().map(StageInput::Tensor).collect(),
            outputs: None,
            retain: Vec::new(),
        };
        let request = ChainRequest {
            stages: vec![stage],
            class: Some(Class::RealTime),
            priority: 0,
            instance: None,
            deadline: None,
            times_launches: true,
        };
        let (answer, answered) = mpsc::sync_channel(1);
        self.handle.submit_chain(request, Box::new(move |result| drop(answer.send(result))));
        Ok(answered.recv().context("the engine ended")??)
    }

    /// Combines the launches of all runs.
    fn launches(&self, results: &[InvocationResult], symbols: &[i64]) -> Result<Vec<NodeProfile>> {
        let first = results.first().map_or(&[][..], |result| &result.launches);
        let same = |result: &&InvocationResult| {
            result.launches.len() == first.len()
                && result.launches.iter().zip(first).all(|(a, b)| (a.node, a.blocks) == (b.node, b.blocks))
        };
        if let Some(odd) = results.iter().find(|result| !same(result)) {
            return Err(anyhow!("a run had {} launches, another one {}", first.len(), odd.launches.len()));
        }
        (0..first.len()).map(|at| self.launch(results, symbols, at)).collect()
    }

    fn launch(&self, results: &[InvocationResult], symbols: &[i64], at: usize) -> Result<NodeProfile> {
        let LaunchTime { node, blocks, .. } = results[0].launches[at];
        let of =
            |ns: &dyn Fn(&[LaunchTime]) -> u64| median(results.iter().map(|result| ns(&result.launches)).collect());
        let gap = |launches: &[LaunchTime]| {
            at.checked_sub(1).map_or(0, |before| launches[at].started_ns.saturating_sub(launches[before].ended_ns))
        };
        let image = self.bundle.target(&self.function.target).context("the target is one of the bundle's")?;
        let (_, spec) = image.launches[node as usize].as_ref().context("the node was launched")?.choose(symbols);
        let total_ns = of(&|launches| launches[at].ended_ns.saturating_sub(launches[at].started_ns));
        let wave_ns = match self.function.occupancy.get(spec.kernel.0 as usize).copied().flatten() {
            Some(occupancy) => {
                waves(total_ns, blocks, occupancy.into(), self.handle.device_info().compute_units.into())
            }
            None => vec![of(&|launches| launches[at].busy_ns / blocks.max(1)).max(1)],
        };
        Ok(NodeProfile {
            node,
            kernel: image.kernels[spec.kernel.0 as usize].name.clone(),
            blocks: u32::try_from(blocks).context("too many blocks")?,
            total_ns,
            gap_ns: of(&gap),
            wave_ns,
        })
    }
}

/// Upper bounds of the duration of a wave with 1, 2, … blocks per compute unit, from a launch that
/// took `total_ns` alone. A launch always runs all its blocks, so only the fullest wave is
/// measured. A wave with fewer blocks takes at most as long; a wave with more blocks takes longer,
/// at most in proportion to its blocks.
fn waves(total_ns: u64, blocks: u64, occupancy: u64, compute_units: u64) -> Vec<u64> {
    let wave_ns = (total_ns / blocks.div_ceil(occupancy * compute_units).max(1)).max(1);
    let fullest = blocks.div_ceil(compute_units).clamp(1, occupancy);
    (1..=occupancy)
        .map(|on_each| if on_each <= fullest { wave_ns } else { (wave_ns * on_each).div_ceil(fullest) })
        .collect()
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waves_are_bounded_from_above_by_the_fullest() {
        assert_eq!(waves(900, 3 * 4 * 10, 4, 10), [300, 300, 300, 300]);
        assert_eq!(waves(600, 15, 4, 10), [600, 600, 900, 1200], "two blocks on a compute unit at most");
        assert_eq!(waves(0, 1, 1, 1), [1]);
    }

    #[test]
    fn a_median_is_one_of_the_values() {
        assert_eq!(median(vec![9, 1, 5]), 5);
        assert_eq!(median(vec![]), 0);
    }
}
