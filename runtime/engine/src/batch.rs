//! Batches: several requests that run as one invocation. Their rows are concatenated in its inputs
//! and outputs.
//!
//! A batch keeps its requests as they were submitted. So each can still run alone, and their inputs
//! are copied only once, into device memory.

use crate::batching::{Batching, Rows, extract, interleave};
use crate::binding::{Binding, Output};
use crate::chain::{Chain, Source, Stage};
use crate::error::InvokeError;
use crate::event::Submission;
use crate::function::Function;
use crate::instance::Instance;
use crate::request::{InvocationId, OutputTensor, PendingReply};
use atoll_core::TaskId;
use atoll_device::{Device, DeviceError};
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
}

impl Member {
    pub(crate) fn stage(&self) -> &Stage {
        &self.submission.chain.stages[0]
    }

    /// The bytes that it sends for an input.
    fn input(&self, input: usize) -> &[u8] {
        match &self.stage().inputs[input] {
            Source::Bytes(bytes) => bytes,
            // Only single calls are batched, so no earlier stage supplies an input.
            Source::Output { .. } | Source::Rows => &[],
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
        let member = |(submission, reply)| Member { submission, reply, has_left: false };
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
    /// undefined contents. Returns the number of bytes written.
    pub(crate) fn write_inputs(&self, instance: &Instance, device: &mut dyn Device) -> Result<u64, DeviceError> {
        let mut written = 0;
        for (input, rows) in axes(&self.members[0].stage().function, |batching| &batching.inputs) {
            let place = instance.binding.inputs[input];
            let tensors: Vec<&[u8]> = self.members.iter().map(|member| member.input(input)).collect();
            let pieces = rows.pieces(&input_shape(&self.members[0], input, &instance.binding));
            let bytes: u64 = tensors.iter().map(|tensor| tensor.len() as u64).sum();
            assert!(bytes <= place.bytes, "the rows of all members fit the input");
            if pieces == 1 {
                let mut offset = place.offset;
                for tensor in tensors {
                    device.write(instance.at(offset), tensor)?;
                    offset += tensor.len() as u64;
                }
            } else {
                device.write(instance.at(place.offset), &interleave(&tensors, pieces))?;
            }
            written += bytes;
        }
        Ok(written)
    }

    /// Reads the outputs that the present members requested. Returns them by member, and the number
    /// of bytes read.
    pub(crate) fn read_outputs(
        &self,
        instance: &Instance,
        device: &mut dyn Device,
    ) -> Result<(Vec<Vec<OutputTensor>>, u64), DeviceError> {
        let axes: Vec<Rows> =
            axes(&self.members[0].stage().function, |batching| &batching.outputs).map(|(_, rows)| rows).collect();
        // Outputs in which the rows of a member are not contiguous are read as a whole, once.
        let mut whole: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
        // By output: the offset of the next member's rows in each piece.
        let mut at = vec![0; axes.len()];
        let (mut all, mut read) = (Vec::with_capacity(self.members.len()), 0);
        for member in &self.members {
            let wanted = if member.has_left { &[][..] } else { &member.stage().outputs };
            let mut tensors = Vec::with_capacity(wanted.len());
            for &output in wanted {
                let Output { shape, place: own } = member.output(output);
                let Output { shape: batch_shape, place } = &instance.binding.outputs[output];
                let pieces = axes[output].pieces(batch_shape);
                let bytes = if pieces == 1 {
                    let mut bytes = vec![0; own.bytes as usize];
                    device.read(instance.at(place.offset + at[output] as u64), &mut bytes)?;
                    read += own.bytes;
                    bytes
                } else {
                    let whole = match whole.entry(output) {
                        Entry::Occupied(entry) => entry.into_mut(),
                        Entry::Vacant(entry) => {
                            let mut bytes = vec![0; place.bytes as usize];
                            device.read(instance.at(place.offset), &mut bytes)?;
                            read += place.bytes;
                            entry.insert(bytes)
                        }
                    };
                    extract(whole, pieces, at[output], own.bytes as usize / pieces.max(1))
                };
                tensors.push(OutputTensor { shape: shape.clone(), bytes });
            }
            all.push(tensors);
            for (output, at) in at.iter_mut().enumerate() {
                let pieces = axes[output].pieces(&instance.binding.outputs[output].shape);
                *at += member.output(output).place.bytes as usize / pieces.max(1);
            }
        }
        Ok((all, read))
    }
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
