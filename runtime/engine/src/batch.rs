//! Batches: several requests that run as one invocation. Their rows are concatenated in its inputs
//! and outputs.
//!
//! A batch keeps its requests as they were submitted. So each can still run alone, and their inputs
//! are copied only once, into device memory.

use crate::batching::{Batching, Rows, extract, interleave};
use crate::binding::{Binding, Output};
use crate::chain::{Chain, Given, Stage};
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::Function;
use crate::instance::Instance;
use crate::request::{InvocationId, OutputTensor, PendingReply};
use crate::retained::{Part, RetainedTensor};
use atoll_core::{DeviceOffset, TaskId};
use atoll_device::{Device, DeviceError};
use atoll_kgraph::Place;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// The requests of an invocation, in the order of their rows; two or more.
pub(crate) struct Batch {
    pub(crate) members: Vec<Member>,
    /// Rows of all members.
    pub(crate) rows: u64,
}

/// A request in a batch.
pub(crate) struct Member {
    pub(crate) submission: Submission,
    pub(crate) reply: PendingReply,
    /// Whether it was answered before the batch ended. Its rows are still computed.
    pub(crate) has_left: bool,
    /// Bytes of its inputs that were copied from memory of earlier invocations.
    pub(crate) handed_over_bytes: u64,
}

impl Member {
    pub(crate) fn stage(&self) -> &Stage {
        &self.submission.chain.stages[0]
    }

    /// The size of an input in bytes.
    fn input_bytes(&self, input: usize) -> u64 {
        self.stage().binding.inputs[input].bytes
    }

    /// Writes an input. Returns the number of bytes written from host memory.
    fn write_input(
        &mut self,
        input: usize,
        to: DeviceOffset,
        device: &mut dyn Device,
        place_of: impl Fn(&RetainedTensor) -> Option<DeviceOffset>,
    ) -> Result<u64, DeviceError> {
        let given = self.submission.chain.stages[0].inputs[input].given(place_of);
        match given {
            Given::Bytes(content) => device.write(to, content).map(|()| content.len() as u64),
            Given::OnDevice { at, bytes } => {
                self.handed_over_bytes += bytes;
                device.copy(at, to, bytes).map(|()| 0)
            }
            // Only single calls are batched, so no earlier stage supplies an input.
            Given::Lost | Given::Later => Err(lost()),
        }
    }

    /// The contents of an input in host memory.
    fn read_input(
        &self,
        input: usize,
        device: &mut dyn Device,
        place_of: impl Fn(&RetainedTensor) -> Option<DeviceOffset>,
    ) -> Result<Cow<'_, [u8]>, DeviceError> {
        match self.stage().inputs[input].given(place_of) {
            Given::Bytes(content) => Ok(content.into()),
            Given::OnDevice { at, bytes } => {
                let mut content = vec![0; bytes as usize];
                device.read(at, &mut content).map(|()| content.into())
            }
            Given::Lost | Given::Later => Err(lost()),
        }
    }

    fn output(&self, output: usize) -> &Output {
        &self.stage().binding.outputs[output]
    }
}

impl Batch {
    /// Merges requests into a batch of `rows` rows. Returns the batch and the submission that runs
    /// it, with the id `batch`. An error returns the requests.
    #[expect(clippy::type_complexity, reason = "requests and their replies")]
    pub(crate) fn merge(
        batch: TaskId,
        requests: Vec<(Submission, PendingReply)>,
        rows: u64,
    ) -> Result<(Submission, Batch), (Vec<(Submission, PendingReply)>, InvokeError)> {
        let first = &requests[0].0;
        let function = Arc::clone(&first.chain.stages[0].function);
        let binding = match function.with_rows(&first.chain.stages[0].binding, rows) {
            Ok(binding) => binding,
            Err(error) => return Err((requests, error)),
        };
        let submissions = || requests.iter().map(|(submission, _)| submission);
        let submission = Submission {
            id: InvocationId(batch.0),
            instance: first.instance.clone(),
            chain: Chain::of_batch(&function, binding),
            class: first.class,
            priority: first.priority,
            submitted: submissions().map(|submission| submission.submitted).min().unwrap_or_default(),
            // A request whose deadline passes leaves the batch, which continues.
            deadline: None,
            due: submissions().filter_map(|submission| submission.deadline).min(),
            times_launches: false,
            session: None,
            retries: 0,
            may_move: false,
            gathers: true,
        };
        let member = |(submission, reply)| Member { submission, reply, has_left: false, handed_over_bytes: 0 };
        Ok((submission, Batch { members: requests.into_iter().map(member).collect(), rows }))
    }

    /// The members that have not been answered.
    pub(crate) fn present(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.has_left)
    }

    /// Whether members still have queue slots.
    pub(crate) fn is_waiting(&self) -> bool {
        self.members.iter().any(|member| member.submission.chain.is_waiting())
    }

    /// Releases the queue slots of its members.
    pub(crate) fn release_slots(&mut self) {
        self.members.iter_mut().for_each(|member| member.submission.chain.release_slots());
    }

    /// Writes the inputs of all members, including those that have left, so that no row has
    /// undefined contents. `place_of` finds outputs of earlier invocations on the device. Returns the
    /// number of bytes written from host memory.
    pub(crate) fn write_inputs(
        &mut self,
        instance: &Instance,
        device: &mut dyn Device,
        place_of: impl Fn(&RetainedTensor) -> Option<DeviceOffset>,
    ) -> Result<u64, DeviceError> {
        let mut written = 0;
        let axes: Vec<_> = axes(&self.members[0].stage().function, |batching| &batching.inputs).collect();
        for (input, rows) in axes {
            let place = instance.binding.inputs[input];
            let pieces = rows.pieces(&input_shape(&self.members[0], input, &instance.binding));
            let bytes: u64 = self.members.iter().map(|member| member.input_bytes(input)).sum();
            assert!(bytes <= place.bytes, "the rows of all members fit the input");
            if pieces == 1 {
                let mut offset = place.offset;
                for member in &mut self.members {
                    written += member.write_input(input, instance.at(offset), device, &place_of)?;
                    offset += member.input_bytes(input);
                }
            } else {
                let read = |member| Member::read_input(member, input, device, &place_of);
                let tensors = self.members.iter().map(read).collect::<Result<Vec<_>, _>>()?;
                let tensors: Vec<&[u8]> = tensors.iter().map(|tensor| &**tensor).collect();
                device.write(instance.at(place.offset), &interleave(&tensors, pieces))?;
                written += bytes;
            }
        }
        Ok(written)
    }

    /// Reads the outputs that the present members requested, except those that only stay on the
    /// device.
    pub(crate) fn read_outputs(
        &self,
        instance: &Instance,
        device: &mut dyn Device,
    ) -> Result<BatchOutputs, DeviceError> {
        let axes: Vec<Rows> =
            axes(&self.members[0].stage().function, |batching| &batching.outputs).map(|(_, rows)| rows).collect();
        // Outputs in which the rows of a member are not contiguous are read as a whole, once.
        let mut whole: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        // By output: the offset of the next member's rows in each piece.
        let mut at = vec![0; axes.len()];
        let mut made = BatchOutputs::default();
        for (number, member) in self.members.iter().enumerate() {
            let wanted = if member.has_left { &[][..] } else { &member.stage().outputs };
            let mut tensors = Vec::with_capacity(wanted.len());
            for (index, &output) in wanted.iter().enumerate() {
                let Output { shape, place: own } = member.output(output);
                let Output { shape: batch_shape, place } = &instance.binding.outputs[output];
                let pieces = axes[output].pieces(batch_shape);
                let rows = Place { offset: place.offset + at[output] as u64, bytes: own.bytes };
                let retain = member.stage().retain_of(output).filter(|_| pieces == 1);
                if let (Some(_), Some(dtype)) = (retain, member.stage().output_dtype(output)) {
                    made.retained.push((number, index, Part { place: rows, dtype, shape: shape.clone() }));
                }
                let bytes = if retain.is_some_and(|retain| !retain.with_bytes) {
                    Vec::new()
                } else if pieces == 1 {
                    made.read_bytes += rows.bytes;
                    read(rows, instance, device)?
                } else {
                    let whole = match whole.entry(output) {
                        Entry::Occupied(entry) => entry.into_mut(),
                        Entry::Vacant(entry) => {
                            made.read_bytes += place.bytes;
                            entry.insert(read(*place, instance, device)?)
                        }
                    };
                    extract(whole, pieces, at[output], own.bytes as usize / pieces.max(1))
                };
                tensors.push(OutputTensor { shape: shape.clone(), bytes });
            }
            made.tensors.push(tensors);
            for (output, at) in at.iter_mut().enumerate() {
                let pieces = axes[output].pieces(&instance.binding.outputs[output].shape);
                *at += member.output(output).place.bytes as usize / pieces.max(1);
            }
        }
        Ok(made)
    }
}

/// The outputs of a batch.
#[derive(Default)]
pub(crate) struct BatchOutputs {
    /// By member: the outputs that it asked for.
    pub(crate) tensors: Vec<Vec<OutputTensor>>,
    /// The rows to leave on the device, with the member and the index among its outputs.
    pub(crate) retained: Vec<(usize, usize, Part)>,
    pub(crate) read_bytes: u64,
}

/// The bytes of a part of an instance's memory.
fn read(place: Place, instance: &Instance, device: &mut dyn Device) -> Result<Vec<u8>, DeviceError> {
    let mut bytes = vec![0; place.bytes as usize];
    device.read(instance.at(place.offset), &mut bytes)?;
    Ok(bytes)
}

/// The error of a batch if an input is lost. Its requests then run alone.
fn lost() -> DeviceError {
    DeviceError::DomainLost("an input of a request was lost".into())
}

/// The position of the rows in each input or output of a function, with its index.
fn axes(function: &Function, of: impl Fn(&Batching) -> &Vec<Rows>) -> impl Iterator<Item = (usize, Rows)> {
    let batching = function.batching.as_ref().expect("only functions with a batch axis are batched");
    of(batching).clone().into_iter().enumerate()
}

/// The shape of an input of the batch.
fn input_shape(member: &Member, input: usize, binding: &Binding) -> Vec<i64> {
    let graph = member.stage().function.graph();
    let buffer = graph.buffers_of(atoll_kgraph::BufferKind::Input).nth(input);
    let shape = buffer.map_or(&[][..], |(_, buffer)| &buffer.shape);
    // The binding has evaluated these sizes before, so there is no error here.
    shape.iter().map(|size| size.eval(&binding.symbols).unwrap_or(0)).collect()
}
