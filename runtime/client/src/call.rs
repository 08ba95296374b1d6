//! Calls and their results.

use crate::error::ClientError;
use atoll_control::{Attachments, Form, Input, OutputAction, Stage, Timing};
use atoll_core::Class;
use atoll_protocol::DataType;
use atoll_sealed::Digest;
use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

/// A tensor: dense, row-major, little-endian.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Type of the elements.
    pub datatype: DataType,
    /// Dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements.
    pub bytes: Vec<u8>,
}

impl Tensor {
    /// A tensor of FP32 elements.
    pub fn f32(shape: &[i64], elements: &[f32]) -> Tensor {
        let bytes = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
        Tensor { datatype: DataType::Fp32, shape: shape.to_vec(), bytes }
    }

    /// The elements of an FP32 tensor; empty for other types.
    pub fn to_f32(&self) -> Vec<f32> {
        match self.datatype {
            DataType::Fp32 => self.bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect(),
            _ => Vec::new(),
        }
    }

    pub(crate) fn form(&self) -> Form {
        Form { datatype: self.datatype, shape: self.shape.clone() }
    }
}

/// Source of an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A tensor that is sent with the call.
    Tensor(Tensor),
    /// An object in the daemon's store.
    Object(Digest),
    /// An output of an earlier function of the call, by the index of the function.
    Output(usize, String),
    /// An output of a future ([`crate::Client::defer`]): the name of the future and the name of the
    /// output. The call waits until the future ends.
    Future(String, String),
}

impl From<Tensor> for Content {
    fn from(tensor: Tensor) -> Content {
        Content::Tensor(tensor)
    }
}

impl From<Digest> for Content {
    fn from(digest: Digest) -> Content {
        Content::Object(digest)
    }
}

impl Content {
    pub(crate) fn attach(&self, attachments: &mut Attachments) -> io::Result<Input> {
        Ok(match self {
            Content::Tensor(tensor) => Input::Bytes { form: tensor.form(), blob: attachments.add(&tensor.bytes)? },
            Content::Object(digest) => Input::Object { digest: *digest, form: None },
            Content::Output(stage, name) => Input::Output { stage: *stage, name: name.clone() },
            Content::Future(future, output) => Input::Future { future: future.clone(), output: output.clone() },
        })
    }
}

/// A call of one function, or of several one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    pub(crate) stages: Vec<CallStage>,
    pub(crate) instance: Option<String>,
    pub(crate) class: Option<Class>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) remember: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CallStage {
    function: String,
    inputs: BTreeMap<String, Content>,
    outputs: Option<BTreeMap<String, OutputAction>>,
}

/// A call that the daemon remembers until the connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan(pub(crate) u32);

impl Call {
    /// A call of a function. By default, all its outputs are sent back.
    pub fn of(function: impl Into<String>) -> Call {
        let stages = vec![CallStage::new(function.into())];
        Call { stages, instance: None, class: None, deadline: None, remember: false }
    }

    /// Runs the call under the share of an instance of the first function.
    #[must_use]
    pub fn instance(mut self, instance: impl Into<String>) -> Call {
        self.instance = Some(instance.into());
        self
    }

    /// Appends a function to the call. Inputs and outputs that are named afterwards belong to it.
    pub fn then(mut self, function: impl Into<String>) -> Call {
        self.stages.push(CallStage::new(function.into()));
        self
    }

    /// Binds an input.
    pub fn input(mut self, name: impl Into<String>, content: impl Into<Content>) -> Call {
        self.last().inputs.insert(name.into(), content.into());
        self
    }

    /// Binds an input to an output of the previous function. The tensor stays on the device.
    pub fn take(self, input: impl Into<String>, output: impl Into<String>) -> Call {
        let before = self.stages.len().saturating_sub(2);
        self.input(input, Content::Output(before, output.into()))
    }

    /// Requests that an output be sent back. Outputs that are not requested are discarded.
    pub fn send(self, output: impl Into<String>) -> Call {
        self.output_action(output.into(), OutputAction::Send)
    }

    /// Requests that an output be stored as an object.
    pub fn keep(self, output: impl Into<String>) -> Call {
        self.output_action(output.into(), OutputAction::Keep)
    }

    /// Sets the class of the call; the default is the first function's.
    pub fn class(mut self, class: Class) -> Call {
        self.class = Some(class);
        self
    }

    /// Cancels the call after this time.
    pub fn deadline(mut self, within: Duration) -> Call {
        self.deadline = Some(within);
        self
    }

    /// Lets the daemon remember the call, to be repeated with [`crate::Client::again`].
    pub fn remember(mut self) -> Call {
        self.remember = true;
        self
    }

    fn output_action(mut self, output: String, action: OutputAction) -> Call {
        self.last().outputs.get_or_insert_default().insert(output, action);
        self
    }

    fn last(&mut self) -> &mut CallStage {
        self.stages.last_mut().expect("a call has a function")
    }
}

impl CallStage {
    fn new(function: String) -> CallStage {
        CallStage { function, inputs: BTreeMap::new(), outputs: None }
    }

    pub(crate) fn attach(&self, attachments: &mut Attachments) -> io::Result<Stage> {
        let inputs: io::Result<_> =
            self.inputs.iter().map(|(name, content)| Ok((name.clone(), content.attach(attachments)?))).collect();
        Ok(Stage { function: self.function.clone(), inputs: inputs?, outputs: self.outputs.clone() })
    }
}

/// Result of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The requested outputs, each with the index of its function and its name.
    pub outputs: Vec<(usize, String, Value)>,
    /// How long each phase of the call took.
    pub timing: Timing,
    /// How often the call was preempted.
    pub preemptions: u32,
    /// The remembered call, for [`crate::Client::again`].
    pub plan: Option<Plan>,
}

/// Contents of an output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// The tensor that was sent back.
    Tensor(Tensor),
    /// The object as which it was stored.
    Object(Digest),
}

impl Answer {
    /// The tensor of this name that was sent back; of several, the one of the last function.
    pub fn tensor(&self, name: &str) -> Result<&Tensor, ClientError> {
        let found = self.outputs.iter().rev().find_map(|(_, output, value)| match value {
            Value::Tensor(tensor) if output == name => Some(tensor),
            _ => None,
        });
        found.ok_or_else(|| ClientError::NoOutput(name.into()))
    }

    /// The object of this name that was stored; of several, the one of the last function.
    pub fn object(&self, name: &str) -> Result<Digest, ClientError> {
        let found = self.outputs.iter().rev().find_map(|(_, output, value)| match value {
            Value::Object(digest) if output == name => Some(*digest),
            _ => None,
        });
        found.ok_or_else(|| ClientError::NoOutput(name.into()))
    }
}
