//! Functions that are called one after the other as stages of a graph: their tensors stay on the
//! device, or go through host memory.

use crate::output::{Align, Table};
use crate::samples::Distribution;
use anyhow::{Context, Result, ensure};
use atoll_core::placement::Why;
use atoll_engine::{
    ChainRequest, Class, DeviceId, FunctionKey, InputTensor, InvocationResult, Retain, StageInput, StageRequest,
};
use atoll_fleet::Inference;
use atoll_kgraph::DType;
use serde_json::{Value, json};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The function: it reads its input once and writes as much.
pub(super) const MODEL: &str = "null";

/// FP32 elements of a tensor: 4 MiB.
pub(super) const ELEMENTS: u32 = 1 << 20;

/// Functions of the pipeline.
const FUNCTIONS: u32 = 4;

/// Runs of the pipeline each way, in turns.
const RUNS: usize = 40;

/// Results, by way of the tensors between the functions.
pub(super) struct Pipeline {
    on_device: Way,
    through_host: Way,
}

struct Way {
    took: Distribution,
    /// Bytes of a run that were copied on the device, and bytes that were read from it for the next
    /// function.
    handed_over_bytes: u64,
    copied_bytes: u64,
}

/// One run.
#[derive(Clone, Copy, Default)]
struct Run {
    took: Duration,
    handed_over_bytes: u64,
    copied_bytes: u64,
}

/// Measures both ways on the first device, which does nothing else.
pub(super) fn measure(fleet: &dyn Inference) -> Result<Pipeline> {
    let bytes = (0..ELEMENTS).flat_map(|element| (element as f32).to_le_bytes()).collect();
    let input = InputTensor { dtype: Some(DType::F32), shape: vec![1, ELEMENTS.into()], bytes };
    let ways = [true, false];
    // Loads constants, and allocates memory.
    ways.iter().try_for_each(|stays| run(fleet, &input, *stays).map(drop))?;
    let mut runs = ways.map(|_| Vec::with_capacity(RUNS));
    for _ in 0..RUNS {
        for (stays, runs) in ways.into_iter().zip(&mut runs) {
            runs.push(run(fleet, &input, stays)?);
        }
    }
    let [on_device, through_host] = runs.map(|runs| Way::of(&runs));
    Ok(Pipeline { on_device, through_host })
}

fn run(fleet: &dyn Inference, input: &InputTensor, stays: bool) -> Result<Run> {
    let (mut next, begin, mut run) = (StageInput::Tensor(input.clone()), Instant::now(), Run::default());
    for left in (0..FUNCTIONS).rev() {
        let InvocationResult { mut outputs, mut retained, handed_over_bytes, .. } =
            call(fleet, next, stays && left > 0)?;
        run.handed_over_bytes += handed_over_bytes;
        let output = outputs.pop().context("the function has an output")?;
        next = match retained.pop() {
            Some((_, tensor)) => StageInput::Retained(tensor),
            None => {
                run.copied_bytes += if left > 0 { output.bytes.len() as u64 } else { 0 };
                StageInput::Tensor(InputTensor { dtype: input.dtype, shape: output.shape, bytes: output.bytes })
            }
        };
    }
    run.took = begin.elapsed();
    ensure!(matches!(&next, StageInput::Tensor(last) if last == input), "no function changes a positive number");
    Ok(run)
}

fn call(fleet: &dyn Inference, input: StageInput, stays: bool) -> Result<InvocationResult> {
    let stage = StageRequest {
        function: FunctionKey::local(MODEL),
        inputs: vec![input],
        outputs: Some(vec![0]),
        retain: if stays { vec![Retain { output: 0, with_bytes: false }] } else { Vec::new() },
    };
    let request = ChainRequest {
        stages: vec![stage],
        class: Some(Class::RealTime),
        priority: 0,
        instance: None,
        deadline: None,
        times_launches: false,
    };
    let (send, answer) = mpsc::channel();
    // If the caller is gone, the answer does not matter.
    let reply = Box::new(move |result| drop(send.send(result)));
    fleet.submit_to(DeviceId(0), Why::Measured, request, reply);
    Ok(answer.recv()??)
}

impl Way {
    fn of(runs: &[Run]) -> Way {
        let took: Vec<Duration> = runs.iter().map(|run| run.took).collect();
        let Run { handed_over_bytes, copied_bytes, .. } = runs.last().copied().unwrap_or_default();
        Way { took: Distribution::of(&took), handed_over_bytes, copied_bytes }
    }

    fn as_json(&self) -> Value {
        json!({
            "took": self.took,
            "handed_over_bytes": self.handed_over_bytes,
            "copied_bytes": self.copied_bytes,
        })
    }
}

impl Pipeline {
    pub(super) fn as_json(&self) -> Value {
        json!({
            "functions": FUNCTIONS,
            "tensor_bytes": u64::from(ELEMENTS) * 4,
            "on_device": self.on_device.as_json(),
            "through_host": self.through_host.as_json(),
            "ratio": self.on_device.took.p50_ms / self.through_host.took.p50_ms.max(f64::MIN_POSITIVE),
        })
    }

    pub(super) fn text(&self) -> String {
        use Align::{Left, Right};
        let mut table = Table::new([
            ("tensors", Left),
            ("stayed (bytes)", Right),
            ("copied (bytes)", Right),
            ("p50 (ms)", Right),
            ("p99 (ms)", Right),
        ]);
        for (name, way) in [("on the device", &self.on_device), ("through host memory", &self.through_host)] {
            table.row([
                name.to_owned(),
                way.handed_over_bytes.to_string(),
                way.copied_bytes.to_string(),
                format!("{:.3}", way.took.p50_ms),
                format!("{:.3}", way.took.p99_ms),
            ]);
        }
        let mib = (u64::from(ELEMENTS) * 4) >> 20;
        format!("\nA pipeline of {FUNCTIONS} functions with tensors of {mib} MiB\n\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_compares_both_ways() {
        let run = |ms, handed_over_bytes, copied_bytes| Run {
            took: Duration::from_millis(ms),
            handed_over_bytes,
            copied_bytes,
        };
        let pipeline =
            Pipeline { on_device: Way::of(&[run(2, 12, 0)]), through_host: Way::of(&[run(4, 0, 12), run(4, 0, 12)]) };
        let json = pipeline.as_json();
        assert_eq!((&json["ratio"], &json["through_host"]["took"]["count"]), (&json!(0.5), &json!(2)));
        assert_eq!(
            (&json["on_device"]["handed_over_bytes"], &json["on_device"]["copied_bytes"]),
            (&json!(12), &json!(0))
        );
        assert!(pipeline.text().contains("4 functions with tensors of 4 MiB"), "{}", pipeline.text());
    }
}
